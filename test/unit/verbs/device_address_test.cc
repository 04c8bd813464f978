// SPDX-License-Identifier: BSD-3-Clause
// A transfer addresses a region as the device does: at its iova, which need not be its address in this process. The
// queue pair is a double that notes what is posted.
#include <gtest/gtest.h>

#include <vector>

#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {

// Of verbs_component.cc. Nothing is to be reported here.
void report(const Registrar&, const char* topic, size_t, int) { ADD_FAILURE() << topic; }

namespace {

constexpr uint64_t kIova = 0x7000000;
constexpr size_t kPage = 4096;

std::vector<uint64_t> remotes;  // of the operations that were posted
uint64_t last_operation = 0;

int post_send(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  remotes.push_back(request->wr.rdma.remote_addr);
  last_operation = request->wr_id;
  return 0;
}
int poll_cq(ibv_cq*, int, ibv_wc* completion) {
  completion->wr_id = last_operation;
  completion->status = IBV_WC_SUCCESS;
  return 1;
}

ibv_mr region{};
ibv_mr* reg_mr_iova2(ibv_pd*, void*, size_t, uint64_t, unsigned) { return &region; }
ibv_mr* reg_mr(ibv_pd*, void*, size_t, int) { return &region; }

class DeviceAddress : public testing::Test {
 protected:
  void SetUp() override {
    remotes.clear();
    registrar_.limits.granularity = kPage;
    registrar_.limits.kinds = PINRAIL_KIND_HOST;
    registrar_.library.reg_mr_iova2 = reg_mr_iova2;
    registrar_.library.reg_mr = reg_mr;
    context_.ops.post_send = post_send;
    context_.ops.poll_cq = poll_cq;
    qp_.context = cq_.context = &context_;
    Guard guard(registrar_.transfer);
    registrar_.loopback.qp = &qp_;
    registrar_.loopback.cq = &cq_;
    registrar_.loopback.mr = &region;
    registrar_.loopback.bounce = bounce_.data();
  }
  // Registers two pages at that address of the device; 0: at their own.
  void make(uint64_t iova) {
    pinrail_register_request_t request{};
    request.size = sizeof(request);
    request.kind = PINRAIL_KIND_HOST;
    request.addr = memory_;
    request.length = 2 * kPage;
    request.iova = iova;
    own_.reg.base = memory_;
    own_.reg.length = 2 * kPage;
    own_.reg.rights = PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;
    ASSERT_EQ(register_mem(&registrar_, &request, &own_.reg), PINRAIL_SUCCESS);
  }

  Registrar registrar_{nullptr, Settings{}};
  ibv_context context_{};
  ibv_qp qp_{};
  ibv_cq cq_{};
  std::vector<char> bounce_ = std::vector<char>(kBounceBytes);
  alignas(kPage) char memory_[2 * kPage] = {};
  struct alignas(64) {
    pinrail_registration_t reg;
    Tail tail;
  } own_ = {};
};

TEST_F(DeviceAddress, is_the_iova_of_a_registration_that_has_one) {
  make(kIova);
  char bytes[8] = {};
  EXPECT_EQ(device_write(&registrar_, &own_.reg, 100, bytes, sizeof(bytes)), PINRAIL_SUCCESS);
  EXPECT_EQ(device_read(&registrar_, &own_.reg, kPage, bytes, sizeof(bytes)), PINRAIL_SUCCESS);
  EXPECT_EQ(remotes, (std::vector<uint64_t>{kIova + 100, kIova + kPage}));
}

TEST_F(DeviceAddress, is_the_address_of_other_registrations) {
  make(0);
  char byte = 0;
  EXPECT_EQ(device_read(&registrar_, &own_.reg, 1, &byte, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(remotes, std::vector<uint64_t>{reinterpret_cast<uintptr_t>(memory_) + 1});
}

}  // namespace
}  // namespace pinrail::verbs
