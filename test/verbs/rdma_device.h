// SPDX-License-Identifier: BSD-3-Clause
// rdma_device.h - one port of an RDMA device that talks to itself: a protection domain, and reliable connections
// between queue pairs of this process.
//
// Owns     the device's context and the protection domain. Queue pairs and completion queues are the caller's, and go
//          before close().
// Threads  any, after open() and before close().
#ifndef PINRAIL_TEST_VERBS_RDMA_DEVICE_H
#define PINRAIL_TEST_VERBS_RDMA_DEVICE_H

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace pinrail::test {

class RdmaDevice {
 public:
  // device: its name, or "" for the first one. gid_index: below 0, the first of RoCE v2 over IPv4.
  // Empty if all is well, else what is missing.
  std::string open(const std::string& device, uint8_t port, int gid_index);
  void close();

  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }

  // NULL if there is none to be had.
  ibv_qp* make_queue_pair(ibv_cq* cq) const;
  // Ready to send and to receive, each with the other. Empty, or what is wrong.
  std::string join(ibv_qp* one, ibv_qp* other) const;

 private:
  std::string open_device(const std::string& name);
  std::string choose_gid(int gid_index);
  int connect(ibv_qp* qp, uint32_t peer) const;

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  uint8_t port_ = 1;
  uint8_t gid_index_ = 0;
  ibv_gid gid_{};
  ibv_port_attr attributes_{};
};

// Waits up to 10 s for the completion of that number, and drops others: they belong to operations that were given up.
// False, and a line on stderr, if it does not come or says that the operation failed.
bool wait_for_completion(ibv_cq* cq, uint64_t number);

}  // namespace pinrail::test

#endif
