// SPDX-License-Identifier: BSD-3-Clause
// Memory that is registered ahead of its use (pinrail/pin.h documents the public functions). API context; the caller
// holds no lock and may hold references. No lock is held across a register call. Each pinned range holds one reference.
#include <pinrail/pin.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/core/no_cancel.h"
#include "base/core/span.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/call_scope.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/refuse.h"

namespace pinrail::front {
namespace {

using mpool::PinTable;

constexpr uintptr_t kPage =
    4096;  // ranges join if their pages touch; registers round to larger granularities themselves

// Returns a clause that names the first fault; NULL: none.
const char* fault_of(const pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count, uint32_t access) {
  if (pool == nullptr) return "pool is NULL";
  if (ranges == nullptr && count != 0) return "ranges is NULL";
  if (const char* const fault = fault_of_access(access)) return fault;
  for (size_t i = 0; i < count; ++i) {
    if (const char* const fault = fault_of_range(ranges[i].addr, ranges[i].length)) return fault;
  }
  return nullptr;
}

Span span_of(const pinrail_range_t& range) { return Span::of(reinterpret_cast<uintptr_t>(range.addr), range.length); }

PinTable::Key key_of(const pinrail_range_t& range, uint32_t access) {
  return {reinterpret_cast<uintptr_t>(range.addr), range.length, access};
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

void drop(pinrail_handle_t handle) {
  if (handle.reg != nullptr) Status(pinrail_mpool_deregister(handle)).ignore();  // a drop of an orphan only counts
}

Status acquire(pinrail_mpool_t* pool, const Span& span, uint32_t access, pinrail_handle_t* handle_out) {
  return pinrail_mpool_register(pool, pointer(span.base), span.length(), access, PINRAIL_FLAG_PERSISTENT, handle_out);
}

// One call of pinrail_mpool_prepin().
class Batch {
 public:
  Batch(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count, uint32_t access)
      : pool_(pool), ranges_(ranges), access_(access), order_(count), statuses_(count, PINRAIL_ERR_ERROR) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return ranges[a].addr < ranges[b].addr; });
    pinned_.reserve(count);
  }

  // Pins group by group; stops at the first error if `all`. Errors are in statuses().
  void pin(bool all) {
    for (size_t first = 0; first < order_.size();) {
      const size_t next = end_of_group(first);
      pin_group(first, next, all);
      if (all && failed_) return;
      first = next;
    }
  }

  bool failed() const { return failed_; }
  const std::vector<pinrail_status_t>& statuses() const { return statuses_; }

  // Takes back what this call has pinned.
  void undo() {
    PinTable::Handles to_drop;
    if (pool_->pins.remove(pinned_, &to_drop)) {
      for (const pinrail_handle_t handle : to_drop) drop(handle);
    }
  }

 private:
  // Returns the end of the group: ranges, in the order of addresses, whose pages touch.
  size_t end_of_group(size_t first) {
    group_ = span_of(ranges_[order_[first]]);
    size_t next = first + 1;
    for (; next < order_.size(); ++next) {
      const Span span = span_of(ranges_[order_[next]]);
      if ((span.base & ~(kPage - 1)) > ((group_.end + kPage - 1) & ~(kPage - 1))) break;
      group_.end = std::max(group_.end, span.end);
    }
    return next;
  }

  // Registers the group as a whole first, so that its ranges are hits. If the device refuses that, for example because
  // it is too long or spans different mappings, each range is registered by itself.
  void pin_group(size_t first, size_t end, bool all) {
    pinrail_handle_t whole = {nullptr, 0};
    if (end - first > 1 && !acquire(pool_, group_, access_, &whole).ok()) whole = {nullptr, 0};
    for (size_t i = first; i < end; ++i) {
      const Status status = pin_one(ranges_[order_[i]]);
      statuses_[order_[i]] = status.code();
      failed_ |= !status.ok();
      if (all && failed_) break;
    }
    drop(whole);
  }

  // Registers one range and adds its pin. NOT_SUPPORTED: the registration is not in the index, so later calls cannot
  // hit it.
  Status pin_one(const pinrail_range_t& range) {
    pinrail_handle_t handle;
    const Status status = acquire(pool_, span_of(range), access_, &handle);
    if (!status.ok()) return status;
    if ((state::load(handle.reg) & state::kIndexed) == 0) {
      drop(handle);
      return PINRAIL_ERR_NOT_SUPPORTED;
    }
    const Status added = guarded([&] {
      const deferred::Call call;
      if (!call) return Status(PINRAIL_ERR_BUSY);
      const pinrail_handle_t spare = pool_->pins.add(key_of(range, access_), handle);
      handle = spare;
      return success();
    });
    if (added.ok()) pinned_.push_back(key_of(range, access_));
    drop(handle);
    return added;
  }

  pinrail_mpool_t* const pool_;
  const pinrail_range_t* const ranges_;
  const uint32_t access_;
  std::vector<size_t> order_;  // indices of ranges_, by address
  std::vector<pinrail_status_t> statuses_;
  std::vector<PinTable::Key> pinned_;
  Span group_{0, 0};
  bool failed_ = false;
};

