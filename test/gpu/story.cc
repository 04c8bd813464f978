// SPDX-License-Identifier: BSD-3-Clause
// story - what the driver does when memory that a peer has open is freed and its address given out again: 32 KiB freed,
// 64 KiB allocated, the old mapping still open; when two allocations are open at a time, and when one of them is
// closed; and whether an event of one process can be waited for in the other. Two processes; prints one JSON object.
// Errors are the driver's numbers, 0: none.
//   story [--double] [--large] [--peek] [--reset]
//   --double  the driver double      --large  4 MiB and 8 MiB: the driver takes what is small from a larger block
//   --peek    also reads through the mapping of what was freed, which CUDA leaves undefined: what comes after that may
//             be spoilt
//   --reset   also what the reset of the importer's device leaves of a mapping
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "test/gpu/driver.h"

using namespace pinrail::gpu_test;

namespace {

size_t first_bytes = size_t{32} << 10;  // the second one has twice as many
constexpr char kGo = 'g';

struct Told {
  CUdeviceptr base;
  CUipcMemHandle handle;
};

// Allocates, fills as that number, and tells; then waits until the importer has done its part.
bool show(const Driver& driver, int socket, uint64_t number, size_t bytes, Told* told) {
  std::vector<uint64_t> words;
  fill(&words, number, bytes);
  char go = 0;
  return driver.alloc(&told->base, bytes) == CUDA_SUCCESS && driver.put(told->base, words.data(), bytes) &&
         driver.get_handle(&told->handle, told->base) == CUDA_SUCCESS && send_all(socket, told, sizeof(*told)) &&
         receive_all(socket, &go, 1);
}

// An event that has been recorded, and how that went.
struct ToldEvent {
  CUipcEventHandle handle;
  CUresult result;
};

// Records one, shows it, and destroys it when the importer has waited for it.
bool show_event(const Driver& driver, int socket) {
  constexpr unsigned kFlags = unsigned{CU_EVENT_INTERPROCESS} | unsigned{CU_EVENT_DISABLE_TIMING};
  ToldEvent told{};
  CUevent event = nullptr;
  char go = 0;
  told.result = driver.has_events ? driver.create_event(&event, kFlags) : CUDA_ERROR_NOT_SUPPORTED;
  if (told.result == CUDA_SUCCESS) told.result = driver.get_event_handle(&told.handle, event);
  if (told.result == CUDA_SUCCESS) told.result = driver.record(event, nullptr);
  if (!send_all(socket, &told, sizeof(told)) || !receive_all(socket, &go, 1)) return false;
  return event == nullptr || driver.destroy_event(event) == CUDA_SUCCESS;
}

// Waits for the exporter's; the object's part of it. An error before the wait is that of all that follows.
bool try_event(const Driver& driver, int socket) {
  ToldEvent told{};
  CUevent event = nullptr;
  if (!receive_all(socket, &told, sizeof(told))) return false;
  const CUresult opened = told.result == CUDA_SUCCESS ? driver.open_event(&event, told.handle) : told.result;
  CUresult waited = opened == CUDA_SUCCESS ? driver.wait_for(nullptr, event, 0) : opened;
  if (waited == CUDA_SUCCESS) waited = driver.synchronise();
  const CUresult destroyed = opened == CUDA_SUCCESS ? driver.destroy_event(event) : opened;
  std::printf("\"record_event\": %d, \"open_event\": %d, \"wait_for_event\": %d, \"destroy_event\": %d, ", told.result,
              opened, waited, destroyed);
  return send_all(socket, &kGo, 1);
}

int tell(const Driver& driver, int socket) {
  const char* why = "";
  Told first{}, second{}, third{};
  if (!driver.start(&why)) return 77;
  const bool well = show_event(driver, socket) && show(driver, socket, 1, first_bytes, &first) &&
                    driver.free(first.base) == CUDA_SUCCESS && show(driver, socket, 2, 2 * first_bytes, &second) &&
                    show(driver, socket, 3, first_bytes, &third) && driver.free(second.base) == CUDA_SUCCESS &&
                    driver.free(third.base) == CUDA_SUCCESS;
  return well ? 0 : 1;
}

// A mapping of the exporter's memory, and how opening it went.
struct Mapping {
  Mapping(const Driver& with, const Told& told) : driver(with) {
    result = driver.open(&at, told.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  ~Mapping() { close(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  CUresult close() {
    const CUresult closed = result == CUDA_SUCCESS && !gone ? driver.close(at) : CUDA_SUCCESS;
    gone = true;
    return closed;
  }
  // Which of the three is seen there; 0: none of them, -1: it cannot be read.
  int shows() const {
    std::vector<uint64_t> words(first_bytes / sizeof(uint64_t));
    if (result != CUDA_SUCCESS || driver.read(words.data(), at, first_bytes) != CUDA_SUCCESS) return -1;
    for (int number = 1; number <= 3; ++number) {
      if (strangers(words, static_cast<uint64_t>(number), 0) == 0) return number;
    }
    return 0;
  }
  const Driver& driver;
  CUdeviceptr at = 0;
  CUresult result;
  bool gone = false;
};

// Of what is mapped there; 0: there is nothing, or the driver does not say.
unsigned long long id_at(const Driver& driver, CUdeviceptr at) {
  unsigned long long id = 0;
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  void* value = &id;
  return driver.attributes(1, &name, &value, at) == CUDA_SUCCESS ? id : 0;
}

// What the reset of the device leaves of a mapping and of the context that is current; the object's part of it.
void try_reset(const Driver& driver, const Told& told) {
  if (!driver.has_reset) return;
  CUcontext before = nullptr, after = nullptr;
  CUdeviceptr own = 0;
  Mapping old_one(driver, told);
  driver.current(&before);
  std::printf("\"id_of_a_mapping\": %llu, \"id_of_it_again\": %llu, ", id_at(driver, old_one.at),
              id_at(driver, old_one.at));
  const CUresult done = driver.reset(0), refused = driver.alloc(&own, first_bytes), retained = driver.retain(&after, 0);
  old_one.gone = done == CUDA_SUCCESS;
  std::printf("\"reset\": %d, \"alloc_after_it\": %d, \"retain_after_it\": %d, \"the_same_context\": %s, ", done,
              refused, retained, text_of(before == after));
  std::printf("\"id_where_it_was\": %llu, ", id_at(driver, old_one.at));
  Mapping new_one(driver, told);
  std::printf(
      "\"open_after_reset\": %d, \"at_the_same_address\": %s, \"id_of_that\": %llu, \"shows_after_reset\": %d, ",
      new_one.result, text_of(new_one.at == old_one.at), id_at(driver, new_one.at), new_one.shows());
  std::printf("\"close_after_reset\": %d, ", new_one.close());
}

int listen(const Driver& driver, int socket, bool peek, bool with_reset) {
  const char* why = "";
  Told first{}, second{}, third{};
  if (!driver.start(&why)) return 77;
  std::printf("{");
  if (!try_event(driver, socket) || !receive_all(socket, &first, sizeof(first))) return 1;
  Mapping old_one(driver, first);
  Mapping again(driver, first);
  std::printf("\"open\": %d, \"open_again\": %d, \"open_again_same_address\": %s, \"shows\": %d, ", old_one.result,
              again.result, text_of(again.at == old_one.at), old_one.shows());
  again.close();
  if (!send_all(socket, &kGo, 1) || !receive_all(socket, &second, sizeof(second))) return 1;
  Mapping too_early(driver, second);
  std::printf("\"second_has_the_same_base\": %s, \"open_second_while_first_is_open\": %d, ",
              text_of(first.base == second.base), too_early.result);
  if (too_early.result == CUDA_SUCCESS) std::printf("\"it_shows\": %d, ", too_early.shows());
  if (peek) std::printf("\"the_old_mapping_shows\": %d, ", old_one.shows());
  const CUresult closed_early = too_early.close();
  std::printf("\"close_first\": %d, \"close_that\": %d, ", old_one.close(), closed_early);
  {
    const Mapping dead(driver, first);
    std::printf("\"open_first_then\": %d, ", dead.result);
  }
  Mapping new_one(driver, second);
  std::printf("\"open_second_then\": %d, \"second_shows\": %d, ", new_one.result, new_one.shows());
  if (!send_all(socket, &kGo, 1) || !receive_all(socket, &third, sizeof(third))) return 1;
  Mapping neighbour(driver, third);
  std::printf(
      "\"neighbours_are_apart\": %lld, \"open_neighbour\": %d, \"neighbour_shows\": %d, \"second_shows_still\": %d, ",
      static_cast<long long>(third.base - second.base), neighbour.result, neighbour.shows(), new_one.shows());
  const CUresult closed_neighbour = neighbour.close();
  const int shows_alone = new_one.shows();
  std::printf("\"close_neighbour\": %d, \"second_shows_alone\": %d, \"close_second\": %d, ", closed_neighbour,
              shows_alone, new_one.close());
  if (with_reset) try_reset(driver, third);
  std::printf("\"done\": true}\n");
  return send_all(socket, &kGo, 1) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Driver driver;
  bool is_double = false, peek = false, with_reset = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--double") == 0) {
      is_double = true;
    } else if (std::strcmp(argv[i], "--peek") == 0) {
      peek = true;
    } else if (std::strcmp(argv[i], "--reset") == 0) {
      with_reset = true;
    } else if (std::strcmp(argv[i], "--large") == 0) {
      first_bytes = size_t{4} << 20;
    } else {
      std::fprintf(stderr, "story: unknown option %s\nusage: story [--double] [--large] [--peek] [--reset]\n", argv[i]);
      return 2;
    }
  }
  if (!driver.load("story", is_double)) return 77;
  const TwoProcesses both([&](int socket) { return tell(driver, socket); });  // before the driver is started
  const int code = listen(driver, both.socket(), peek, with_reset);
  return both.end(code);
}
