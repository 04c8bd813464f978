// SPDX-License-Identifier: BSD-3-Clause
// request.h - what registrars do alike: their tables, the place of the tail, checks of a request.
//
// Threads  all functions may run together, in any context.
#ifndef PINRAIL_FRAMEWORK_REGISTRAR_REQUEST_H
#define PINRAIL_FRAMEWORK_REGISTRAR_REQUEST_H

#include <pinrail/registrar.h>

#include "base/core/span.h"
#include "base/core/status.h"

namespace pinrail {

// The registrar's tail of a registration: it begins right behind it, at a multiple of 64. For components, which use no
// symbol of the library.
inline void* registrar_tail(pinrail_registration_t* reg) {
  static_assert(sizeof(pinrail_registration_t) % 64 == 0, "a tail starts right behind the registration");
  return reg + 1;
}
inline const void* registrar_tail(const pinrail_registration_t* reg) { return reg + 1; }

// The table of a registrar of ours, whose calls may run together; what is left out is zero.
inline pinrail_registrar_t make_registrar(const char* name, void* context, uint32_t kinds, size_t granularity,
                                          decltype(pinrail_registrar_t::register_mem) register_mem,
                                          decltype(pinrail_registrar_t::deregister_mem) deregister_mem) {
  auto table = sized<pinrail_registrar_t>();
  table.name = name;
  table.context = context;
  table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table.kinds = kinds;
  table.granularity = granularity;
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
  return table;
}

// Whether the request is for all memory of the process, on demand: see PINRAIL_ON_DEMAND_IMPLICIT.
inline bool is_for_all_memory(const pinrail_registrar_t& table, uint32_t traits, const Span& span) {
  return (traits & PINRAIL_TRAIT_ON_DEMAND) != 0 && table.on_demand == PINRAIL_ON_DEMAND_IMPLICIT &&
         span.base == table.granularity && span.end == (UINTPTR_MAX & ~(table.granularity - 1));
}
inline bool is_for_all_memory(const pinrail_registrar_t& table, const pinrail_register_request_t& request) {
  return is_for_all_memory(table, request.traits, Span::of(request.addr, request.length));
}

// The longest range of one registration in bytes, on demand or not; 0: no maximum.
inline size_t longest_of(const pinrail_registrar_t& table, bool on_demand) {
  return on_demand && table.on_demand != PINRAIL_ON_DEMAND_NONE ? table.on_demand_max_length : table.max_length;
}

// The longest range of a request with these traits in bytes; 0: no maximum.
inline size_t max_length_of(const pinrail_registrar_t& table, uint32_t traits, const Span& span) {
  if (is_for_all_memory(table, traits, span)) return 0;
  return longest_of(table, (traits & PINRAIL_TRAIT_ON_DEMAND) != 0);
}

// Checks a request against the table. VERSION: the request is too short. BAD_PARAM: unknown bits, or an empty,
// wrapping or unaligned range. NOT_SUPPORTED: a kind or a length that the table excludes. Restrictions of rights and
// traits are left to the registrar.
inline Status check_request(const pinrail_registrar_t& table, const pinrail_register_request_t& request) {
  if (request.size < sizeof(request)) return PINRAIL_ERR_VERSION;
  if (request.kind == 0 || (request.kind & (request.kind - 1)) != 0) return PINRAIL_ERR_BAD_PARAM;
  if ((request.kind & table.kinds) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if ((request.rights & ~uint32_t{PINRAIL_RIGHTS_MASK}) != 0) return PINRAIL_ERR_BAD_PARAM;
  if ((request.traits & ~uint32_t{PINRAIL_TRAITS_MASK}) != 0) return PINRAIL_ERR_BAD_PARAM;
  const uintptr_t addr = reinterpret_cast<uintptr_t>(request.addr);
  if (addr == 0 || request.length == 0 || !fits(addr, request.length)) return PINRAIL_ERR_BAD_PARAM;
  if (((addr | request.length) & (table.granularity - 1)) != 0) return PINRAIL_ERR_BAD_PARAM;
  const size_t most = max_length_of(table, request.traits, Span::of(addr, request.length));
  return most != 0 && request.length > most ? PINRAIL_ERR_NOT_SUPPORTED : PINRAIL_SUCCESS;
}

// Where the details of a registration lie in its tail, which begins with the registrar's: see register_with in
// component_mpool.h.
constexpr size_t details_offset(size_t registrar_tail) { return ((registrar_tail + 7) & ~size_t{7}) + 8; }

// What a pool asks: to register the range of the registration. Descriptor and handle are the caller's to add.
inline pinrail_register_request_t device_request(const pinrail_registration_t* reg, uint32_t kind) {
  auto request = sized<pinrail_register_request_t>();
  request.kind = kind;
  request.rights = reg->rights;
  request.traits = reg->traits;
  request.fd = -1;
  request.addr = reg->base;
  request.length = reg->length;
  return request;
}

// Whether the request has a device address of its own.
inline bool has_own_iova(const pinrail_register_request_t& request) {
  return request.iova != 0 && request.iova != reinterpret_cast<uintptr_t>(request.addr);
}

// Asks the registrar for the allocation of GPU memory that contains the range. Errors as answer_of_foreign(), and
// BAD_PARAM: it does not contain all of it.
inline Status identify(const pinrail_registrar_t& table, const Span& asked, pinrail_gpu_range_t* range_out) {
  range_out->size = sizeof(*range_out);
  const Status status =
      answer_of_foreign([&] { return table.identify(table.context, pointer(asked.base), range_out); });
  if (!status.ok()) return status;
  return Span::of(range_out->base, range_out->length).contains(asked) ? PINRAIL_SUCCESS : PINRAIL_ERR_BAD_PARAM;
}

// Whether [offset, offset + length) lies within the registration.
inline bool within(const pinrail_registration_t& reg, size_t offset, size_t length) {
  return offset <= reg.length && length <= reg.length - offset;
}

}  // namespace pinrail

#endif
