// SPDX-License-Identifier: BSD-3-Clause
// Another party puts bytes of a patched function back: a kernel probe that ends writes the first byte of the file. What
// is left of our jump is no code. And it sets breakpoints, which are its own. Each test runs in a child: its libc is
// written to.
#include <fcntl.h>
#include <link.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <ucontext.h>

#include <csignal>
#include <fstream>

#include "config.h"
#include "test/monitor/patcher_host.h"
#include "test/support/cases.h"

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

namespace pinrail::test {
namespace {

constexpr size_t kCode = 512;
constexpr size_t kJump = 5;

// The library that holds a function, the function's place in it and its first bytes there.
struct InFile {
  std::string path;
  uint64_t offset = 0;
  std::vector<uint8_t> bytes;
};
InFile in_file(uintptr_t function) {
  InFile place;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, offset = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx", &begin, &end, &offset) != 3 || function < begin || function >= end)
      continue;
    place.path = line.substr(line.find('/'));
    place.offset = offset + (function - begin);
  }
  std::ifstream file(place.path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place.offset));
  place.bytes.resize(kCode);
  file.read(reinterpret_cast<char*>(place.bytes.data()), kCode);
  return place;
}

// Where the patched function's jumps are: the bytes there are others than in the file. The function is as long as its
// symbol says.
std::vector<size_t> jumps_in(const char* name) {
  const uintptr_t function = libc_function(name);
  const std::vector<uint8_t> file = in_file(function).bytes;
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  std::vector<size_t> jumps;
  if (dladdr1(at(function), &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0) return jumps;
  for (size_t i = 0; i < std::min(size_t{symbol->st_size}, kCode); ++i) {
    if (static_cast<const uint8_t*>(at(function))[i] == file[i]) continue;
    jumps.push_back(i);
    i += kJump - 1;
  }
  return jumps;
}

// Puts bytes of the file back over those of each jump, as a probe does with the first one. What they are is found out
// before any is written, because the functions that find out may be the ones that are torn.
void put_back(const std::vector<const char*>& names, size_t first, size_t count) {
  std::vector<std::pair<uintptr_t, std::vector<uint8_t>>> all;
  for (const char* name : names) {
    const std::vector<uint8_t> bytes = in_file(libc_function(name)).bytes;
    for (const size_t jump : jumps_in(name)) {
      const auto begin = bytes.begin() + static_cast<ptrdiff_t>(jump + first);
      all.emplace_back(libc_function(name) + jump + first,
                       std::vector<uint8_t>(begin, begin + static_cast<ptrdiff_t>(count)));
    }
  }
  for (const auto& [at, bytes] : all) write_code(at, bytes);
}

bool unmap_is_seen(Patcher* patcher) {
  const uintptr_t base = marked_pages(1);
  patcher->recorder.clear();
  return munmap(at(base), kPageBytes) == 0 && came_first(*patcher, base, kPageBytes);
}

const std::vector<const char*> kPatched = {"munmap",   "mmap",  "mremap",    "madvise",   "brk",
                                           "shmdt",    "shmat", "fallocate", "ftruncate", "truncate",
                                           "mprotect", "open",  "openat",    "creat",     "syscall"};

// All functions work and are seen again; nothing is torn.
ChildAnswer torn_and_checked(size_t first, size_t count) {
  Patcher patcher;
  put_back(kPatched, first, count);
  patcher.recorder.clear();
  const pinrail_status_t checked = patcher.check();
  bool gave_up = false;
  for (const Report& report : patcher.recorder.reports())
    gave_up = gave_up || (report.base == 0 && report.length > kPageBytes);
  const bool is_seen = unmap_is_seen(&patcher);
  patcher.recorder.clear();
  const pinrail_status_t again = patcher.check();
  return {checked,
          is_seen,
          again,
          static_cast<int64_t>(patcher.recorder.reports().size()),
          gave_up,
          patcher.missing_topics().empty(),
          static_cast<int64_t>(patcher.sees() & PINRAIL_EVENT_UNMAP)};
}

TEST(PatcherTorn, bytes_of_the_file_are_put_back_in_each_function_and_all_work_again) {
  for (const size_t count : {1, 3, 5, 8}) {
    SCOPED_TRACE(count);
    const ChildAnswer answer = answer_of([count] { return torn_and_checked(0, count); });
    EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, PINRAIL_SUCCESS, 0, 1, 1, PINRAIL_EVENT_UNMAP}));
  }
}

TEST(PatcherTorn, bytes_in_the_midst_of_the_jump_are_put_back) {
  const ChildAnswer answer = answer_of([] { return torn_and_checked(2, 2); });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, PINRAIL_SUCCESS, 0, 1, 1, PINRAIL_EVENT_UNMAP}));
}

