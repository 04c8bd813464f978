// SPDX-License-Identifier: BSD-3-Clause
#include "test/libfabric/provider_double.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static atomic_ullong made, live, most_live = UINT64_MAX;
static atomic_ullong leaving;
static atomic_uint slow_ms;
static atomic_bool is_cleaned_up;

enum { REMEMBERED = 64 };
static struct {
  uint64_t access;
  size_t length;
} regions[REMEMBERED];  // by key

EXPORTED uint64_t provider_double_made(void) { return made; }
EXPORTED uint64_t provider_double_access(uint64_t key) { return regions[key % REMEMBERED].access; }
EXPORTED size_t provider_double_length(uint64_t key) { return regions[key % REMEMBERED].length; }
EXPORTED void provider_double_slow(unsigned ms) { slow_ms = ms; }
EXPORTED uint64_t provider_double_leaving(void) { return leaving; }
EXPORTED uint64_t provider_double_live(void) { return live; }
EXPORTED void provider_double_most_live(uint64_t count) { most_live = count; }

static int close_mr(struct fid* fid) {
  if (is_cleaned_up) abort();
  ++leaving;
  if (slow_ms != 0) usleep(slow_ms * 1000);
  --leaving;
  --live;
  free(fid);
  return 0;
}
static int bind_nothing(struct fid* fid, struct fid* other, uint64_t flags) {
  (void)fid, (void)other, (void)flags;
  return 0;
}
static struct fi_ops mr_ops = {.size = sizeof(mr_ops), .close = close_mr, .bind = bind_nothing};

static int make(struct fid_mr** mr_out, void* context) {
  if (live >= most_live) return -FI_ENOMEM;
  struct fid_mr* const mr = calloc(1, sizeof(*mr));
  if (mr == NULL) return -FI_ENOMEM;
  ++live;
  mr->fid = (struct fid){.fclass = FI_CLASS_MR, .context = context, .ops = &mr_ops};
  mr->key = ++made;
  *mr_out = mr;
  return 0;
}

static int reg(struct fid* fid, const void* buffer, size_t length, uint64_t access, uint64_t offset, uint64_t key,
               uint64_t flags, struct fid_mr** mr_out, void* context) {
  (void)fid, (void)offset, (void)key, (void)flags;
  if (length > UINTPTR_MAX - (uintptr_t)buffer) return -FI_EFAULT;
  const int result = make(mr_out, context);
  if (result != 0) return result;
  regions[(*mr_out)->key % REMEMBERED].access = access;
  regions[(*mr_out)->key % REMEMBERED].length = length;
  return 0;
}
static int regv(struct fid* fid, const struct iovec* ranges, size_t count, uint64_t access, uint64_t offset,
                uint64_t key, uint64_t flags, struct fid_mr** mr_out, void* context) {
  (void)fid, (void)ranges, (void)count, (void)access, (void)offset, (void)key, (void)flags;
  return make(mr_out, context);
}
static int regattr(struct fid* fid, const struct fi_mr_attr* attr, uint64_t flags, struct fid_mr** mr_out) {
  (void)fid, (void)flags;
  return make(mr_out, attr->context);
}
static struct fi_ops_mr mr_table = {.size = sizeof(mr_table), .reg = reg, .regv = regv, .regattr = regattr};

static int close_object(struct fid* fid) {
  free(fid);
  return 0;
}
static struct fi_ops object_ops = {.size = sizeof(object_ops), .close = close_object, .bind = bind_nothing};

static int is_own(const struct fid_mr* mr) { return mr->fid.ops == &mr_ops; }
static struct provider_double_functions functions = {.is_own = is_own};

static int open_functions(struct fid* fid, const char* name, uint64_t flags, void** functions_out, void* context) {
  (void)fid, (void)flags, (void)context;
  if (strcmp(name, PROVIDER_DOUBLE_FUNCTIONS) != 0) return -FI_ENOSYS;
  *functions_out = &functions;
  return 0;
}
static struct fi_ops domain_ops = {
    .size = sizeof(domain_ops), .close = close_object, .bind = bind_nothing, .ops_open = open_functions};

static int open_domain(struct fid_fabric* fabric, struct fi_info* info, struct fid_domain** domain_out, void* context) {
  (void)fabric, (void)info;
  struct fid_domain* const domain = calloc(1, sizeof(*domain));
  if (domain == NULL) return -FI_ENOMEM;
  domain->fid = (struct fid){.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &domain_ops};
  domain->mr = &mr_table;
  *domain_out = domain;
  return 0;
}
static struct fi_ops_fabric fabric_table = {.size = sizeof(fabric_table), .domain = open_domain};

static int open_fabric(struct fi_fabric_attr* attr, struct fid_fabric** fabric_out, void* context) {
  (void)attr;
  struct fid_fabric* const fabric = calloc(1, sizeof(*fabric));
  if (fabric == NULL) return -FI_ENOMEM;
  fabric->fid = (struct fid){.fclass = FI_CLASS_FABRIC, .context = context, .ops = &object_ops};
  fabric->ops = &fabric_table;
  *fabric_out = fabric;
  return 0;
}

static int get_info(uint32_t version, const char* node, const char* service, uint64_t flags,
                    const struct fi_info* hints, struct fi_info** info_out) {
  (void)node, (void)service, (void)flags;
  // Providers that are layered on others ask for other endpoints.
  if (hints == NULL || hints->ep_attr == NULL || hints->ep_attr->type != FI_EP_RDM) return -FI_ENODATA;
  struct fi_info* const info = fi_allocinfo();
  if (info == NULL) return -FI_ENOMEM;
  info->ep_attr->type = FI_EP_RDM;
  info->caps = hints->caps & FI_HMEM;
  info->fabric_attr->name = strdup("double");
  info->fabric_attr->api_version = version;
  info->domain_attr->name = strdup("double");
  info->domain_attr->mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
  info->domain_attr->threading = FI_THREAD_SAFE;
  *info_out = info;
  return 0;
}

static void clean_up(void) { is_cleaned_up = true; }

static struct fi_provider provider = {.version = FI_VERSION(1, 0),
                                      .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                                      .name = PROVIDER_DOUBLE,
                                      .getinfo = get_info,
                                      .fabric = open_fabric,
                                      .cleanup = clean_up};

EXPORTED struct fi_provider* fi_prov_ini(void);
struct fi_provider* fi_prov_ini(void) {
  return &provider;
}
