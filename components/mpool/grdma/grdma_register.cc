// SPDX-License-Identifier: BSD-3-Clause
// The way in: what the API did not answer. API context. The caller holds no lock, because a miss calls the
// registrar. The calling thread may hold references, and takes one more by each successful call.
#include <sys/stat.h>

#include "components/mpool/grdma/grdma.h"
#include "framework/registrar/request.h"

namespace pinrail::grdma {

// Searches the index. Counts a hit.
bool Pool::find_answer(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if (!find_indexed(thread, request.span, request.access(), reg_out)) return false;
  count_answer(thread, request, *reg_out);
  return true;
}

// The calling thread holds it.
void Pool::count_answer(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  count_hit(thread, reg);
  extents_.answered(reg, request.span);
}

// A registration that answers, or a new one. The outcome is a reference.
Status Pool::acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if (request.span.base == 0) return PINRAIL_ERR_BAD_PARAM;  // rounded out; before anything is evicted for it
  const size_t max_length = max_length_of(limits_of_registrar_, request.traits(), request.span);
  if (max_length != 0 && request.span.length() > max_length) return PINRAIL_ERR_NOT_SUPPORTED;
  drain_in_call(thread);
  if (request.has(PINRAIL_FLAG_CACHE_BYPASS)) return register_own(thread, request, reg_out);
  if (thread->in_registrar == 0) return miss(thread, request, reg_out);
  // A thread that is inside its own registrar call would wait for itself: it gets an uncached registration (R5), unless
  // one is cached.
  if (request.may_hit() && find_answer(thread, request, reg_out)) return success();
  return register_own(thread, request, reg_out);
}

// The API has checked that the range does not wrap.
Status Pool::register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags,
                          pinrail_handle_t* handle_out) {
  Request request{span, access_and_flags};
  if (!round_out(&request.span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  pinrail_registration_t* reg = nullptr;
  const Status status = acquire(thread, request, &reg);
  if (status.ok()) *handle_out = handle_of(reg);
  return status;
}

// A registration of the caller's own, or a persistent one.
Status Pool::register_with(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                           const pinrail_register_options_t& options, pinrail_handle_t* handle_out) {
  Span rounded = span;
  if (!round_out(&rounded, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  const uint64_t before = span.base - rounded.base;
  const bool is_dmabuf = options.dmabuf_fd >= 0;
  if (is_dmabuf && options.dmabuf_offset < before) return PINRAIL_ERR_BAD_PARAM;
  if (options.iova != 0 && options.iova <= before) return PINRAIL_ERR_BAD_PARAM;
  struct stat file {};
  if (is_dmabuf) fstat(options.dmabuf_fd, &file);  // the registrar says what is wrong with it
  const Extra extra = {options.dmabuf_fd,
                       is_dmabuf ? options.dmabuf_offset - before : 0,
                       options.iova == 0 ? 0 : options.iova - before,
                       options.argument,
                       options.user_value,
                       file.st_ino};
  pinrail_registration_t* reg;
  const Status status = acquire(thread, {rounded, access_and_flags, 0, &extra}, &reg);
  if (status.ok()) *handle_out = handle_of(reg);
  return status;
}

// A hit, or NOT_FOUND; the registrar is not called for it, but the gc list may be drained.
Status Pool::find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
  Request request{span, access_and_flags};
  if (!round_out(&request.span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  if (thread->in_registrar == 0 && gc_list.is_due()) drain(thread, SIZE_MAX);
  pinrail_registration_t* reg;
  if (!find_answer(thread, request, &reg)) return PINRAIL_ERR_NOT_FOUND;
  *handle_out = handle_of(reg);
  return success();
}

// For a forked child: no lock and no list.
void Pool::counters(pinrail_mpool_stats_t* stats_out) const {
  Base::counters(stats_out);
  stats_out->extent_hits = extents_.hits();
  stats_out->extent_lost = extents_.lost();
  stats_out->peak_registered_bytes = cache_->peak_bytes();
}

}  // namespace pinrail::grdma
