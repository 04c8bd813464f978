// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/gpusm; the functions forward to Pool. API context, except
// invalidate_range_hook(). The caller holds no lock and may hold references.
#include <time.h>

#include <cstring>
#include <memory>

#include "base/core/calling_thread.h"
#include "base/core/kernel.h"
#include "base/core/own_component.h"
#include "base/core/span.h"
#include "framework/mpool/gpu_pool.h"
#include "framework/registrar/request.h"

// The owner's side: a block for each allocation of local GPU memory, found by the driver's present answer.
//
// Owns     the segment of validity slots, and the allocation of each slot.
// Threads  as gpu_pool::Pool. API context without a lock held, unless a comment says otherwise.
// Hook     free_hook(), report_hook() and wait_for_importers_hook().
//
// A block names the process's identity since the last restart. After a restart no earlier slot is valid, and slots of
// another process are not written, because the process that was checkpointed may still run.
//
// gpusm_component/O1  If a free is reported, the slot's word changes before the memory can be reallocated; if not, when
//     the address is exported again.
// gpusm_component/O2  A block is given out only if its memory was seen alive after the hook could find its range: a
//     range is found if its put() returned before the search began and its give_back() has not begun.
// gpusm_component/O3  With Free::defer, a free waits for all that have the memory open, whether its registration is
//     still there or was closed by an eviction or by the gc thread. An importer that still has it open when the time
//     limit has passed is not waited for again. If all slots are taken, those whose registration has ended are given
//     back.

namespace pinrail::gpusm {
namespace {

using mpool::Component;

template <typename T>
void raise(std::atomic<T>* most, T value) {
  T known = most->load();
  while (known < value && !most->compare_exchange_weak(known, value)) {
  }
}

pinrail_gpu_block_t* block_of(pinrail_registration_t* reg) {
  return static_cast<pinrail_gpu_block_t*>(registrar_tail(reg));
}

// What a free of exported memory does.
enum class Free : uint8_t { notify, defer };

// The pool's identity for peers between two restarts: the process, its segment, and the allocation of each slot.
class Session {
 public:
  // Creates a session by the component's parameters; hooks arrive from here on. Without shared memory blocks have no
  // slot, which is reported.
  static Status create(const pinrail_host_t* host, std::unique_ptr<Session>* session_out) {
    pinrail_param_value_t most{}, free_way{}, timeout{};
    Status status = read_params(host, {{"max_exports", &most}, {"free", &free_way}, {"free_timeout", &timeout}});
    const auto slots = static_cast<uint32_t>(most.u);
    std::unique_ptr<Session> session(new Session(host));
    session->free_ = free_way.i == 1 ? Free::defer : Free::notify;
    session->free_timeout_ms_ = timeout.u;
    if (status.ok()) status = slots::this_process(&session->self_);
    if (!status.ok()) return status;
    session->exports_ = std::make_unique<Export[]>(slots);
    const Status made_segment = session->exporter_.create(session->self_, slots);
    if (made_segment.is(PINRAIL_ERR_OUT_OF_RESOURCE)) return made_segment;
    if (!made_segment.ok()) show(host, "no segment");
    status = host->monitor_subscribe(host, PINRAIL_KIND_GPU, report_hook, session.get(), &session->subscription_);
    if (status.ok()) *session_out = std::move(session);
    return status;
  }
  // monitor_unsubscribe() waits for hooks in flight, which read the exports.
  ~Session() {
    if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
  }

