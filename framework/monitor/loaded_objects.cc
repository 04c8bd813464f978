// SPDX-License-Identifier: BSD-3-Clause
// Reads symbol tables of loaded objects. API context. dl_iterate_phdr() holds a lock that keeps the objects loaded; it
// is not the one under which constructors run.
#include "framework/monitor/loaded_objects.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "base/core/calling_thread.h"

namespace pinrail::monitor {
namespace {

template <typename T>
const T* pointer(uintptr_t address) {
  return reinterpret_cast<const T*>(address);  // NOLINT(performance-no-int-to-ptr): an address from the loader
}

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name != 0; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

}  // namespace

// The dynamic section's addresses are absolute with some loaders, and relative to the object with others.
LoadedObject::LoadedObject(const dl_phdr_info& info)
    : info_(info), path_(info.dlpi_name != nullptr ? info.dlpi_name : ""), base_(info.dlpi_addr) {
  const ElfW(Dyn)* dynamic = nullptr;
  for (size_t i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info.dlpi_phdr[i];
    const uintptr_t at = base_ + segment.p_vaddr;
    if (segment.p_type == PT_DYNAMIC) dynamic = pointer<ElfW(Dyn)>(at);
    if (segment.p_type != PT_LOAD) continue;
    begin_ = std::min(begin_, at);
    end_ = std::max(end_, at + segment.p_memsz);
  }
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    const uintptr_t value = dynamic->d_un.d_ptr;
    const uintptr_t at = holds(value) ? value : base_ + value;
    if (dynamic->d_tag == DT_SYMTAB) symbols_ = pointer<ElfW(Sym)>(at);
    if (dynamic->d_tag == DT_STRTAB) names_ = pointer<char>(at);
    if (dynamic->d_tag == DT_GNU_HASH) gnu_hash_ = pointer<uint32_t>(at);
    if (dynamic->d_tag == DT_HASH) hash_ = pointer<uint32_t>(at);
  }
}

bool LoadedObject::is_called(const ElfW(Sym) & symbol, const char* name) const {
  return symbol.st_shndx != SHN_UNDEF && std::strcmp(names_ + symbol.st_name, name) == 0;
}

// Layout of the GNU hash table: number of buckets, first symbol, number of filter words, filter shift, filter,
// buckets, chains. A chain ends with a hash whose lowest bit is set.
const ElfW(Sym) * LoadedObject::find_by_hash(const char* name) const {
  const uint32_t hash = gnu_hash_of(name);
  const uint32_t bucket_count = gnu_hash_[0], first = gnu_hash_[1], filter_words = gnu_hash_[2];
  if (bucket_count == 0) return nullptr;
  const uint32_t* const buckets = gnu_hash_ + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* const chains = buckets + bucket_count;
  for (uint32_t at = buckets[hash % bucket_count]; at >= first; ++at) {
    const uint32_t entry = chains[at - first];
    if ((entry | 1) == (hash | 1) && is_called(symbols_[at], name)) return &symbols_[at];
    if ((entry & 1) != 0) return nullptr;
  }
  return nullptr;
}

const ElfW(Sym) * LoadedObject::find(const char* name) const {
  if (symbols_ == nullptr || names_ == nullptr) return nullptr;
  if (gnu_hash_ != nullptr) return find_by_hash(name);
  const uint32_t count = hash_ != nullptr ? hash_[1] : 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (is_called(symbols_[i], name)) return &symbols_[i];
  }
  return nullptr;
}

// Whether visit(bytes, length, flags) returns true for a segment of the type.
template <typename Visit>
bool LoadedObject::any_segment(uint32_t type, Visit visit) const {
  for (size_t i = 0; i < info_.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info_.dlpi_phdr[i];
    if (segment.p_type == type && visit(pointer<uint8_t>(base_ + segment.p_vaddr), segment.p_filesz, segment.p_flags))
      return true;
  }
  return false;
}

