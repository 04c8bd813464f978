// SPDX-License-Identifier: BSD-3-Clause
// ends.h - two endpoints of one process that send to each other, for programs of libfabric alone.
#ifndef PINRAIL_TEST_LIBFABRIC_ENDS_H
#define PINRAIL_TEST_LIBFABRIC_ENDS_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct end {
  struct fid_ep* ep;
  struct fid_cq* cq;
  struct fid_av* av;
  fi_addr_t other;
} end_t;

static struct fi_info* info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;

static void stop_unless(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "FAILED: %s\n", what);
  exit(1);
}

// Exit status 77: the provider is not usable here.
static void open_provider(const char* provider, const char* address, uint64_t caps, int mr_mode) {
  struct fi_info* const hints = fi_allocinfo();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = caps;
  hints->domain_attr->mr_mode = mr_mode;
  hints->fabric_attr->prov_name = strdup(provider);
  const int found = fi_getinfo(FI_VERSION(1, 14), address, NULL, FI_SOURCE, hints, &info);
  fi_freeinfo(hints);
  if (found != 0) {
    printf("SKIP: libfabric finds nothing for its provider %s\n", provider);
    exit(77);
  }
  stop_unless(fi_fabric(info->fabric_attr, &fabric, NULL) == 0, "fi_fabric");
  stop_unless(fi_domain(fabric, info, &domain, NULL) == 0, "fi_domain");
}

static void open_end(end_t* end) {
  struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT};
  struct fi_av_attr av = {.type = FI_AV_UNSPEC};
  stop_unless(fi_endpoint(domain, info, &end->ep, NULL) == 0, "fi_endpoint");
  stop_unless(fi_cq_open(domain, &cq, &end->cq, NULL) == 0, "fi_cq_open");
  stop_unless(fi_av_open(domain, &av, &end->av, NULL) == 0, "fi_av_open");
  stop_unless(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV) == 0, "fi_ep_bind");
  stop_unless(fi_ep_bind(end->ep, &end->av->fid, 0) == 0, "fi_ep_bind");
  stop_unless(fi_enable(end->ep) == 0, "fi_enable");
}

static void introduce(end_t* to, const end_t* whom) {
  char name[256];
  size_t length = sizeof(name);
  stop_unless(fi_getname(&whom->ep->fid, name, &length) == 0, "fi_getname");
  stop_unless(fi_av_insert(to->av, name, 1, &to->other, 0, NULL) == 1, "fi_av_insert");
}

#endif
