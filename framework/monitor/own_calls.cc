// SPDX-License-Identifier: BSD-3-Clause
// Finds allocators that return memory by raw system calls. find_raw_callers() runs at start-up, the rest in API
// context; the callers hold no lock.
#include "framework/monitor/own_calls.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "framework/monitor/loaded_objects.h"
#include "framework/monitor/monitor.h"

namespace pinrail::monitor {
namespace {

constexpr size_t kPage = 4096;

struct NamedFunction {
  const char* function;
  const char* what;
};
constexpr NamedFunction kSanitizers[] = {{"__asan_init", "AddressSanitizer"}, {"__hwasan_init", "HWAddressSanitizer"},
                                         {"__tsan_init", "ThreadSanitizer"},  {"__msan_init", "MemorySanitizer"},
                                         {"__lsan_init", "LeakSanitizer"},    {"_vgnU_freeres", "valgrind"}};

// The names of allocators that libraries provide beside the process's malloc, or instead of it.
struct AllocatorNames {
  const char *allocate, *free_block;
};
constexpr AllocatorNames kAllocators[] = {{"malloc", "free"},
                                          {"mi_malloc", "mi_free"},
                                          {"je_malloc", "je_free"},
                                          {"tc_malloc", "tc_free"},
                                          {"scalable_malloc", "scalable_free"}};

using AllocateFunction = void* (*)(size_t);
using FreeFunction = void (*)(void*);

constexpr size_t kMaxAllocators = 16;

struct Allocator {
  uintptr_t allocate, free_block;  // the functions
  ObjectPath path;                 // empty: the program
};

// No allocation happens while objects are visited: an allocator might visit them too while it holds its own lock.
void copy_path(const LoadedObject& object, ObjectPath* path_out) {
  std::strncpy(path_out->text, object.path(), ObjectPath::kRoom - 1);
}

// Whether the object is the C library, whose allocator uses its own functions, or the loader, which returns nothing.
bool is_system_object(const LoadedObject& object) {
  return object.holds(reinterpret_cast<uintptr_t>(&getauxval)) || object.base() == getauxval(AT_BASE);
}

// NULL: none.
const char* sanitizer_in(const LoadedObject& object) {
  for (const NamedFunction& each : kSanitizers) {
    if (object.function(each.function) != 0) return each.what;
  }
  return nullptr;
}

bool has_allocator(const LoadedObject& object) {
  if (is_system_object(object)) return false;
  return sanitizer_in(object) != nullptr || object.has_note_of_go() ||
         std::any_of(std::begin(kAllocators), std::end(kAllocators), [&](const AllocatorNames& pair) {
           return object.function(pair.allocate) != 0 && object.function(pair.free_block) != 0;
         });
}

const char* find_sanitizer() {
  const char* found = nullptr;
  for_each_object([&found](const LoadedObject& object) {
    found = sanitizer_in(object);
    if (object.has_note_of_go()) found = "the Go runtime";
    return found == nullptr;
  });
  return found;
}

// A library with an allocator whose code makes such calls itself. It may return memory only after much use, so that its
// trial shows nothing. Other objects (liburing, the program, this library) may unmap only what is their own.
std::string find_raw_code() {
  ObjectPath found;
  for_each_object([&found](const LoadedObject& object) {
    const bool is_own = object.holds(reinterpret_cast<uintptr_t>(&find_raw_callers));
    const bool is_asked = object.path()[0] != 0 && !is_own && has_allocator(object);
    if (is_asked && object.makes_call({SYS_munmap, SYS_madvise, SYS_mremap})) copy_path(object, &found);
    return found.text[0] == 0;
  });
  return found.text[0] != 0 ? std::string("the code of ") + found.text : "";
}

// Finds allocators in objects other than the one that defines the process's malloc.
std::vector<Allocator> find_other_allocators() {
  std::vector<Allocator> found;
  found.reserve(kMaxAllocators);
  const auto used = reinterpret_cast<uintptr_t>(&malloc);
  for_each_object([&found, used](const LoadedObject& object) {
    if (is_system_object(object) || object.holds(used)) return true;
    for (const AllocatorNames& pair : kAllocators) {
      const uintptr_t allocate = object.function(pair.allocate), free_block = object.function(pair.free_block);
      if (allocate == 0 || free_block == 0 || found.size() == kMaxAllocators) continue;
      found.push_back({allocate, free_block, {}});
      copy_path(object, &found.back().path);
    }
    return true;
  });
  return found;
}

// Whether the page is unmapped or was dropped. The caller has written to it just before.
bool is_unmapped_or_dropped(uintptr_t page) {
  unsigned char is_there = 1;
  const long status = syscall(SYS_mincore, page, kPage, &is_there);
  return status != 0 ? errno == ENOMEM : (is_there & 1) == 0;
}

// Calls give_back() and returns whether the block's memory is gone although no event was reported.
template <typename GiveBack>
bool bypasses_monitors(OwnCallsProbe* probe, void* block, size_t length, GiveBack give_back) {
  if (block == nullptr || block == MAP_FAILED) return false;
  const uintptr_t base = (reinterpret_cast<uintptr_t>(block) + kPage - 1) & ~(kPage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(block) + length) & ~(kPage - 1);
  const uintptr_t middle = (base + (end - base) / 2) & ~(kPage - 1);
  *reinterpret_cast<volatile char*>(middle) = 1;  // NOLINT(performance-no-int-to-ptr): of the block
  probe->is_reported.store(false);
  probe->base.store(base);
  probe->end.store(end);
  give_back();
  const bool gone = is_unmapped_or_dropped(middle);
  probe->end.store(0);
  return gone && !probe->is_reported.load();
}

// The first size is one that the C library serves by mmap; larger blocks would raise its threshold for that.
bool malloc_bypasses_monitors(OwnCallsProbe* probe, AllocateFunction volatile allocate,
                              FreeFunction volatile free_block, bool is_of_system) {
  for (const size_t length :
       {size_t{144} << 10, size_t{512} << 10, size_t{1} << 20, size_t{8} << 20, size_t{64} << 20}) {
    void* const block = allocate(length);
    if (bypasses_monitors(probe, block, length, [free_block, block] { free_block(block); })) return true;
    if (is_of_system) break;  // NOLINT(clang-analyzer-unix.Malloc): free_block() has freed it
  }
  return false;
}

// Tries madvise and munmap as the program calls them, also if another object interposes them.
bool mapping_calls_bypass_monitors(OwnCallsProbe* probe) {
  constexpr size_t kLength = 4 * kPage;
  const OwnPages own(kLength);
  void* const dropped = own.at();
  const bool drop = bypasses_monitors(probe, dropped, kLength, [dropped] { madvise(dropped, kLength, MADV_DONTNEED); });
  void* const unmapped = mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return drop || bypasses_monitors(probe, unmapped, kLength, [unmapped] { munmap(unmapped, kLength); });
}

bool is_of_system(uintptr_t used) {
  bool is_system = false;
  for_each_object([&is_system, used](const LoadedObject& object) {
    if (object.holds(used)) is_system = is_system_object(object);
    return !object.holds(used);
  });
  return is_system;
}

// Tries the allocator of an object, which stays loaded during the trial. False also if it was unloaded already.
bool allocator_bypasses_monitors(OwnCallsProbe* probe, const Allocator& allocator) {
  void* const handle = dlopen(allocator.path.text[0] == 0 ? nullptr : allocator.path.text, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of a function
  auto* const allocate = reinterpret_cast<AllocateFunction>(allocator.allocate);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
  auto* const free_block = reinterpret_cast<FreeFunction>(allocator.free_block);
  const bool unseen = malloc_bypasses_monitors(probe, allocate, free_block, false);
  dlclose(handle);
  return unseen;
}

std::string raw_calls_text(const std::string& who) { return who + " gives memory back past the C library"; }

// Returns a sentence about the first allocator that goes unseen; empty: none. The C library's own munmap goes unseen
// only where it could not be patched.
std::string try_allocators(OwnCallsProbe* probe) {
  if (mapping_calls_bypass_monitors(probe)) {
    return is_of_system(reinterpret_cast<uintptr_t>(&munmap)) ? "no monitor here sees what the C library unmaps"
                                                              : raw_calls_text("the program's munmap");
  }
  const bool is_malloc_of_system = is_of_system(reinterpret_cast<uintptr_t>(&malloc));
  if (malloc_bypasses_monitors(probe, malloc, std::free, is_malloc_of_system))
    return raw_calls_text("the program's malloc");
  for (const Allocator& allocator : find_other_allocators()) {
    if (allocator_bypasses_monitors(probe, allocator))
      return raw_calls_text(std::string("the allocator of ") + allocator.path.text);
  }
  return "";
}

}  // namespace

std::string find_raw_callers() {
  if (const char* const sanitizer = find_sanitizer()) return raw_calls_text(sanitizer);
  if (const std::string code = find_raw_code(); !code.empty()) return raw_calls_text(code);
  OwnCallsProbe probe;
  void* subscription;
  if (!subscribe(PINRAIL_KIND_HOST, OwnCallsProbe::report_hook, &probe, &subscription).ok()) return "";
  const auto end = [](void* own) { unsubscribe(own); };
  const std::unique_ptr<void, decltype(end)> subscribed(subscription, end);  // the trial may throw
  return try_allocators(&probe);
}

// Pages that the kernel has swapped out are mapped still.
bool LateTrial::was_unmapped_unseen() const {
  for (const Block& block : blocks_) {
    const uintptr_t page = block.page.load();
    unsigned char is_there = 0;
    const bool is_unmapped = page != 0 && syscall(SYS_mincore, page, kPage, &is_there) != 0 && errno == ENOMEM;
    if (is_unmapped && !block.is_reported.load()) return true;
  }
  return false;
}

void LateTrial::free_blocks() {
  size_t length = size_t{256} << 10;
  for (Block& block : blocks_) {
    void* const memory = malloc(length);
    block.page.store(memory == nullptr ? 0 : (reinterpret_cast<uintptr_t>(memory) + length / 2) & ~(kPage - 1));
    block.is_reported.store(false);
    std::free(memory);
    length *= 4;
  }
}

bool LateTrial::finds_raw_calls() {
  if (is_of_system(reinterpret_cast<uintptr_t>(&malloc))) return false;
  if (subscription_ == nullptr) subscribe(PINRAIL_KIND_HOST, report_hook, this, &subscription_).ignore();
  if (subscription_ == nullptr || was_unmapped_unseen()) return subscription_ != nullptr;
  free_blocks();
  return false;
}

void LateTrial::end() {
  if (subscription_ != nullptr) unsubscribe(subscription_);
  subscription_ = nullptr;
  for (Block& block : blocks_) block.page.store(0);
}

uint64_t count_loads() {
  uint64_t loads = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* loads_out) -> int {
        *static_cast<uint64_t*>(loads_out) = info->dlpi_adds;
        return 1;
      },
      &loads);
  return loads;
}

