// SPDX-License-Identifier: BSD-3-Clause
// Memory that is registered ahead of its use (pinrail/pin.h documents the public functions). API context; the caller
// holds no lock and may hold references. No lock is held across a register call. Each pinned range holds one reference.
#include <fcntl.h>
#include <unistd.h>

#include "framework/api/api.h"
#include "framework/api/pin_job.h"

struct pinrail_prepin {
  std::shared_ptr<pinrail::api::PinJob> job;
};

namespace pinrail::api {
namespace {

using mpool::PinTable;

constexpr uint32_t kPrepinFlags = PINRAIL_PREPIN_PARTIAL | PINRAIL_PREPIN_HUGE_PAGES;
constexpr unsigned kMostDefaultThreads = 8;
constexpr size_t kMostChunks = size_t{1} << 24;

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

const char* fault_of(const pinrail_prepin_options_t& options) {
  if (options.size != sizeof(options)) return "options->size is not sizeof(pinrail_prepin_options_t)";
  if ((options.flags & ~kPrepinFlags) != 0) return "options->flags has bits that pinrail/pin.h does not name";
  if (options.numa_node < -1) return "options->numa_node is below -1";
  return options.registration != nullptr ? fault_of_options(*options.registration) : nullptr;
}

// The smaller of two limits, where 0 is none.
size_t smaller(size_t a, size_t b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

// The arguments of a call that pins, after their checks.
struct Call {
  pinrail_mpool_t* pool;
  const pinrail_range_t* ranges;
  size_t count;
  uint32_t access;
  pinrail_prepin_options_t options;
};

enum class When : uint8_t { now, later };

unsigned helpers_of(const Call& call, When when) {
  if (when == When::now && must_not_wait()) return 0;
  if (call.pool->registrar->table.thread_mode == PINRAIL_THREAD_CALLER) return 0;
  if (call.options.threads != 0) return when == When::now ? call.options.threads - 1 : call.options.threads;
  return when == When::now ? 0 : std::min(usable_processors(), kMostDefaultThreads);
}

// What one thread registers, it does not populate before: the device call populates the pages as well, and once is
// faster than twice. NULL, with a message: there would be too many chunks, perhaps because a length is wrong.
std::shared_ptr<PinJob> make_job(const char* name, const Call& call, When when) {
  const unsigned helpers = helpers_of(call, when);
  const pinrail_registrar_t& device = call.pool->registrar->table;
  size_t limit = smaller(longest_of(call.pool, call.access), call.options.chunk_size);
  if (call.options.chunk_size == 0 && (when == When::later || helpers != 0)) {
    limit = smaller(limit, call.pool->ops->max_reg_size(call.pool->module));
  }
  PinPlan plan(call.ranges, call.count, limit, device.granularity);
  if (plan.chunk_count() > kMostChunks) {
    refuse(name, "the ranges need more than 16,777,216 chunks, so a length is wrong or options->chunk_size too small");
    return nullptr;
  }
  const bool is_parallel = helpers + (when == When::now ? 1 : 0) > 1;
  PinJob::Wanted wanted = {call.pool, call.access, call.options.flags, is_parallel, call.options.numa_node, {}};
  std::unique_ptr<OwnFile> dmabuf;
  if (call.options.registration != nullptr && call.count != 0) {
    wanted.registration = {true, *call.options.registration, reinterpret_cast<uintptr_t>(call.ranges[0].addr)};
    const bool is_dmabuf = call.options.registration->dmabuf_fd >= 0;
    if (is_dmabuf) wanted.flags &= ~uint32_t{PINRAIL_PREPIN_HUGE_PAGES};
    if (is_dmabuf) wanted.prefaults = false;
    if (is_dmabuf && when == When::later) {  // the caller may close its own after the call
      int32_t* const fd = &wanted.registration.options.dmabuf_fd;
      dmabuf = std::make_unique<OwnFile>();
      const auto copy = [fd] { return fcntl(*fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); };
      if (!dmabuf->open(FileKind::has_inode, copy)) throw std::bad_alloc();  // none is free
      *fd = dmabuf->number();
    }
  }
  return std::make_shared<PinJob>(wanted, std::move(plan), std::move(dmabuf));
}

// Takes the job out of the pool's list, in which register calls find its chunks.
struct Unlist {
  void operator()(PinJob* job) const { job->pool()->works.remove(job); }
};

// pinrail_mpool_prepin() after its checks.
Status prepin(const Call& call, pinrail_status_t* statuses_out) {
  const std::shared_ptr<PinJob> job = make_job("pinrail_mpool_prepin", call, When::now);
  if (job == nullptr) return PINRAIL_ERR_BAD_PARAM;
  for (size_t i = 0; i < call.count && statuses_out != nullptr; ++i) statuses_out[i] = PINRAIL_ERR_ERROR;  // not tried
  if (job->can_never_fit()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!must_not_wait()) call.pool->works.add(job);  // else no other thread may take a chunk: this one would wait
  const std::unique_ptr<PinJob, Unlist> listed(job.get());
  (void)job->start_helpers(helpers_of(call, When::now));  // without them this thread does it all
  job->work();
  const Status status = job->wait(statuses_out);
  job->stop();
  return status;
}

// pinrail_mpool_prepin_start() after its checks.
Status prepin_start(const Call& call, pinrail_prepin_t** prepin_out) {
  if (call.pool->registrar->table.thread_mode == PINRAIL_THREAD_CALLER) return PINRAIL_ERR_NOT_SUPPORTED;
  auto prepin = std::make_unique<pinrail_prepin>();
  const std::shared_ptr<PinJob> job = prepin->job = make_job("pinrail_mpool_prepin_start", call, When::later);
  if (job == nullptr) return PINRAIL_ERR_BAD_PARAM;
  if (job->can_never_fit()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  call.pool->works.add(job);
  if (job->is_unfinished() && !job->start_helpers(helpers_of(call, When::later))) {
    job->stop();
    if (job->wait(nullptr).is(PINRAIL_ERR_NOT_FOUND)) {  // else requests of other threads have done it
      call.pool->works.remove(job.get());
      return PINRAIL_ERR_OUT_OF_RESOURCE;
    }
  }
  *prepin_out = prepin.release();
  return success();
}

// pinrail_mpool_unpin() after its checks: removes the pins under the table's lock, then drops references without it.
Status unpin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count, uint32_t access) {
  std::vector<PinTable::Key> keys;
  for (size_t i = 0; i < count; ++i) {
    keys.push_back({reinterpret_cast<uintptr_t>(ranges[i].addr), ranges[i].length, access});
  }
  PinTable::Pins removed;
  {
    const deferred::Call call;
    if (!call) return PINRAIL_ERR_BUSY;
    if (thread::current() == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;  // it could drop no reference
    if (!pool->pins.remove(keys.data(), count, &removed)) return PINRAIL_ERR_NOT_FOUND;
  }
  drop_pins(&removed);
  return success();
}

// The parts of the range that lie in the spans, ascending and disjoint.
std::vector<Span> parts_of(const Span& range, std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.base < b.base; });
  std::vector<Span> parts;
  for (const Span& span : spans) {
    const Span part{std::max(span.base, range.base), std::min(span.end, range.end)};
    if (part.base >= part.end) continue;
    if (parts.empty() || part.base > parts.back().end) parts.push_back(part);
    parts.back().end = std::max(parts.back().end, part.end);
  }
  return parts;
}

// pinrail_mpool_query() after its checks. Takes no reference.
Status query(pinrail_mpool_t* pool, const Span& range, uint32_t access, pinrail_pinned_t* pinned_out,
             pinrail_range_t* ranges_out, size_t room, size_t* parts_out) {
  std::vector<Span> found;
  const Status status = list_registered(pool, range, access, &found);
  if (!status.ok()) return status;
  const std::vector<Span> parts = parts_of(range, std::move(found));
  for (size_t i = 0; i < std::min(room, parts.size()); ++i) ranges_out[i] = {pointer(parts[i].base), parts[i].length()};
  if (parts_out != nullptr) *parts_out = parts.size();
  const bool is_whole = parts.size() == 1 && parts[0].base == range.base && parts[0].end == range.end;
  *pinned_out = parts.empty() ? PINRAIL_PINNED_NONE : is_whole ? PINRAIL_PINNED_WHOLLY : PINRAIL_PINNED_PARTLY;
  return success();
}

}  // namespace
}  // namespace pinrail::api

