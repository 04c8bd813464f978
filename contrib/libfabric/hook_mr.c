// SPDX-License-Identifier: BSD-3-Clause
// Memory regions: the calls that a program makes to register, answered from the domain's pool, and the registrar that
// asks the provider.
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "contrib/libfabric/hook.h"

typedef struct hooked_mr {
  struct fid_mr mr;  // first: it is what the program holds
  hooked_domain_t* domain;
  struct fid_mr* own;
  pinrail_handle_t handle;
} hooked_mr_t;

// FI_READ has a right of its own in Pinrail, one that libfabric has no use for, because a provider may need more for it
// than for FI_RECV.
static const struct {
  uint64_t fabric;
  uint32_t pinrail;
} kAccess[] = {{FI_RECV, PINRAIL_ACCESS_LOCAL_WRITE},
               {FI_READ, PINRAIL_ACCESS_REMOTE_ATOMIC},
               {FI_REMOTE_READ, PINRAIL_ACCESS_REMOTE_READ},
               {FI_REMOTE_WRITE, PINRAIL_ACCESS_REMOTE_WRITE}};
static const uint64_t kLocalRead = FI_SEND | FI_WRITE;

enum { kKinds = sizeof(kAccess) / sizeof(*kAccess) };

// False: there is access among it that is not known here.
static bool rights_of(uint64_t access, uint32_t* rights_out) {
  uint32_t rights = 0;
  for (size_t i = 0; i < kKinds; ++i) {
    if ((access & kAccess[i].fabric) != 0) rights |= kAccess[i].pinrail;
    access &= ~kAccess[i].fabric;
  }
  *rights_out = rights;
  return (access & ~kLocalRead) == 0;
}
static uint64_t access_of(uint32_t rights) {
  uint64_t access = kLocalRead;
  for (size_t i = 0; i < kKinds; ++i) access |= (rights & kAccess[i].pinrail) != 0 ? kAccess[i].fabric : 0;
  return access;
}

// Other registrations may hold what the provider lacks.
static bool is_lack(int error) { return error == -FI_ENOMEM || error == -FI_EAGAIN || error == -FI_ENOSPC; }

static _Thread_local bool inside;     // the provider is called
static _Thread_local int last_error;  // of the provider

static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                     pinrail_registration_t* reg) {
  hooked_domain_t* const hooked = context;
  struct fid_mr* own = NULL;
  const bool before = inside;
  inside = true;
  last_error = hooked->own_mr->reg(&hooked->domain->fid, request->addr, request->length, access_of(request->rights), 0,
                                   0, 0, &own, NULL);
  inside = before;
  if (is_lack(last_error)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (last_error != 0) return PINRAIL_ERR_ERROR;
  atomic_fetch_add_explicit(&hooked->device_calls, 1, memory_order_relaxed);  // a figure
  memcpy(pinrail_registration_tail(reg), &own, sizeof(own));
  return PINRAIL_SUCCESS;
}

static struct fid_mr* own_of(const pinrail_registration_t* reg) {
  struct fid_mr* own;
  memcpy(&own, pinrail_registration_tail(reg), sizeof(own));
  return own;
}

static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)context, (void)reason;
  if (providers_are_gone()) return PINRAIL_SUCCESS;
  const bool before = inside;
  inside = true;
  const int result = fi_close(&own_of(reg)->fid);
  inside = before;
  return result == 0 ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

pinrail_registrar_t registrar_of_domain(hooked_domain_t* hooked) {
  return (pinrail_registrar_t){.size = sizeof(pinrail_registrar_t),
                               .name = "libfabric",
                               .context = hooked,
                               .thread_mode = hooked->threads,
                               .kinds = PINRAIL_KIND_HOST,
                               .granularity = 1,
                               .tail_size = sizeof(struct fid_mr*),
                               .register_mem = register_mem,
                               .deregister_mem = deregister_mem};
}

static int close_mr(struct fid* fid) {
  hooked_mr_t* const hooked = (hooked_mr_t*)fid;
  if (pinrail_mpool_deregister(hooked->handle) != PINRAIL_SUCCESS) return -FI_EINVAL;
  end_use(hooked->domain);
  free(hooked);
  return 0;
}
// A counter counts for the provider's region until that ends, so no later request may be answered from it.
static int bind_mr(struct fid* fid, struct fid* other, uint64_t flags) {
  const hooked_mr_t* const hooked = (hooked_mr_t*)fid;
  struct fid* const own = &hooked->own->fid;
  if (own->ops->bind == NULL) return -FI_ENOSYS;
  atomic_store(&hooked->domain->passes_through, true);
  const pinrail_registration_t* const reg = hooked->handle.reg;
  (void)pinrail_mpool_invalidate_range(hooked->domain->pool, reg->base, reg->length);
  return own->ops->bind(own, other, flags);
}
// FI_GET_RAW_MR and others; they are about the provider's region.
static int control_mr(struct fid* fid, int command, void* arg) {
  struct fid* const own = &((hooked_mr_t*)fid)->own->fid;
  return own->ops->control != NULL ? own->ops->control(own, command, arg) : -FI_ENOSYS;
}
static int open_no_ops(struct fid* fid, const char* name, uint64_t flags, void** ops, void* context) {
  (void)fid, (void)name, (void)flags, (void)ops, (void)context;
  return -FI_ENOSYS;
}
static struct fi_ops mr_ops = {
    .size = sizeof(struct fi_ops), .close = close_mr, .bind = bind_mr, .control = control_mr, .ops_open = open_no_ops};

