// SPDX-License-Identifier: BSD-3-Clause
#include "test/gpu/soak_options.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace pinrail::gpu_test {
namespace {

constexpr char kUsage[] =
    "Usage: soak [--double] [--mode 1|2|3|4] [--rounds N] [--kind ipc|vmm|pool] [--monitor NAME]\n"
    "            [--free notify|defer] [--unit BYTES]\n"
    "Two processes: one allocates GPU memory, exports and frees it in a loop, at the same address, smaller, larger "
    "and\n"
    "shifted; the other opens it through rgpusm and compares every byte.\n"
    "  --double        the driver double instead of a real driver\n"
    "  --mode N        leave_pinned and size_limit: 1 no, none; 2 no, limited; 3 yes, none (default); 4 yes, limited\n"
    "  --kind NAME     of the memory: ipc, cuMemAlloc's (default); vmm, cuMemCreate's; pool, of a stream-ordered pool\n"
    "  --rounds N      default 100000\n"
    "  --monitor NAME  how the exporter learns of frees: external (default; every other one is reported) or cuda\n"
    "  --free NAME     what a free that the exporter sees does: notify peers (default), or wait until they have\n"
    "                  closed; then each free is reported\n"
    "  --unit BYTES    what lengths are multiples of, 16384; 2097152: the driver has a block of its own for each "
    "allocation\n"
    "The last line: soak: N rounds, N bytes verified, N stale, N open handles left. Exit: 0 no stale byte and no "
    "handle\n"
    "left; 1 otherwise; 2 usage; 77 no driver here, or not that kind.\n";

bool fail(const char* what, const char* value, int* exit_out) {
  std::fprintf(stderr, "soak: %s%s\n%s", what, value, kUsage);
  *exit_out = 2;
  return false;
}

bool number(const char* text, uint64_t least, uint64_t most, uint64_t* out) {
  char* end = nullptr;
  *out = std::strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0' && *out >= least && *out <= most;
}

bool kind_of(const char* text, Kind* kind_out) {
  const char* const names[] = {"ipc", "vmm", "pool"};
  for (const Kind kind : {Kind::ipc, Kind::vmm, Kind::pool}) {
    if (std::strcmp(text, names[static_cast<int>(kind)]) != 0) continue;
    *kind_out = kind;
    return true;
  }
  return false;
}

}  // namespace

bool read_options(int argc, char** argv, SoakOptions* options, int* exit_out) {
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    uint64_t value = 0;
    if (std::strcmp(name, "--help") == 0) {
      std::fputs(kUsage, stdout);
      *exit_out = 0;
      return false;
    }
    if (std::strcmp(name, "--double") == 0) {
      options->is_double = true;
      continue;
    }
    const char* text = i + 1 < argc ? argv[++i] : "";
    if (std::strcmp(name, "--mode") == 0) {
      if (!number(text, 1, 4, &value)) return fail("--mode is 1, 2, 3 or 4, not ", text, exit_out);
      options->mode = static_cast<int>(value);
    } else if (std::strcmp(name, "--rounds") == 0) {
      if (!number(text, 1, UINT32_MAX, &value)) return fail("--rounds is a number from 1 on, not ", text, exit_out);
      options->rounds = value;
    } else if (std::strcmp(name, "--unit") == 0) {
      if (!number(text, 16384, 1 << 30, &value) || value % 16384 != 0) {
        return fail("--unit is a multiple of 16384 up to 1 GiB, not ", text, exit_out);
      }
      options->unit = value;
    } else if (std::strcmp(name, "--kind") == 0) {
      if (!kind_of(text, &options->kind)) return fail("--kind is ipc, vmm or pool, not ", text, exit_out);
      options->kind_name = text;
    } else if (std::strcmp(name, "--monitor") == 0) {
      if (*text == '\0') return fail("--monitor lacks its value", "", exit_out);
      options->monitor = text;
    } else if (std::strcmp(name, "--free") == 0) {
      if (std::strcmp(text, "notify") != 0 && std::strcmp(text, "defer") != 0) {
        return fail("--free is notify or defer, not ", text, exit_out);
      }
      options->free = text;
    } else {
      return fail("unknown option ", name, exit_out);
    }
  }
  return true;
}

}  // namespace pinrail::gpu_test