// However often: no other library contends for the place.
TEST(PatcherTorn, a_probe_that_comes_and_goes_ends_no_caching) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher;
    ChildAnswer said{};
    for (int i = 0; i < 20; ++i) {
      put_back({"munmap"}, 0, 1);
      said[0] += patcher.check() == PINRAIL_SUCCESS && unmap_is_seen(&patcher) ? 1 : 0;
    }
    said[1] = blind_count.load();
    return said;
  });
  EXPECT_EQ(answer, (ChildAnswer{20, 0}));
}

// The monitor that ended its life without anybody who checks finds it when it starts again.
TEST(PatcherTorn, what_was_torn_between_stop_and_start_is_whole_again) {
  const ChildAnswer answer = answer_of([] {
    { Patcher first; }
    put_back({"munmap"}, 0, 1);
    Patcher patcher;
    return ChildAnswer{patcher.status, unmap_is_seen(&patcher), static_cast<int64_t>(patcher.said().size())};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 0}));
}

// As the kernel does for a probe: runs the file's instruction, mov $11, %eax, in place of what stands there.
void run_the_files_instruction(int, siginfo_t*, void* context) {
  auto* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RAX] = SYS_munmap;
  registers[REG_RIP] += 4;
}

TEST(PatcherTorn, a_breakpoint_is_left_alone_and_what_it_hides_is_not_seen_until_it_is_gone) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher;
    struct sigaction action {};
    action.sa_sigaction = run_the_files_instruction;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, nullptr);
    const uintptr_t jump = libc_function("munmap") + jumps_in("munmap").front();
    const auto* const code = static_cast<const volatile uint8_t*>(at(jump));
    const uint8_t before = code[0];
    write_code(jump, {0xcc});
    const pinrail_status_t checked = patcher.check();
    const bool is_left = code[0] == 0xcc;
    const int64_t sees = patcher.sees() & (PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_DONTNEED);
    patcher.recorder.clear();
    patcher.check();  // is not tried again
    const auto tries = static_cast<int64_t>(patcher.recorder.reports().size());
    write_code(jump, {before});
    patcher.check();
    return ChildAnswer{checked,
                       is_left,
                       sees,
                       tries,
                       static_cast<int64_t>(patcher.sees() & PINRAIL_EVENT_UNMAP),
                       unmap_is_seen(&patcher),
                       blind_count.load()};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, PINRAIL_EVENT_DONTNEED, 0, PINRAIL_EVENT_UNMAP, 1, 2}));
}

// A real probe of the kernel on munmap of this process. -1: the kernel or this user has none.
int attach_probe(const char* name) {
  int type = -1;
  std::ifstream("/sys/bus/event_source/devices/uprobe/type") >> type;
  const InFile place = in_file(libc_function(name));
  const std::vector<size_t> jumps = jumps_in(name);
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = static_cast<uint32_t>(type);
  attributes.config1 = reinterpret_cast<uintptr_t>(place.path.c_str());
  attributes.config2 = place.offset + (jumps.empty() ? 0 : jumps.front());
  if (type < 0) return -1;
  return static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0L, -1L, -1L, 0L));
}

TEST(PatcherTorn, a_probe_of_the_kernel_on_a_running_process) {
  const int trial = attach_probe("munmap");
  if (trial < 0) GTEST_SKIP() << "no uprobe can be placed here: " << std::strerror(errno);
  close(trial);
  const ChildAnswer answer = answer_of([] {
    Patcher patcher;
    const int probe = attach_probe("munmap");
    const pinrail_status_t while_there = patcher.check();
    const int64_t sees = patcher.sees() & PINRAIL_EVENT_UNMAP;
    const bool works = munmap(at(marked_pages(1)), kPageBytes) == 0;
    ioctl(probe, PERF_EVENT_IOC_DISABLE, 0);
    close(probe);
    const bool is_torn = munmap(at(marked_pages(1)), kPageBytes) != 0;
    const pinrail_status_t checked = patcher.check();
    return ChildAnswer{while_there,
                       sees,
                       works,
                       is_torn,
                       checked,
                       static_cast<int64_t>(patcher.sees() & PINRAIL_EVENT_UNMAP),
                       unmap_is_seen(&patcher)};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 0, 1, 1, PINRAIL_SUCCESS, PINRAIL_EVENT_UNMAP, 1}));
}

}  // namespace
}  // namespace pinrail::test

#else

TEST(PatcherTorn, is_for_machines_whose_instructions_have_bytes) { GTEST_SKIP() << "x86-64 Linux alone"; }

#endif
