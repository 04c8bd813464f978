// SPDX-License-Identifier: BSD-3-Clause
// Each call that monitor/patcher hooks, while another thread registers the memory between the report and the act: what
// it got is stale then, and must not be found after the call. The other thread is led into that gap by a subscription
// that is served after all pools. PINRAIL_TEST_RACES: how many times each (20); "make race-soak" tries 100,000, which
// takes some ten minutes.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "components/monitor/patcher/patcher.h"
#include "config.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

#if PINRAIL_CAN_PATCH

constexpr size_t kLength = 4 * kPage;

int races() {
  const char* const asked = std::getenv("PINRAIL_TEST_RACES");  // NOLINT(concurrency-mt-unsafe): no thread runs yet
  return asked == nullptr ? 20 : std::atoi(asked);
}

void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

// What one round of a call works on.
struct Scene {
  uintptr_t base = 0;  // what goes away
  size_t length = kLength;
  uintptr_t more = 0;  // what else is mapped, for the call or to be given back
  size_t more_length = 0;
  int fd = -1;
  void* object = nullptr;
};

uintptr_t map(int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1, size_t length = kLength) {
  void* const got = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
  return got == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(got);
}

Scene private_memory() { return {map()}; }
Scene shared_memory() { return {map(MAP_SHARED | MAP_ANONYMOUS)}; }
Scene two_mappings() { return {map(), kLength, map(), kLength}; }
// The tail of a larger one.
Scene a_tail() {
  const uintptr_t base = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 2 * kLength);
  return {base + kLength, kLength, base, kLength};
}
Scene a_file() {
  Scene scene;
  scene.fd = static_cast<int>(syscall(SYS_memfd_create, "race", MFD_CLOEXEC));
  if (ftruncate(scene.fd, kLength) == 0) scene.base = map(MAP_SHARED, scene.fd);
  return scene;
}
// Two mappings of one file: what is removed through the one is removed from the other.
Scene two_views() {
  Scene scene = a_file();
  scene.more = map(MAP_SHARED, scene.fd);
  scene.more_length = kLength;
  return scene;
}
// Above the break; the heap may be in use, so the break only goes back to where it was.
Scene the_heap() {
  const auto now = reinterpret_cast<uintptr_t>(sbrk(0));
  const uintptr_t base = (now + kPage - 1) / kPage * kPage;
  if (brk(at(base + kLength)) != 0) return {};
  return {base, kLength};
}
Scene a_segment() {
  const int id = shmget(IPC_PRIVATE, kLength, IPC_CREAT | 0600);
  void* const got = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  if (id < 0 || got == reinterpret_cast<void*>(-1)) return {};
  return {reinterpret_cast<uintptr_t>(got), kLength};
}
// Another mapping lies where the segment begins.
Scene a_segment_without_its_start() {
  const Scene whole = a_segment();
  if (whole.base == 0) return {};
  if (mmap(at(whole.base), kPage, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
    return {};
  return {whole.base + kPage, kLength - kPage, whole.base, kPage};
}
// A page of data of an object that is loaded nowhere else: a copy, for the loader knows files by their number.
Scene an_object() {
  Scene scene;
  const std::string copy = testing::TempDir() + "race" + std::to_string(getpid()) + ".so";
  std::filesystem::copy_file(PINRAIL_TEST_BUILD "/test/monitor/dso/.libs/unloaded.so", copy,
                             std::filesystem::copy_options::overwrite_existing);
  scene.object = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove(copy);
  if (scene.object == nullptr) return scene;
  scene.base = reinterpret_cast<uintptr_t>(dlsym(scene.object, "data_of_an_object")) / kPage * kPage;
  scene.length = kPage;
  return scene;
}

bool advise_own_process(uintptr_t base, size_t length, int advice) {
  const int self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  const iovec list{at(base), length};
  using Advise = ssize_t (*)(int, const iovec*, size_t, int, unsigned);
  const auto advise = reinterpret_cast<Advise>(dlsym(RTLD_DEFAULT, "process_madvise"));
  const bool done = advise != nullptr ? advise(self, &list, 1, advice, 0) >= 0
                                      : syscall(SYS_process_madvise, self, &list, 1L, advice, 0L) >= 0;
  close(self);
  return done;
}

// Whether the page that `mark` was written to is another one now, or none.
constexpr unsigned char kMark = 7;
void mark(uintptr_t base) { *static_cast<volatile unsigned char*>(at(base)) = kMark; }
bool is_replaced(uintptr_t base) {
  unsigned char residence = 0;
  return mincore(at(base), kPage, &residence) != 0 || *static_cast<volatile unsigned char*>(at(base)) != kMark;
}

// A socket cannot be mapped. Most kernels find that out when they have already unmapped what was there.
bool fail_to_map_over(const Scene& scene) {
  mark(scene.base);
  const int unmappable = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  void* const got = mmap(at(scene.base), scene.length, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, unmappable, 0);
  close(unmappable);
  return got == MAP_FAILED && is_replaced(scene.base);
}

// The last page is another mapping, of a kind that does not move together with others. It is found too late.
bool fail_to_move_onto(const Scene& scene) {
  mark(scene.base);
  const int watch = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | 1));
  uffdio_api api{};
  api.api = UFFD_API;
  uffdio_register last{};
  last.range = {scene.more + scene.length - kPage, kPage};
  last.mode = UFFDIO_REGISTER_MODE_WP;
  bool done = ioctl_of(watch, UFFDIO_API, &api) == 0 && ioctl_of(watch, UFFDIO_REGISTER, &last) == 0;
  done = done && mremap(at(scene.more), scene.length, scene.length, MREMAP_MAYMOVE | MREMAP_FIXED, at(scene.base)) ==
                     MAP_FAILED;
  close(watch);
  return done && is_replaced(scene.base);
}

