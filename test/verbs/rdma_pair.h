// SPDX-License-Identifier: BSD-3-Clause
// rdma_pair.h - two connected queue pairs on one RDMA device: one asks, the other's registrations are read and written.
//
// Owns     the device, the completion queue, queue pairs, and the asker's own buffer.
// Threads  read() and write() may run together; they take turns.
#ifndef PINRAIL_TEST_VERBS_RDMA_PAIR_H
#define PINRAIL_TEST_VERBS_RDMA_PAIR_H

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "test/integrity/integrity.h"
#include "test/verbs/rdma_device.h"

namespace pinrail::test {

class RdmaPair : public Mover {
 public:
  // buffer_bytes: the longest transfer. Empty if all is well, else what is wrong.
  std::string open(const std::string& device, uint8_t port, int gid_index, size_t buffer_bytes);
  void close();

  // To lend to a pool.
  ibv_pd* pd() const { return device_.pd(); }

  pinrail_status_t read(pinrail_handle_t handle, size_t offset, void* into, size_t length) override;
  pinrail_status_t write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) override;

 private:
  std::string make_queue_pairs();
  void end_queue_pairs();
  bool operate(ibv_wr_opcode opcode, pinrail_handle_t handle, size_t offset, size_t length);

  RdmaDevice device_;
  std::vector<char> buffer_;
  ibv_mr* buffer_mr_ = nullptr;

  std::mutex mutex_;  // guards the queue pairs, the completion queue and the buffer's bytes
  ibv_cq* cq_ = nullptr;
  ibv_qp* asker_ = nullptr;
  ibv_qp* target_ = nullptr;
  uint64_t operations_ = 0;
};

}  // namespace pinrail::test

#endif
