// SPDX-License-Identifier: BSD-3-Clause
// The trial of a device with memory on demand (verbs/V4), beside threads that map memory of their own. The device is a
// double that copies bytes at once.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "components/registrar/verbs/verbs.h"

namespace {

constexpr size_t kTrialBytes = 8 * 4096;
std::vector<unsigned char*> neighbours;  // what another thread has mapped where the trial had unmapped its memory
bool is_watching = false, has_unmapped_neighbour = false;

}  // namespace

// In place of the C library's. As if another thread came at once: the kernel gives it the addresses that are free now.
extern "C" int munmap(void* at, size_t length) {
  const bool is_neighbour = std::find(neighbours.begin(), neighbours.end(), at) != neighbours.end();
  has_unmapped_neighbour = has_unmapped_neighbour || is_neighbour;
  const int result = is_neighbour ? 0 : static_cast<int>(syscall(SYS_munmap, at, length));
  if (!is_watching || is_neighbour || length != kTrialBytes) return result;
  void* const there =
      mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (there != at) return result;
  std::memset(there, 0x5a, length);
  neighbours.push_back(static_cast<unsigned char*>(there));
  return result;
}

namespace pinrail::verbs {

// Of verbs_component.cc. Nothing is to be reported here.
void report(const Registrar&, const char* topic, size_t, int) { ADD_FAILURE() << topic; }
void log_reason(const pinrail_host_t*, const char* what, const char* why) { ADD_FAILURE() << what << ": " << why; }

namespace {

uint64_t last_operation = 0;

int post_send(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  auto* const local = reinterpret_cast<void*>(request->sg_list->addr);         // NOLINT(performance-no-int-to-ptr)
  auto* const remote = reinterpret_cast<void*>(request->wr.rdma.remote_addr);  // NOLINT(performance-no-int-to-ptr)
  const bool is_write = request->opcode == IBV_WR_RDMA_WRITE;
  std::memcpy(is_write ? remote : local, is_write ? local : remote, request->sg_list->length);
  last_operation = request->wr_id;
  return 0;
}
int poll_cq(ibv_cq*, int, ibv_wc* completion) {
  completion->wr_id = last_operation;
  completion->status = IBV_WC_SUCCESS;
  return 1;
}
int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes, size_t) {
  attributes->odp_caps.general_caps = IBV_ODP_SUPPORT;
  attributes->odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  return 0;
}

ibv_mr region{};
ibv_mr* reg_mr(ibv_pd*, void*, size_t, int) { return &region; }
int dereg_mr(ibv_mr*) { return 0; }

TEST(OdpTrial, leaves_memory_alone_that_others_map_meanwhile) {
  verbs_context extended{};
  extended.sz = sizeof(extended);
  extended.query_device_ex = query_device_ex;
  extended.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  extended.context.ops.post_send = post_send;
  extended.context.ops.poll_cq = poll_cq;
  ibv_qp qp{};
  ibv_cq cq{};
  qp.context = cq.context = &extended.context;
  Settings settings{};
  settings.odp = Odp::automatic;
  Registrar registrar(nullptr, settings);
  registrar.limits.granularity = kTrialBytes / 8;
  registrar.context = &extended.context;
  registrar.library.reg_mr = reg_mr;
  registrar.library.dereg_mr = dereg_mr;
  {
    Guard guard(registrar.transfer);
    registrar.loopback.qp = &qp;
    registrar.loopback.cq = &cq;
  }
  is_watching = true;
  EXPECT_TRUE(choose_odp(&registrar).ok());
  is_watching = false;
  EXPECT_EQ(registrar.limits.on_demand, PINRAIL_ON_DEMAND_EXPLICIT);
  ASSERT_FALSE(neighbours.empty());
  EXPECT_FALSE(has_unmapped_neighbour);
  const std::vector<unsigned char> expected(kTrialBytes, 0x5a);
  for (const unsigned char* each : neighbours) EXPECT_EQ(std::memcmp(each, expected.data(), kTrialBytes), 0);
}

}  // namespace
}  // namespace pinrail::verbs