std::string path_of(const Scene& scene) { return "/proc/self/fd/" + std::to_string(scene.fd); }

bool truncate_by_path(const Scene& scene) { return truncate(path_of(scene).c_str(), 0) == 0; }

bool attach_over(const Scene& scene) {
  const int id = shmget(IPC_PRIVATE, kLength, IPC_CREAT | 0600);
  const bool done = shmat(id, at(scene.base), SHM_REMAP) == at(scene.base);
  shmctl(id, IPC_RMID, nullptr);
  return done;
}

struct Call {
  const char* name;
  const char* function;  // of patcher's table
  Scene (*prepare)();
  bool (*act)(const Scene& scene);  // false: this kernel cannot
};

constexpr Call kCalls[] = {
    {"munmap", "munmap", private_memory, [](const Scene& s) { return munmap(at(s.base), s.length) == 0; }},
    {"mmap over", "mmap", private_memory,
     [](const Scene& s) {
       return mmap(at(s.base), s.length, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at(s.base);
     }},
    {"mremap away", "mremap", two_mappings,
     [](const Scene& s) {
       return mremap(at(s.base), s.length, s.length, MREMAP_MAYMOVE | MREMAP_FIXED, at(s.more)) == at(s.more);
     }},
    {"mremap onto", "mremap", two_mappings,
     [](const Scene& s) {
       return mremap(at(s.more), s.length, s.length, MREMAP_MAYMOVE | MREMAP_FIXED, at(s.base)) == at(s.base);
     }},
    {"mmap over that fails", "mmap", private_memory, fail_to_map_over},
    {"mremap onto that fails", "mremap", two_mappings, fail_to_move_onto},
    {"mremap that shrinks", "mremap", a_tail,
     [](const Scene& s) { return mremap(at(s.more), 2 * kLength, kLength, 0) == at(s.more); }},
    {"mremap DONTUNMAP", "mremap", two_mappings,
     [](const Scene& s) {
       constexpr int kDontUnmap = 4;
       return mremap(at(s.base), s.length, s.length, MREMAP_MAYMOVE | MREMAP_FIXED | kDontUnmap, at(s.more)) !=
              MAP_FAILED;
     }},
    {"madvise DONTNEED", "madvise", private_memory,
     [](const Scene& s) { return madvise(at(s.base), s.length, MADV_DONTNEED) == 0; }},
    {"madvise REMOVE", "madvise", shared_memory,
     [](const Scene& s) { return madvise(at(s.base), s.length, MADV_REMOVE) == 0; }},
    {"madvise REMOVE of another mapping", "madvise", two_views,
     [](const Scene& s) { return madvise(at(s.more), s.length, MADV_REMOVE) == 0; }},
    {"process_madvise", "process_madvise", private_memory,
     [](const Scene& s) { return advise_own_process(s.base, s.length, MADV_DONTNEED); }},
    {"process_madvise REMOVE of another mapping", "process_madvise", two_views,
     [](const Scene& s) { return advise_own_process(s.more, s.length, MADV_REMOVE); }},
    {"remap_file_pages", "remap_file_pages", a_file,
     [](const Scene& s) { return remap_file_pages(at(s.base), kPage, 0, 1, 0) == 0; }},
    {"brk", "brk", the_heap, [](const Scene& s) { return brk(at(s.base)) == 0; }},
    {"shmdt", "shmdt", a_segment, [](const Scene& s) { return shmdt(at(s.base)) == 0; }},
    {"shmdt behind another mapping", "shmdt", a_segment_without_its_start,
     [](const Scene& s) { return shmdt(at(s.more)) == 0; }},
    {"shmat REMAP", "shmat", private_memory, attach_over},
    {"fallocate", "fallocate", a_file,
     [](const Scene& s) { return fallocate(s.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kLength) == 0; }},
    {"ftruncate", "ftruncate", a_file, [](const Scene& s) { return ftruncate(s.fd, 0) == 0; }},
    {"truncate", "truncate", a_file, truncate_by_path},
    {"open", "open", a_file,
     [](const Scene& s) { return close(open(path_of(s).c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC)) == 0; }},
    {"openat", "openat", a_file,
     [](const Scene& s) { return close(openat(AT_FDCWD, path_of(s).c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC)) == 0; }},
    {"fopen that is no cancellation point", "__open64_nocancel", a_file,
     [](const Scene& s) {
       std::FILE* const stream = std::fopen(path_of(s).c_str(), "wce");
       return stream != nullptr && std::fclose(stream) == 0;
     }},
    {"creat", "creat", a_file, [](const Scene& s) { return close(creat(path_of(s).c_str(), 0600)) == 0; }},
    {"syscall(munmap)", "syscall", private_memory,
     [](const Scene& s) { return syscall(SYS_munmap, s.base, s.length) == 0; }},
    {"syscall(mremap DONTUNMAP)", "syscall", two_mappings,
     [](const Scene& s) { return syscall(SYS_mremap, s.base, s.length, s.length, 7, s.more) != -1; }},
    {"syscall(brk)", "syscall", the_heap,
     [](const Scene& s) {
       const bool done = syscall(SYS_brk, s.base) == static_cast<long>(s.base);
       return brk(at(s.base)) == 0 && done;  // libc notes where it is
     }},
    {"dlclose", "munmap of the loader", an_object, [](const Scene& s) { return dlclose(s.object) == 0; }},
};

void give_back(const Scene& scene, bool is_heap) {
  if (!is_heap && scene.base != 0 && scene.object == nullptr) munmap(at(scene.base), scene.length);
  if (scene.more_length != 0) munmap(at(scene.more), scene.more_length);
  if (scene.fd >= 0) close(scene.fd);
}

// Registers a range when the first event that touches it has been told to all pools, and before its call goes on.
class Intruder {
 public:
  explicit Intruder(Pool* pool) : pool_(pool), thread_([this] { run(); }) {
    EXPECT_EQ(pinrail_monitor_subscribe(note_hook, this, &subscription_), PINRAIL_SUCCESS);
  }
  ~Intruder() {
    pinrail_monitor_unsubscribe(subscription_);
    state_ = kEnd;
    thread_.join();
  }
  Intruder(const Intruder&) = delete;
  Intruder& operator=(const Intruder&) = delete;

  void await(const Scene& scene) {
    base_ = scene.base;
    length_ = scene.length;
    kept_ = false;
    in_time_ = false;
    state_ = kWaits;
  }
  // Whether it came, and what it registered was kept. From here on nothing is registered.
  bool came() {
    while (state_ == kGoes) sched_yield();
    return state_.exchange(kIdle) == kDone && in_time_ && kept_.load();
  }

 private:
  static constexpr std::chrono::milliseconds kMaxWait{10000};
  enum State : int { kIdle, kWaits, kGoes, kDone, kEnd };

  static void note_hook(void* intruder, void* base, size_t length) {
    auto* const self = static_cast<Intruder*>(intruder);
    const auto first = reinterpret_cast<uintptr_t>(base);
    if (first >= self->base_ + self->length_ || first + length <= self->base_) return;
    int waits = kWaits;
    if (!self->state_.compare_exchange_strong(waits, kGoes)) return;
    const auto end = std::chrono::steady_clock::now() + kMaxWait;
    while (self->state_ == kGoes && std::chrono::steady_clock::now() < end) sched_yield();
    self->in_time_ = self->state_ == kDone;
  }
  void run() {
    while (state_ != kEnd) {
      if (state_ != kGoes) {
        sched_yield();
        continue;
      }
      pool_->use(base_, length_);
      kept_ = pool_->has(base_, length_);
      state_ = kDone;
    }
  }

  Pool* const pool_;
  std::atomic<uintptr_t> base_{0};
  std::atomic<size_t> length_{0};
  std::atomic<bool> kept_{false};
  std::atomic<bool> in_time_{false};  // it had registered before the call went on
  std::atomic<int> state_{kIdle};
  pinrail_subscription_t* subscription_ = nullptr;
  std::thread thread_;
};

enum class Round { fresh, stale, nobody_came, not_here };

Round play(const Call& call, Pool* pool, Intruder* intruder) {
  const Scene scene = call.prepare();
  EXPECT_NE(scene.base, 0U);
  if (scene.base == 0) return Round::not_here;
  const bool is_heap = call.prepare == the_heap;
  pool->use(scene.base, scene.length);  // so that the mapping is known
  intruder->await(scene);
  const bool acted = call.act(scene);
  const bool came = intruder->came();
  const bool stale = pool->has(scene.base, scene.length);
  give_back(scene, is_heap);
  if (!acted) return Round::not_here;
  if (!came) return Round::nobody_came;
  return stale ? Round::stale : Round::fresh;
}

TEST(PatcherRace, what_is_registered_between_the_report_and_the_call_is_not_found_after_it) {
  // A miss that looks for new allocators waits for the loader's lock, which dlclose() holds; then nothing races.
  const Library library(Settings{{"monitor", "patcher"}, {"monitor_trust_allocators", "yes"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  fake::FakeRegistrar fake;
  Pool pool(fake);
  for (const Call& call : kCalls) {
    SCOPED_TRACE(call.name);
    int stale = 0, alone = 0, tried = 0;
    Intruder intruder(&pool);
    while (tried < races()) {
      const Round round = play(call, &pool, &intruder);
      if (round == Round::not_here) {
        std::printf("%s: not on this system\n", call.name);
        break;
      }
      ++tried;
      stale += round == Round::stale ? 1 : 0;
      alone += round == Round::nobody_came ? 1 : 0;
    }
    std::printf("%s: %d races, %d stale\n", call.name, tried - alone, stale);
    EXPECT_EQ(stale, 0) << "of " << tried;
    EXPECT_EQ(alone, 0) << "of " << tried << " calls were not raced";
  }
}

// Has the kernel hold the calling thread's ftruncate() until another thread lets it go on. Returns the descriptor for
// that, or -1.
int hold_truncation() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ftruncate, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

TEST(PatcherRace, a_file_that_grows_and_is_registered_before_the_kernel_cuts_it) {
  const Library library(Settings{{"monitor", "patcher"}, {"monitor_trust_allocators", "yes"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  fake::FakeRegistrar fake;
  const Pool pool(fake);
  const Scene scene = a_file();
  ASSERT_EQ(ftruncate(scene.fd, kPage), 0);
  constexpr int kStarting = -2;
  std::atomic<int> listener{kStarting};
  std::thread cutter([&listener, &scene] {
    listener.store(hold_truncation());
    EXPECT_EQ(ftruncate(scene.fd, kPage), 0);
  });
  while (listener.load() == kStarting) sched_yield();
  seccomp_notif held{};
  const bool holds = listener.load() >= 0 && ioctl_of(listener.load(), SECCOMP_IOCTL_NOTIF_RECV, &held) == 0;
  if (holds) {
    EXPECT_EQ(ftruncate(scene.fd, kLength), 0);
    pool.use(scene.base, kLength);
    EXPECT_TRUE(pool.has(scene.base, kLength));
    seccomp_notif_resp answer{};
    answer.id = held.id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    EXPECT_EQ(ioctl_of(listener.load(), SECCOMP_IOCTL_NOTIF_SEND, &answer), 0);
  }
  cutter.join();
  EXPECT_FALSE(pool.has(scene.base, kLength));
  give_back(scene, false);
  close(listener.load());
  if (!holds) GTEST_SKIP() << "no system call can be held here";
}

TEST(PatcherRace, no_function_that_is_hooked_is_left_out_here) {
  std::set<std::string> functions{"mprotect", "open of libpthread"};  // takes no memory away; is as libc's
  for (const Call& call : kCalls) functions.insert(call.function);
  EXPECT_EQ(functions.size(), patcher::kFunctions);
}

#else

TEST(PatcherRace, is_for_machines_where_code_can_be_patched) { GTEST_SKIP() << "code cannot be patched here"; }

#endif

}  // namespace
}  // namespace pinrail::test