// The owner's name stands behind the note's type, which is a small number, and ends with a byte that fills the word up.
bool LoadedObject::has_note_of_go() const {
  return any_segment(PT_NOTE, [](const uint8_t* bytes, size_t length, uint32_t) {
    constexpr char kOwner[] = {0, 0, 0, 'G', 'o', 0, 0};
    return memmem(bytes, length, kOwner, sizeof(kOwner)) != nullptr;
  });
}

namespace {

#ifdef __x86_64__
constexpr uint8_t kCall[] = {0x0f, 0x05};  // syscall
constexpr size_t kStep = 1, kNumberLength = 5;

// mov $number, %eax
bool loads(const uint8_t* at, int number) {
  const uint8_t code[kNumberLength] = {0xb8, static_cast<uint8_t>(number), static_cast<uint8_t>(number >> 8), 0, 0};
  return std::memcmp(at, code, sizeof(code)) == 0;
}
#else
constexpr uint8_t kCall[] = {0x01, 0x00, 0x00, 0xd4};  // svc #0
constexpr size_t kStep = 4, kNumberLength = 4;

// mov x8, #number, or w8
bool loads(const uint8_t* at, int number) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return (word & 0x7fffffff) == (0x52800008 | static_cast<uint32_t>(number) << 5);
}
#endif

// Whether a number is loaded at most kBefore bytes in front of the instruction at `call`.
bool loads_before(const uint8_t* begin, const uint8_t* call, std::initializer_list<int> numbers) {
  constexpr ptrdiff_t kBefore = 40;
  const uint8_t* const first = call - begin > kBefore ? call - kBefore : begin;
  for (const uint8_t* at = first; at + kNumberLength <= call; at += kStep) {
    if (std::any_of(numbers.begin(), numbers.end(), [at](int number) { return loads(at, number); })) return true;
  }
  return false;
}

bool makes_call_in(const uint8_t* bytes, size_t length, std::initializer_list<int> numbers) {
  const uint8_t* const end = bytes + length;
  for (const uint8_t* at = bytes; at < end;) {
    const auto* const call =
        static_cast<const uint8_t*>(memmem(at, static_cast<size_t>(end - at), kCall, sizeof(kCall)));
    if (call == nullptr) return false;
    if (loads_before(bytes, call, numbers)) return true;
    at = call + 1;
  }
  return false;
}

}  // namespace

bool LoadedObject::makes_call(std::initializer_list<int> numbers) const {
  return any_segment(PT_LOAD, [numbers](const uint8_t* bytes, size_t length, uint32_t flags) {
    const bool is_read = (flags & PF_X) != 0 && (flags & PF_R) != 0 && length <= kMostCode;
    return is_read && makes_call_in(bytes, length, numbers);
  });
}

// The address of a function that the object defines and exports; 0: none.
uintptr_t LoadedObject::function(const char* name) const {
  const ElfW(Sym)* const symbol = find(name);
  return symbol != nullptr && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC ? base_ + symbol->st_value : 0;
}

namespace {

// The thread that is in such a call, and the one that forks. One word, because a signal handler may fork at any moment.
std::atomic<pthread_t> holder{};
std::atomic<bool> is_fork{false};  // the holder forks

bool take() {
  pthread_t none{};
  return holder.compare_exchange_strong(none, pthread_self());
}

}  // namespace

// A handler of pthread_atfork may be inside its thread's own fork.
LoaderCall::LoaderCall() : entered_(take()) {}

LoaderCall::~LoaderCall() {
  if (entered_) holder.store(pthread_t{});
}

// The calls take some ten microseconds.
void before_fork() {
  constexpr useconds_t kNap = 50;
  if (holder.load() == pthread_self()) return;
  const NoCancel no_cancel;  // usleep() is a cancellation point, and fork() is none
  while (!take()) usleep(kNap);
  is_fork.store(true);
}

void after_fork() {
  if (holder.load() != pthread_self() || !is_fork.load()) return;
  is_fork.store(false);
  holder.store(pthread_t{});
}

void fork_reinit_loader_calls() {
  is_fork.store(false);
  holder.store(pthread_t{});
}

}  // namespace pinrail::monitor