ObjectPath Allocators::find_new() {
  std::array<Known, kRoom> now{};
  size_t count = 0;
  ObjectPath came;
  for_each_object([this, &now, &count, &came](const LoadedObject& object) {
    if (!has_allocator(object)) return true;
    const Known own{object.base(), std::hash<std::string_view>()(object.path())};
    const auto known_end = known_.begin() + static_cast<ptrdiff_t>(count_);
    if (std::find(known_.begin(), known_end, own) == known_end) copy_path(object, &came);
    if (count < kRoom) now[count++] = own;
    return true;
  });
  known_ = now;
  count_ = count;
  return came;
}

// Reports on other threads do not count: a monitor with a thread of its own sees raw system calls too, and is not what
// the trial is about.
void OwnCallsProbe::report_hook(void* probe_pointer, uintptr_t base, size_t length) {
  auto* probe = static_cast<OwnCallsProbe*>(probe_pointer);
  if (pthread_equal(pthread_self(), probe->thread) == 0) return;
  if (base < probe->end.load() && base + length > probe->base.load()) probe->is_reported.store(true);
}

// Of any thread: an allocator may unmap on a thread of its own.
void LateTrial::report_hook(void* trial, uintptr_t base, size_t length) {
  for (Block& block : static_cast<LateTrial*>(trial)->blocks_) {
    const uintptr_t page = block.page.load();
    if (page >= base && page < base + length) block.is_reported.store(true);
  }
}

}  // namespace pinrail::monitor