  // Sets the identity of the pool's own peer. The caller holds the cache lock, or no other thread knows the peer yet.
  void set_own_peer(gpu_pool::Peer* own) const {
    own->owner = {self_.pid, self_.start, exporter_.segment()};
    own->deaths = exporter_.segment() != 0 ? exporter_.deaths() : nullptr;
  }
  // Fills in the owner's part of a block and takes a slot. OUT_OF_RESOURCE, TEMP_OUT_OF_RESOURCE: there is no free
  // slot, which is reported. NOT_AVAILABLE: no peer could open the slots, which is reported once.
  Status fill_owner(const gpu_pool::Key& key, gpu_pool::Identity* name, pinrail_gpu_block_t* block) {
    block->pid = self_.pid;
    block->user = self_.user;
    block->start = self_.start;
    block->machine = self_.machine;
    block->segment = exporter_.segment();
    block->slot_word = block->slot = 0;
    if (exporter_.segment() != 0) {
      if (!exporter_.has_file()) {
        if (!is_loss_reported_.exchange(true)) show(host_, "slots closed");
        return PINRAIL_ERR_NOT_AVAILABLE;
      }
      uint32_t slot = 0;
      uint64_t slot_word = 0;
      Status taken = exporter_.take(&slot, &slot_word);
      if (taken.is(PINRAIL_ERR_OUT_OF_RESOURCE)) {
        give_back_kept(Importers::any);
        taken = exporter_.take(&slot, &slot_word);
      }
      if (!taken.ok()) {
        const bool is_full = taken.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
        show(host_, is_full ? "no room for slots" : "too many exports");
        return taken;
      }
      name->slot = exporter_.word(slot);
      name->slot_word = slot_word;
      block->slot = slot;
      block->slot_word = slot_word;
      put(slot, key.base, key.length);
    } else {
      // Peers take each block of the allocation for the one that they have opened, whose event serves another by now.
      std::memset(block->event, 0, sizeof(block->event));
    }
    seal_block(block);
    return success();
  }
  // Ends the block's slot before another allocation can use it, also after an eviction: peers then need a new block.
  // With Free::defer the slot and its range stay as long as importers have the memory open, because a free of the
  // memory still has to wait for them (gpusm_component/O3).
  void end_slot(gpu_pool::Identity* name) {
    if (name->slot == nullptr) return;
    const auto slot = static_cast<uint32_t>(name->slot - exporter_.word(0));
    exporter_.kill_hook(slot);
    name->slot = nullptr;
    if (free_ == Free::defer && exporter_.importers_hook(slot) != 0) {
      keep(slot);
    } else {
      give_back(slot);
    }
  }
  // Gives back the slots that stayed and have no importer any more, and frees what a crashed importer has left.
  void look_at_importers() {
    exporter_.forget_one_dead();
    give_back_kept(Importers::none);
  }
  // Stops the hooks and waits for those in flight. If `next` is of another process, the segment is left to the old
  // one.
  void end(const Session& next) {
    host_->monitor_unsubscribe(host_, subscription_);
    subscription_ = nullptr;
    if (self_.is(next.self_)) return;
    exporter_.disown();
  }
  // Memory of the range is about to be freed: its slots change before the free returns. Hook context: it may run inside
  // an allocator, so it takes no lock and does not allocate. Ends all slots of the range before it waits for the
  // importers of the first. Free::defer: one time limit for all. A thread that holds the gate does not wait (gate/T2):
  // such an event was postponed, so the free has happened already.
  void free_hook(const Span& span) {
    for_overlapping_hook(span, [&](uint32_t slot, uint64_t incarnation) { exporter_.kill_hook(slot, incarnation); });
    if (free_ != Free::defer || host_->depth_hook()->gates != 0) return;
    const int64_t until = now_ms_hook() + static_cast<int64_t>(free_timeout_ms_);
    for_overlapping_hook(span, [&](uint32_t slot, uint64_t) { wait_for_importers_hook(slot, until); });
  }

