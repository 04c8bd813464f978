// SPDX-License-Identifier: BSD-3-Clause
// patcher.h - the functions of libc and of the loader through which memory goes away, and what hooks know of them.
//
// Owns     contexts. One that was used once is never given back: hooks may reach it until the process ends (E7). An
//          open after a close takes a closed one again, with its patches.
// Threads  hooks: any number together, and with everything else. start, stop, check: one at a time (Context::mutex).
//
// patcher/H1  A hook reports a range before the kernel acts and again after, for another thread may have registered it
//     in between; it makes the system call itself. What a call returns is reported too, before the caller sees it:
//     pages behind an address that went away unseen are new ones by then.
// patcher/H2  Results and errno are those of the call.
// patcher/H3  While no library is started, or in a forked child, a hook loads a word or two and makes the call.
// patcher/H4  stop() returns when no hook is inside the library any more.
#ifndef PINRAIL_COMPONENTS_MONITOR_PATCHER_H
#define PINRAIL_COMPONENTS_MONITOR_PATCHER_H

#include <pinrail/component.h>
#include <pthread.h>

#include <atomic>
#include <string>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/patch/patch.h"
#include "base/sync/lock.h"

namespace pinrail::patcher {

constexpr uintptr_t kPage = 4096;
constexpr size_t kFunctions = 15;
constexpr size_t kMaxLayers = 16;  // of patches of ours over one function
constexpr int kMaxRepairs = 3;     // since the last start (E6)

struct Context;
struct Function;

// One patch, as its hook sees it. Written before the patch stands, never again.
struct Layer {
  const Function* function = nullptr;
  uintptr_t foreign = 0;                   // another runtime's patch that was there first, callable as the function
  std::atomic<Context*> context{nullptr};  // written last, read first: what is above is there with it
};

// Memory to try a function on.
struct Scratch {
  uintptr_t base = 0;
  size_t length = 0;  // what is still ours
};

struct Function {
  const char* name;
  bool in_loader;  // the dynamic loader's own, found by its code; else libc's
  bool may_lack;   // not every libc has it
  patch::Hook hook;
  void (*probe)(uintptr_t function, Scratch* scratch);  // calls it so that its hook must report a part of the scratch
  patch::Signature signature;
  uint32_t events;          // PINRAIL_EVENT_*: not seen if it cannot be patched
  const char* consequence;  // of that, for people
};

extern const Function kFunctionTable[kFunctions];

// A function of this process, and the patches of ours that were laid over it.
struct Site {
  uintptr_t address = 0;  // 0: this libc lacks it, or it is left out
  size_t layer_count = 0;
  int repairs = 0;
  Layer layers[kMaxLayers];
  patch::Patch patch;  // the last
};

// A function's first bytes as they were when it was last looked at, for looks that take no lock.
struct Glance {
  std::atomic<uintptr_t> at{0};  // 0: not patched
  std::atomic<size_t> count{0};
  std::atomic<uint64_t> words[patch::kMaxDecoded / sizeof(uint64_t)] = {};
};

struct Context {
  // For hooks.
  std::atomic<const pinrail_host_t*> host{nullptr};  // who is told; NULL: nobody
  std::atomic<uint32_t> in_flight{0};                // hooks inside the library
  std::atomic<uint32_t>* alive = nullptr;            // 0 in a forked child: the kernel wipes it
  void** current_break = nullptr;                    // libc's own note
  size_t huge_page = 0;                              // bytes of the default one
  std::atomic<uint32_t> left_out{0};                 // a bit for each of kFunctionTable
  std::atomic<uint32_t> sees{0};                     // PINRAIL_EVENT_*
  Glance glances[kFunctions];
  std::atomic<uint32_t> alarm{0};  // raised when the thread that looks shall do so at once; it sleeps on it

  // For the probe, which is a subscriber like any pool.
  std::atomic<uintptr_t> probe_base{0}, probe_end{0};
  std::atomic<bool> probe_seen{false};
  void* subscription = nullptr;

  std::atomic<bool> in_use{true};
  std::atomic<bool> left_behind{false};  // in a forked child: seen to be the parent's
  Context* next = nullptr;               // all that ever were

  const pinrail_host_t* services = nullptr;  // from open to close
  Mutex mutex{LockRank::monitor};
  Site sites[kFunctions] GUARDED_BY(mutex);
  bool blind GUARDED_BY(mutex) = false;
  std::atomic<bool> stopping{false};
  bool has_thread = false;  // start-up and shut-down only
  pthread_t thread{};
  uint64_t interval_ms = 0;
};

// patcher_report_hook.cc
long enter_hook(void* layer, const long* args);  // every patch leads here, and on to the function's hook
Context& context_of_hook(const Layer& layer);
bool is_active_hook(const Layer& layer);
void report_hook(const Layer& layer, uintptr_t base, size_t length);  // rounded out to pages
long go_on_hook(const Layer& layer, long number, const long* args);   // the other runtime's patch, or the kernel
void probe_hook(void* context, uintptr_t base, size_t length);
void raise_alarm_hook(Context* context);  // wakes the thread that looks

// Hooks of functions: patcher_memory_hook.cc, patcher_shm_hook.cc, patcher_file_hook.cc, patcher_syscall_hook.cc.
long munmap_hook(void* layer, const long* args);
long mmap_hook(void* layer, const long* args);
long mremap_hook(void* layer, const long* args);
long madvise_hook(void* layer, const long* args);
long mprotect_hook(void* layer, const long* args);
long process_madvise_hook(void* layer, const long* args);
long remap_file_pages_hook(void* layer, const long* args);
long brk_hook(void* layer, const long* args);
long raw_brk_hook(void* layer, const long* args);  // of the system call
long shmdt_hook(void* layer, const long* args);
long shmat_hook(void* layer, const long* args);
long fallocate_hook(void* layer, const long* args);
long ftruncate_hook(void* layer, const long* args);
long truncate_hook(void* layer, const long* args);
long syscall_hook(void* layer, const long* args);
Span below_break_hook(uintptr_t asked, uintptr_t now);  // what goes away when the break is moved to there

// What is known of a file whose bytes go away.
struct FileId {
  uint64_t device;
  uint64_t inode;
  bool layered;  // a file system that shows mappings under another file's number
};
// These bytes of the file go away; length: UINT64_MAX for all behind the offset.
void file_event_hook(const Layer& layer, const FileId& file, uint64_t offset, uint64_t length);

// patcher_find.cc: where functions are.
uintptr_t find_function(const Function& function);
bool has_libc();  // false in a program that is linked statically
void** find_current_break();

// patcher_probe.cc: calls the function on memory of its own; whether a report of it arrived where pools get theirs.
bool fire(Context* context, const Function& function, uintptr_t address);

// patcher_install.cc, patcher_check.cc
Status install(Context* context, Site* site, const Function& function, const patch::Disassembler& disassembler)
    REQUIRES(context->mutex);
// A message of that topic, which names the function and what follows.
void say(const Context& context, const char* topic, const Function& function);
void note_glance(Context* context, size_t function, const patch::Snapshot& seen) REQUIRES(context->mutex);
// Whether all functions begin as they did. Takes some 10 ns, so each miss can ask.
bool unchanged_at_a_glance(const Context& context);
// E6: what others changed is looked at, tried, and chained over. ERROR: this monitor is blind now.
Status check_sites(Context* context) REQUIRES(context->mutex);
bool start_thread(Context* context);
void stop_thread(Context* context);

}  // namespace pinrail::patcher

#endif
