// SPDX-License-Identifier: BSD-3-Clause
// close_unread.c - a program of libfabric alone, without Pinrail: an endpoint is closed while messages that arrived
// have not been read.
//
//   close_unread PROVIDER ADDRESS
//
// Under libfabric 1.17 and 2.1 over verbs;ofi_rxm this is a use after free, which AddressSanitizer in libfabric
// reports: rxm_close_conn() closes the connection's endpoint and then handles what had completed for it, which posts
// receives to it. Exit status 0: it was closed; 77: the provider is not usable here.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMessages = 16, kBytes = 64, kSeconds = 20 };

typedef struct end {
  struct fid_ep* ep;
  struct fid_cq* cq;
  struct fid_av* av;
  fi_addr_t other;
} end_t;

static struct fi_info* info;
static struct fid_domain* domain;

static void stop_unless(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "FAILED: %s\n", what);
  exit(1);
}

static void open_provider(const char* provider, const char* address) {
  struct fid_fabric* fabric;
  struct fi_info* const hints = fi_allocinfo();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
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

static int read_one(const end_t* end) {
  struct fi_cq_entry entry;
  return fi_cq_read(end->cq, &entry, 1) == 1;
}

// receiver: read as well, because a connection is made only so; NULL: not read.
static void send_one(const end_t* sender, const end_t* receiver, const char* text) {
  const time_t end = time(NULL) + kSeconds;
  ssize_t posted;
  while ((posted = fi_send(sender->ep, text, kBytes, NULL, sender->other, NULL)) == -FI_EAGAIN && time(NULL) < end) {
    (void)read_one(sender);
    if (receiver != NULL) (void)read_one(receiver);
  }
  stop_unless(posted == 0, "fi_send");
  while (!read_one(sender)) {
    stop_unless(time(NULL) < end, "the message did not leave");
    if (receiver != NULL) (void)read_one(receiver);
  }
}

int main(int argc, char** argv) {
  static char text[kBytes], received[kBytes];
  end_t sender, receiver;
  stop_unless(argc == 3, "close_unread PROVIDER ADDRESS");
  open_provider(argv[1], argv[2]);
  open_end(&sender);
  open_end(&receiver);
  introduce(&sender, &receiver);
  stop_unless(fi_recv(receiver.ep, received, kBytes, NULL, FI_ADDR_UNSPEC, NULL) == 0, "fi_recv");
  send_one(&sender, &receiver, text);
  for (int i = 0; i < kMessages; ++i) send_one(&sender, NULL, text);
  stop_unless(fi_close(&receiver.ep->fid) == 0, "fi_close");
  printf("closed\n");
  return 0;
}