// Instead of an error of libfabric, which is negative: the pool refused, and the provider did not. The program gets
// what it would get without a cache.
enum { kUncached = 1 };

static int register_cached(hooked_domain_t* domain, const struct iovec* range, uint32_t rights, void* context,
                           struct fid_mr** mr_out) {
  hooked_mr_t* const hooked = calloc(1, sizeof(*hooked));
  if (hooked == NULL || !begin_use(domain)) {
    free(hooked);
    return kUncached;
  }
  last_error = 0;
  const pinrail_status_t status =
      pinrail_mpool_register(domain->pool, range->iov_base, range->iov_len, rights, 0, &hooked->handle);
  if (status != PINRAIL_SUCCESS) {
    end_use(domain);
    free(hooked);
    return last_error != 0 ? last_error : kUncached;
  }
  hooked->domain = domain;
  hooked->own = own_of(hooked->handle.reg);
  hooked->mr = (struct fid_mr){.fid = {.fclass = FI_CLASS_MR, .context = context, .ops = &mr_ops},
                               .mem_desc = hooked->own->mem_desc,
                               .key = hooked->own->key};
  *mr_out = &hooked->mr;
  return 0;
}

static hooked_domain_t* domain_of(struct fid* fid) { return table_owner(((struct fid_domain*)fid)->mr); }

// What pools would refuse with a message about a call that the program did not make.
static bool is_range(const struct iovec* range) {
  return range->iov_base != NULL && range->iov_len != 0 && range->iov_len <= SIZE_MAX / 4 &&
         range->iov_len <= UINTPTR_MAX - (uintptr_t)range->iov_base;
}

// Ranges and access that a cached registration can serve.
static bool can_cache(hooked_domain_t* domain, const struct iovec* range, uint64_t offset, uint64_t flags,
                      uint64_t access, uint32_t* rights_out) {
  return !inside && domain->pool != NULL && is_range(range) && offset == 0 && flags == 0 &&
         !atomic_load(&domain->passes_through) && rights_of(access, rights_out);
}

// Whether the provider is to be asked once more, for a region of its own. Without the cache, what the pool keeps unused
// would not be there: it goes. The last try is for what was dead, and what other threads were giving back.
static bool has_made_room(hooked_domain_t* domain, int result, bool* is_last) {
  if (!is_lack(result) || inside || domain->pool == NULL || *is_last || !begin_use(domain)) return false;
  *is_last = pinrail_mpool_evict(domain->pool) != PINRAIL_SUCCESS;
  if (*is_last) (void)pinrail_mpool_ft_event(domain->pool, PINRAIL_FT_CHECKPOINT);
  end_use(domain);
  return true;
}

static int reg(struct fid* fid, const void* buffer, size_t length, uint64_t access, uint64_t offset,
               uint64_t requested_key, uint64_t flags, struct fid_mr** mr, void* context) {
  hooked_domain_t* const domain = domain_of(fid);
  const struct iovec range = {(void*)(uintptr_t)buffer, length};
  uint32_t rights;
  if (can_cache(domain, &range, offset, flags, access, &rights)) {
    const int result = register_cached(domain, &range, rights, context, mr);
    if (result != kUncached) return result;
  }
  int own_result;
  bool is_last = false;
  do own_result = domain->own_mr->reg(fid, buffer, length, access, offset, requested_key, flags, mr, context);
  while (has_made_room(domain, own_result, &is_last));
  return own_result;
}

static int regv(struct fid* fid, const struct iovec* ranges, size_t count, uint64_t access, uint64_t offset,
                uint64_t requested_key, uint64_t flags, struct fid_mr** mr, void* context) {
  hooked_domain_t* const domain = domain_of(fid);
  uint32_t rights;
  if (count == 1 && can_cache(domain, ranges, offset, flags, access, &rights)) {
    const int result = register_cached(domain, ranges, rights, context, mr);
    if (result != kUncached) return result;
  }
  int own_result;
  bool is_last = false;
  do own_result = domain->own_mr->regv(fid, ranges, count, access, offset, requested_key, flags, mr, context);
  while (has_made_room(domain, own_result, &is_last));
  return own_result;
}

// Without the capability FI_HMEM providers do not read the kind of memory, and programs need not write it.
static bool is_host_memory(const hooked_domain_t* domain, const struct fi_mr_attr* attr) {
  return !domain->names_kinds || attr->iface == FI_HMEM_SYSTEM;
}

static int regattr(struct fid* fid, const struct fi_mr_attr* attr, uint64_t flags, struct fid_mr** mr) {
  hooked_domain_t* const domain = domain_of(fid);
  uint32_t rights;
  if (flags == 0 && attr->iov_count == 1 && attr->auth_key_size == 0 && is_host_memory(domain, attr) &&
      can_cache(domain, attr->mr_iov, attr->offset, flags, attr->access, &rights)) {
    const int result = register_cached(domain, attr->mr_iov, rights, attr->context, mr);
    if (result != kUncached) return result;
  }
  int own_result;
  bool is_last = false;
  do own_result = domain->own_mr->regattr(fid, attr, flags, mr);
  while (has_made_room(domain, own_result, &is_last));
  return own_result;
}

void fill_mr_table(struct fi_ops_mr* table) {
  table->reg = reg;
  table->regv = regv;
  table->regattr = regattr;
}
