// SPDX-License-Identifier: BSD-3-Clause
// close_unread.c - a program of libfabric alone, without Pinrail: an endpoint is closed while messages that arrived
// have not been read.
//
//   close_unread PROVIDER ADDRESS
//
// Under libfabric 1.17 and 2.1 over verbs;ofi_rxm this is a use after free, which AddressSanitizer in libfabric
// reports: rxm_close_conn() closes the connection's endpoint and then handles what had completed for it, which posts
// receives to it. Exit status 0: it was closed; 77: the provider is not usable here.
#include <time.h>

#include "test/libfabric/ends.h"

enum { kMessages = 16, kBytes = 64, kSeconds = 20 };

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
  open_provider(argv[1], argv[2], FI_MSG, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
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