using namespace pinrail;
using api::PinJob;

namespace {

// Checks the arguments of a call that pins, and fills in the defaults of its options. Returns a clause that names the
// first fault; NULL: none.
const char* read_call(api::Call* call, const pinrail_prepin_options_t* options) {
  const char* fault = api::fault_of(call->pool, call->ranges, call->count, call->access);
  if (fault == nullptr && options != nullptr) fault = api::fault_of(*options);
  if (fault == nullptr && options != nullptr) call->options = *options;
  return fault;
}

template <typename Body>
pinrail_status_t on_job(const char* name, pinrail_prepin_t* prepin, Body&& body) {
  if (prepin == nullptr) return api::refuse(name, "prepin is NULL");
  return api::on_work(prepin->job.get(), body);
}

}  // namespace

pinrail_status_t pinrail_mpool_prepin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count,
                                      uint32_t access, const pinrail_prepin_options_t* options,
                                      pinrail_status_t* statuses_out) {
  api::Call wanted = {pool, ranges, count, access, PINRAIL_PREPIN_OPTIONS_INIT};
  if (const char* const fault = read_call(&wanted, options)) return api::refuse(__func__, fault);
  return api::on_pool(pool, [&] { return api::prepin(wanted, statuses_out); });
}

pinrail_status_t pinrail_mpool_prepin_start(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count,
                                            uint32_t access, const pinrail_prepin_options_t* options,
                                            pinrail_prepin_t** prepin_out) {
  api::Call wanted = {pool, ranges, count, access, PINRAIL_PREPIN_OPTIONS_INIT};
  if (const char* const fault = read_call(&wanted, options)) return api::refuse(__func__, fault);
  if (prepin_out == nullptr) return api::refuse(__func__, "prepin_out is NULL");
  return api::on_pool(pool, [&] { return api::prepin_start(wanted, prepin_out); });
}