 private:
  explicit Session(const pinrail_host_t* host) : host_(host) {}
  static void report_hook(void* session, uintptr_t base, size_t length) {
    static_cast<Session*>(session)->free_hook(Span::of(base, length));
  }
  // Waits until no importer has the memory open, or until the time limit. The caller is about to free GPU memory, which
  // waits for the GPU anyway. Peers close within their gc_interval; a crashed peer is not waited for. The slot stays
  // until then (gpusm_component/O3); if it serves other memory nevertheless, that is not waited for.
  void wait_for_importers_hook(uint32_t slot, int64_t until) {
    const NoCancel no_cancel;
    const uint64_t freed = exporter_.incarnation_hook(slot);
    if (exports_[slot].waited.load() == freed) return;
    constexpr unsigned kLookEvery = 50;  // pauses: checking a process costs as much as a dozen pauses
    const timespec pause{0, 200000};
    for (unsigned pauses = 0; exporter_.importers_hook(slot) != 0 && exporter_.incarnation_hook(slot) == freed;
         ++pauses) {
      if (pauses % kLookEvery == 0) {
        exporter_.forget_dead_hook(slot);
        continue;
      }
      if (now_ms_hook() >= until) break;
      nanosleep(&pause, nullptr);
    }
    exports_[slot].waited.store(freed);
  }
  void put(uint32_t slot, uintptr_t base, size_t length) {
    exports_[slot].base.store(base);
    exports_[slot].end.store(base + length);
    raise(&used_, slot + 1);
    raise(&highest_, base + length);
    uintptr_t lowest = lowest_.load();
    while (lowest > base && !lowest_.compare_exchange_weak(lowest, base)) {
    }
  }
  void give_back(uint32_t slot) {
    exports_[slot].end.store(0);
    exporter_.give_back(slot);
  }
  void keep(uint32_t slot) {
    kept_.fetch_add(1);
    exports_[slot].is_kept.store(true);
  }
  enum class Importers : uint8_t { none, any };
  // Gives back the slots that stayed and have no importer any more; Importers::any: all of them. The thread that
  // exchanges the mark of a slot has it alone meanwhile.
  void give_back_kept(Importers whose) {
    const uint32_t used = kept_.load() != 0 ? used_.load() : 0;
    for (uint32_t slot = 0; slot < used; ++slot) {
      std::atomic<bool>& is_kept = exports_[slot].is_kept;
      if (!is_kept.load() || !is_kept.exchange(false)) continue;
      kept_.fetch_sub(1);
      if (whose == Importers::none) exporter_.forget_dead_hook(slot);
      if (whose == Importers::any || exporter_.importers_hook(slot) == 0) {
        give_back(slot);
      } else {
        keep(slot);
      }
    }
  }
  // Reads the end first, because put() stores it last: a new end has its own base, and without one nothing overlaps.
  Span range_hook(uint32_t slot) const {
    const uintptr_t end = exports_[slot].end.load();
    return {exports_[slot].base.load(), end};
  }
  // Calls visit(slot, incarnation) for each slot whose memory overlaps the span. Without a lock: a free among what was
  // exported looks at all slots that were ever taken, a nanosecond each.
  template <typename Visit>
  void for_overlapping_hook(const Span& span, Visit&& visit) const {
    if (!Span{lowest_.load(), highest_.load()}.overlaps(span)) return;
    const uint32_t used = used_.load();
    for (uint32_t slot = 0; slot < used; ++slot) {
      uint64_t incarnation = exporter_.incarnation_hook(slot);
      Span own = range_hook(slot);
      for (uint64_t now; (now = exporter_.incarnation_hook(slot)) != incarnation; incarnation = now)
        own = range_hook(slot);
      if (own.overlaps(span)) visit(slot, incarnation);
    }
  }

  // What is behind a slot. All accesses are seq_cst.
  struct Export {
    std::atomic<uintptr_t> base{0}, end{0};
    std::atomic<bool> is_kept{false};  // its registration has ended, and importers have the memory open
    std::atomic<uint64_t> waited{0};   // the slot's word when a free had waited for its importers: no other one waits
  };

