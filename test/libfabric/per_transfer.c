// SPDX-License-Identifier: BSD-3-Clause
// per_transfer.c - a program of libfabric alone that registers and closes memory around each transfer.
//
//   per_transfer PROVIDER ADDRESS TRANSFERS REMAP_EVERY KIBIBYTES BUFFERS [basic|early]
//
// Each transfer is an RMA write of 4 KiB between two buffers of this process, which are registered whole, by an
// endpoint to another one; then the bytes are compared. BUFFERS of each kind serve in turn. REMAP_EVERY n: before each
// n-th transfer the destination is unmapped and other pages are mapped at its address; 0: never. basic: with
// FI_MR_BASIC, which providers without a device can have. early: likewise, and the domain is closed too early at first.
// The last line says how long the program's calls of fi_mr_reg and fi_close took for a transfer, without the reading of
// the clock. Run with and without FI_HOOK=pinrail.
//
// Exit status 0: all bytes were right; 1: not so; 77: the provider is not usable here.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { kMostBuffers = 64, kSent = 4096, kTimedCalls = 4, kSeconds = 20, kBasicMode = 1 << 0 };

// Two endpoints of one process that send to each other.
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

typedef struct totals {
  unsigned long transfers, failed, wrong_bytes;
  double us;     // of the transfer under way
  double* each;  // of all transfers
} totals_t;

static size_t bytes;
static unsigned long buffers;

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

// What reading the clock takes once, which in an emulated guest is more than a hit. Each timed call contains as much.
static double clock_cost(void) {
  enum { kTries = 1000 };
  const double start = now_us();
  for (int i = 0; i < kTries; ++i) (void)now_us();
  return (now_us() - start) / kTries;
}

static void close_end(end_t* end) {
  fi_close(&end->ep->fid);
  fi_close(&end->cq->fid);
  fi_close(&end->av->fid);
}

// Both ends are read, because a provider may make progress only then. 1: it is complete; 0: not yet; -1: it failed.
static int poll_ends(const end_t* sender, const end_t* receiver) {
  struct fi_cq_entry entry;
  (void)fi_cq_read(receiver->cq, &entry, 1);
  const ssize_t got = fi_cq_read(sender->cq, &entry, 1);
  if (got == -FI_EAGAIN) return 0;
  return got == 1 ? 1 : -1;
}

static int write_by_rma(const end_t* sender, const end_t* receiver, char* from, struct fid_mr* source, char* to,
                        struct fid_mr* sink) {
  const struct iovec local = {from + bytes - kSent, kSent};
  const struct fi_rma_iov remote = {(uint64_t)(uintptr_t)(to + bytes - kSent), kSent, fi_mr_key(sink)};
  void* desc = fi_mr_desc(source);
  const struct fi_msg_rma message = {
      .msg_iov = &local, .desc = &desc, .iov_count = 1, .addr = sender->other, .rma_iov = &remote, .rma_iov_count = 1};
  const double end = now_us() + kSeconds * 1e6;
  ssize_t posted;
  while ((posted = fi_writemsg(sender->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)) == -FI_EAGAIN) {
    if (now_us() > end || poll_ends(sender, receiver) != 0) return 0;
  }
  if (posted != 0) return 0;
  for (;;) {
    const int done = poll_ends(sender, receiver);
    if (done != 0) return done == 1;
    if (now_us() > end) return 0;
  }
}

static struct fid_mr* timed_reg(totals_t* totals, void* buffer, uint64_t access) {
  static uint64_t key;  // for a provider that takes the program's
  struct fid_mr* mr = NULL;
  const double start = now_us();
  const int result = fi_mr_reg(domain, buffer, bytes, access, 0, ++key, 0, &mr, &totals);
  totals->us += now_us() - start;
  stop_unless(result == 0, "fi_mr_reg");
  stop_unless(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == &totals, "the region is the program's");
  return mr;
}

static void timed_close(totals_t* totals, struct fid_mr* mr) {
  const double start = now_us();
  const int result = fi_close(&mr->fid);
  totals->us += now_us() - start;
  stop_unless(result == 0, "fi_close of a region");
}

static char* map(void* at) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at != NULL ? MAP_FIXED_NOREPLACE : 0);
  void* const got = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  stop_unless(got != MAP_FAILED && (at == NULL || got == at), "mmap");
  return got;
}