pinrail_status_t pinrail_prepin_read_progress(pinrail_prepin_t* prepin, pinrail_prepin_progress_t* progress_out) {
  if (progress_out == nullptr || progress_out->size != sizeof(*progress_out)) {
    return api::refuse(__func__, "progress_out is NULL, or its size is not set");
  }
  return on_job(__func__, prepin, [=](PinJob* job) { job->read_progress(progress_out); });
}

pinrail_status_t pinrail_prepin_wait(pinrail_prepin_t* prepin, pinrail_status_t* statuses_out) {
  return on_job(__func__, prepin, [=](PinJob* job) { return job->wait(statuses_out); });
}

pinrail_status_t pinrail_prepin_wait_range(pinrail_prepin_t* prepin, void* addr, size_t length) {
  if (const char* const fault = api::fault_of_range(addr, length)) return api::refuse(__func__, fault);
  return on_job(__func__, prepin,
                [=](PinJob* job) { return job->wait_range(Span::of(reinterpret_cast<uintptr_t>(addr), length)); });
}

pinrail_status_t pinrail_prepin_cancel(pinrail_prepin_t* prepin) {
  return on_job(__func__, prepin, [=](PinJob* job) { job->stop(); });
}

pinrail_status_t pinrail_prepin_free(pinrail_prepin_t* prepin) {
  if (prepin == nullptr) return api::refuse(__func__, "prepin is NULL");
  return api::end_work(prepin, prepin->job.get());
}

pinrail_status_t pinrail_mpool_unpin(pinrail_mpool_t* pool, const pinrail_range_t* ranges, size_t count,
                                     uint32_t access) {
  if (const char* const fault = api::fault_of(pool, ranges, count, access)) return api::refuse(__func__, fault);
  api::handle_fork();
  if (api::is_inherited(pool)) return PINRAIL_SUCCESS;  // pins of a parent's pool are not undone in a child
  return guarded([&] { return api::unpin(pool, ranges, count, access); });
}

pinrail_status_t pinrail_mpool_query(pinrail_mpool_t* pool, const void* addr, size_t length, uint32_t access,
                                     pinrail_pinned_t* pinned_out, pinrail_range_t* ranges_out, size_t room,
                                     size_t* parts_out) {
  if (pool == nullptr || pinned_out == nullptr) return api::refuse(__func__, "pool or pinned_out is NULL");
  if (ranges_out == nullptr && room != 0) return api::refuse(__func__, "ranges_out is NULL");
  const char* fault = api::fault_of_range(addr, length);
  if (fault == nullptr) fault = api::fault_of_access(access);
  if (fault != nullptr) return api::refuse(__func__, fault);
  return api::on_pool(pool, [&] {
    const Span range = Span::of(reinterpret_cast<uintptr_t>(addr), length);
    return api::query(pool, range, access, pinned_out, ranges_out, room, parts_out);
  });
}