  const pinrail_host_t* const host_;
  slots::Process self_;
  slots::Exporter exporter_;
  std::unique_ptr<Export[]> exports_;                        // by slot
  std::atomic<uint32_t> used_{0};                            // slots from here on were never taken
  std::atomic<uint32_t> kept_{0};                            // how many have is_kept
  std::atomic<uintptr_t> lowest_{UINTPTR_MAX}, highest_{0};  // of all memory that was ever exported
  Free free_ = Free::notify;
  uint64_t free_timeout_ms_ = 0;
  std::atomic<bool> is_loss_reported_{false};
  void* subscription_ = nullptr;
};

class Pool final : public gpu_pool::Pool {
 public:
  // Creates a pool. NOT_SUPPORTED: the registrar does not export GPU memory.
  static Status create(Component* component, const pinrail_mpool_config_t& config, gpu_pool::Pool** pool_out) {
    const pinrail_registrar_t& registrar = *config.limits;
    if ((registrar.kinds & PINRAIL_KIND_GPU) == 0 || registrar.identify == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    if (registrar.tail_size < sizeof(pinrail_gpu_block_t)) return PINRAIL_ERR_NOT_SUPPORTED;
    gpu_pool::Settings settings;
    Status status = gpu_pool::read_settings(component->host, config, "mpool_gpusm_", &settings);
    if (!status.ok()) return status;
    std::unique_ptr<Pool> pool(new Pool(component, config, settings, Hits::pool));
    status = Session::create(component->host, &pool->session_);
    if (!status.ok()) return status;
    auto own_peer = std::make_unique<gpu_pool::Peer>();
    pool->session_->set_own_peer(own_peer.get());
    status = pool->join();
    if (!status.ok()) return status;
    pool->add_peer(own_peer.release());
    *pool_out = pool.release();
    return status;
  }
  // Returns a referenced registration of the allocation that holds the range; in the index, or by a new handle.
  // NOT_FOUND: the range is not GPU memory. BAD_PARAM: it exceeds one allocation.
  Status register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
    gpu_pool::Request request;
    request.access_and_flags = access_and_flags;
    Status status = identify(span, &request.key);
    if (!status.ok()) return status;
    pinrail_registration_t* reg = nullptr;
    const bool is_hit =
        (request.flags() & PINRAIL_FLAG_CACHE_BYPASS) == 0 && gpu_pool::Pool::find(thread, request.key, &reg).ok();
    if (!is_hit) status = acquire(thread, request, &reg);
    if (!status.ok()) return status;
    // Other registrations at these addresses are of freed memory, even if no free was reported (gpusm_component/O1).
    if (!is_hit) kill_overlapping(thread, reg);
    *handle_out = gpu_pool::handle_of(reg);
    return status;
  }
  // The same from the index only; NOT_FOUND if it has none.
  Status find(pinrail_thread_t* thread, Span span, uint64_t, pinrail_handle_t* handle_out) {
    gpu_pool::Key key;
    pinrail_registration_t* reg = nullptr;
    if (!identify(span, &key).ok() || !gpu_pool::Pool::find(thread, key, &reg).ok()) {
      return PINRAIL_ERR_NOT_FOUND;
    }
    *handle_out = gpu_pool::handle_of(reg);
    return success();
  }
  // Copies the allocation's block, from the index or new. The reference is dropped before the return.
  Status export_range(pinrail_thread_t* thread, Span span, pinrail_gpu_block_t* block_out, size_t* offset_out) {
    if (!settings_.leave_pinned) return PINRAIL_ERR_NOT_SUPPORTED;
    pinrail_handle_t handle{};
    const Status status = register_mem(thread, span, 0, &handle);
    if (!status.ok()) return status;
    *block_out = *block_of(handle.reg);
    *offset_out = span.base - reinterpret_cast<uintptr_t>(handle.reg->base);
    return deregister(thread, handle);
  }
  void invalidate_range_hook(const Span& span) { session_->free_hook(span); }