static void transfer(const end_t* sender, const end_t* receiver, char* from, char* to, totals_t* totals) {
  const char pattern = (char)('A' + totals->transfers % 26);
  memset(from + bytes - kSent, pattern, kSent);
  memset(to + bytes - kSent, 0, kSent);
  totals->us = 0;
  struct fid_mr* const source = timed_reg(totals, from, FI_WRITE);
  struct fid_mr* const sink = timed_reg(totals, to, FI_REMOTE_WRITE);
  if (!write_by_rma(sender, receiver, from, source, to, sink)) ++totals->failed;
  timed_close(totals, source);
  timed_close(totals, sink);
  for (size_t i = bytes - kSent; i < bytes; ++i) totals->wrong_bytes += to[i] != pattern;
  totals->each[totals->transfers++] = totals->us;
}

static int compare(const void* a, const void* b) {
  const double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

static void run(unsigned long count, unsigned long remap_every, totals_t* totals) {
  end_t ends[2];
  char *from[kMostBuffers], *to[kMostBuffers];
  open_end(&ends[0]);
  open_end(&ends[1]);
  introduce(&ends[0], &ends[1]);
  introduce(&ends[1], &ends[0]);
  for (unsigned long i = 0; i < buffers; ++i) from[i] = map(NULL);
  for (unsigned long i = 0; i < buffers; ++i) to[i] = map(NULL);
  while (totals->transfers < count && totals->failed == 0) {
    const unsigned long at = totals->transfers % buffers;
    if (remap_every != 0 && totals->transfers % remap_every == remap_every - 1) {
      munmap(to[at], bytes);
      to[at] = map(to[at]);
    }
    transfer(&ends[0], &ends[1], from[at], to[at], totals);
  }
  close_end(&ends[0]);
  close_end(&ends[1]);
}

// A domain that is in use stays open, with a cache as without, and works on.
static void closes_only_when_unused(void) {
  totals_t totals = {0};
  end_t end;
  char* const buffer = map(NULL);
  open_end(&end);
  stop_unless(fi_close(&domain->fid) == -FI_EBUSY, "a domain with an endpoint stays open");
  struct fid_mr* const first = timed_reg(&totals, buffer, FI_WRITE);
  close_end(&end);
  stop_unless(fi_close(&domain->fid) == -FI_EBUSY, "a domain with a region stays open");
  struct fid_mr* const second = timed_reg(&totals, buffer, FI_WRITE);
  stop_unless(second != first, "each registration is a region of its own");
  timed_close(&totals, first);
  timed_close(&totals, second);
  munmap(buffer, bytes);
}

int main(int argc, char** argv) {
  stop_unless(argc == 7 || argc == 8, "usage: per_transfer PROVIDER ADDRESS TRANSFERS REMAP_EVERY KIBIBYTES BUFFERS");
  const unsigned long count = strtoul(argv[3], NULL, 10);
  totals_t totals = {.each = calloc(count + 1, sizeof(double))};
  bytes = strtoul(argv[5], NULL, 10) * 1024;
  buffers = strtoul(argv[6], NULL, 10);
  stop_unless(count > 1 && buffers > 0 && buffers <= kMostBuffers && bytes >= kSent && totals.each != NULL, "numbers");
  const int device_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  open_provider(argv[1], argv[2], FI_MSG | FI_RMA, argc == 8 ? kBasicMode : device_mode);
  const double clock_us = clock_cost();
  if (argc == 8 && strcmp(argv[7], "early") == 0) closes_only_when_unused();
  run(count, strtoul(argv[4], NULL, 10), &totals);
  const double first = totals.each[0];
  qsort(totals.each + 1, totals.transfers - 1, sizeof(double), compare);
  printf("transfers %lu failed %lu wrong_bytes %lu first_us %.1f median_us %.3f\n", totals.transfers, totals.failed,
         totals.wrong_bytes, first, totals.each[1 + (totals.transfers - 1) / 2] - kTimedCalls * clock_us);
  stop_unless(fi_close(&domain->fid) == 0, "fi_close of the domain");
  stop_unless(fi_close(&fabric->fid) == 0, "fi_close of the fabric");
  fi_freeinfo(info);
  free(totals.each);
  return totals.failed + totals.wrong_bytes == 0 ? 0 : 1;
}