// pinrail_mpool_prepin() after its checks; the pins are undone if flags demand all ranges and one failed.
Status prepin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count, uint32_t access, uint32_t flags,
              pinrail_status_t* statuses_out) {
  const bool all = (flags & PINRAIL_PREPIN_PARTIAL) == 0;
  Batch batch(pool, ranges, count, access);
  batch.pin(all);
  if (all && batch.failed()) batch.undo();
  if (statuses_out != nullptr) std::copy(batch.statuses().begin(), batch.statuses().end(), statuses_out);
  // ERROR marks ranges that were not tried after an earlier one had failed.
  const auto is_error = [](pinrail_status_t status) {
    return status != PINRAIL_SUCCESS && status != PINRAIL_ERR_ERROR;
  };
  const auto& statuses = batch.statuses();
  const auto first = std::find_if(statuses.begin(), statuses.end(), is_error);
  if (first != statuses.end()) return *first;
  return batch.failed() ? Status(PINRAIL_ERR_ERROR) : success();
}

// pinrail_mpool_unpin() after its checks: removes the pins under the table's lock, then drops references without it.
Status unpin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count, uint32_t access) {
  std::vector<PinTable::Key> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(key_of(ranges[i], access));
  PinTable::Handles to_drop;
  {
    const deferred::Call call;
    if (!call) return PINRAIL_ERR_BUSY;
    if (!pool->pins.remove(keys, &to_drop)) return PINRAIL_ERR_NOT_FOUND;
  }
  for (const pinrail_handle_t handle : to_drop) drop(handle);
  return success();
}

// The parts of a range that are registered.
class Parts {
 public:
  explicit Parts(const Span& range) : range_(range) {}
  static void visit(void* parts, uintptr_t base, size_t length) {
    auto* self = static_cast<Parts*>(parts);
    const Span part{std::max(base, self->range_.base), std::min(base + length, self->range_.end)};
    if (part.base < part.end) self->parts_.push_back(part);
  }
  const std::vector<Span>& joined() {
    std::sort(parts_.begin(), parts_.end(), [](const Span& a, const Span& b) { return a.base < b.base; });
    std::vector<Span> joined;
    for (const Span& part : parts_) {
      if (!joined.empty() && part.base <= joined.back().end) {
        joined.back().end = std::max(joined.back().end, part.end);
      } else {
        joined.push_back(part);
      }
    }
    parts_.swap(joined);
    return parts_;
  }

 private:
  const Span range_;
  std::vector<Span> parts_;
};

// pinrail_mpool_query() after its checks. Takes no reference.
Status query(pinrail_mpool_t* pool, const Span& range, uint32_t access, pinrail_pinned_t* pinned_out,
             pinrail_range_t* ranges_out, size_t room, size_t* parts_out) {
  pinrail_thread_t* const thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  Parts found(range);
  const Status status =
      pool->ops->query(pool->module, thread, range.base, range.length(), access, Parts::visit, &found);
  if (!status.ok()) return status;
  const std::vector<Span>& parts = found.joined();
  for (size_t i = 0; i < std::min(room, parts.size()); ++i) ranges_out[i] = {pointer(parts[i].base), parts[i].length()};
  if (parts_out != nullptr) *parts_out = parts.size();
  const bool is_whole = parts.size() == 1 && parts[0].base == range.base && parts[0].end == range.end;
  *pinned_out = parts.empty() ? PINRAIL_PINNED_NONE : is_whole ? PINRAIL_PINNED_WHOLLY : PINRAIL_PINNED_PARTLY;
  return success();
}

}  // namespace
}  // namespace pinrail::front

using pinrail::guarded;

pinrail_status_t pinrail_mpool_prepin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count,
                                      uint32_t access, uint32_t flags, pinrail_status_t* statuses_out) {
  constexpr const char* kCall = "pinrail_mpool_prepin";
  const char* const fault = pinrail::front::fault_of(pool, ranges, count, access);
  if (fault != nullptr) return pinrail::front::refuse(kCall, fault);
  if ((flags & ~uint32_t{PINRAIL_PREPIN_PARTIAL}) != 0) {
    return pinrail::front::refuse(kCall, "flags has bits that pinrail/pin.h does not name");
  }
  pinrail::front::handle_fork();
  if (pinrail::front::is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  return guarded([&] { return pinrail::front::prepin(pool, ranges, count, access, flags, statuses_out); });
}

pinrail_status_t pinrail_mpool_unpin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count,
                                     uint32_t access) {
  const char* const fault = pinrail::front::fault_of(pool, ranges, count, access);
  if (fault != nullptr) return pinrail::front::refuse("pinrail_mpool_unpin", fault);
  pinrail::front::handle_fork();
  if (pinrail::front::is_inherited(pool)) return PINRAIL_SUCCESS;  // pins of a parent's pool are not undone in a child
  return guarded([&] { return pinrail::front::unpin(pool, ranges, count, access); });
}

pinrail_status_t pinrail_mpool_query(pinrail_mpool_t* pool, const void* addr, size_t length, uint32_t access,
                                     pinrail_pinned_t* pinned_out, pinrail_range_t* ranges_out, size_t room,
                                     size_t* parts_out) {
  constexpr const char* kCall = "pinrail_mpool_query";
  if (pool == nullptr || pinned_out == nullptr) return pinrail::front::refuse(kCall, "pool or pinned_out is NULL");
  if (ranges_out == nullptr && room != 0) return pinrail::front::refuse(kCall, "ranges_out is NULL");
  const char* fault = pinrail::front::fault_of_range(addr, length);
  if (fault == nullptr) fault = pinrail::front::fault_of_access(access);
  if (fault != nullptr) return pinrail::front::refuse(kCall, fault);
  const pinrail::deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  pinrail::front::handle_fork();
  if (pinrail::front::is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  if (pool->ops->query == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  return guarded([&] {
    const pinrail::Span range = pinrail::Span::of(reinterpret_cast<uintptr_t>(addr), length);
    return pinrail::front::query(pool, range, access, pinned_out, ranges_out, room, parts_out);
  });
}