 private:
  using gpu_pool::Pool::Pool;
  // Asks the driver for the allocation that holds the range: on each call, so that no block of freed memory is given
  // out. Errors as register_mem().
  Status identify(const Span& span, gpu_pool::Key* key_out) {
    pinrail_gpu_range_t range{};
    const Status status = pinrail::identify(*config_.limits, span, &range);
    if (!status.ok()) return status;
    gpu_pool::Peer* const own = first_peer();  // the only one
    key_out->pid = static_cast<uint32_t>(own->owner.pid);
    key_out->start = own->owner.start;
    key_out->segment = own->owner.segment;
    key_out->base = reinterpret_cast<uintptr_t>(range.base);
    key_out->length = range.length;
    key_out->id = range.buffer_id;
    key_out->peer = own;
    return success();
  }
  // Completes the block after the registrar has filled in its part, and identifies the memory once more
  // (gpusm_component/O2). NOT_FOUND: it was freed meanwhile.
  Status after_open(const gpu_pool::Request& request, pinrail_registration_t* reg) override {
    pinrail_gpu_block_t* block = block_of(reg);
    Status status = session_->fill_owner(request.key, &gpu_pool::identity_of(reg), block);
    if (!status.ok()) return status;
    gpu_pool::Key now;
    status = identify(Span::of(request.key.base, request.key.length), &now);
    if (!status.ok()) return status;
    return now.id == request.key.id && block->buffer_id == now.id ? success() : Status(PINRAIL_ERR_NOT_FOUND);
  }
  // The registrar has forgotten the registration: ends its slot.
  void end_slot(pinrail_registration_t* reg) override { session_->end_slot(&gpu_pool::identity_of(reg)); }
  // Importers may have closed what stayed for them, or crashed.
  void before_progress(pinrail_thread_t*) override { session_->look_at_importers(); }
  // Creates the new session before it ends the old one, so that an error changes nothing. The caller ensures that no
  // other call runs on the pool.
  Status restart(pinrail_thread_t* thread) override {
    std::unique_ptr<Session> next;
    Status status = Session::create(host_, &next);
    if (status.ok()) status = restart_registrar(thread);
    if (!status.ok()) return status;
    session_->end(*next);
    release_all(thread, gpu_pool::Device::restarted);
    Guard guard(cache_->mutex);
    next->set_own_peer(first_peer());
    session_.swap(next);
    return status;
  }

  std::unique_ptr<Session> session_;
};

constexpr char kHelp[] =
#include "components/mpool/gpusm/gpusm_help.txt"
    ;

constexpr pinrail_enum_value_t kFree[] = {{0, "notify"}, {1, "defer"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    mpool::leave_pinned_param("yes",
                              "Whether a block stays known while its allocation is not registered. no: a block is "
                              "good only while it is registered, and pinrail_mpool_export() is not supported."),
    mpool::size_limit_param("Most bytes of GPU memory whose blocks are known to the pools of one cache. 0: no limit. "
                            "Too low: blocks that peers still use die, and are made anew.",
                            nullptr),
    gpu_pool::kCountLimit,
    mpool::kEmptyCache,
    mpool::kPrintStats,
    gpu_pool::kGcInterval,
    gpu_pool::kMaxRegSize,
    mpool::param("max_exports", "65536",
                 "Most allocations of one pool that are exported at a time; each takes 40 bytes of shared memory.",
                 PINRAIL_TYPE_UNSIGNED, 6, nullptr, 1, 1 << 24),
    mpool::param(
        "free", "notify",
        "What a free of exported memory does. notify: it is freed at once, and peers see that. defer: it waits, "
        "at most free_timeout, until they have closed it, as CUDA asks of its users.",
        PINRAIL_TYPE_ENUM, 3, nullptr, 0, 0, kFree),
    mpool::param("free_timeout", "1000",
                 "Milliseconds that a deferred free waits at most. Peers that have crashed are not waited for.",
                 PINRAIL_TYPE_UNSIGNED, 5, nullptr, 0, 3600000)};

constexpr const char* kSynonymPrefixes[] = {"rcache_gpusm_", nullptr};

using Forward = mpool::Forward<Component, Pool, gpu_pool::Pool>;

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::table();
  ops.kinds = PINRAIL_KIND_GPU;
  ops.export_range = Forward::call_on_span<&Pool::export_range>;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MPOOL_ABI, 30, "mpool", "gpusm",
                         "GPU memory across processes, owner's side: blocks by which peers open local GPU memory.",
                         Forward::open, Forward::close, &kOps),
                kHelp, kParams, kSynonymPrefixes);

}  // namespace
}  // namespace pinrail::gpusm

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::gpusm::kComponent;
