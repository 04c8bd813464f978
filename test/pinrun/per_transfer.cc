// SPDX-License-Identifier: BSD-3-Clause
// per_transfer.cc - a program of libibverbs alone that registers and deregisters memory around each transfer.
//
// Each transfer is an RDMA write of 4 KiB between two buffers of this process, which are registered whole, over every
// RDMA device in turn, after which the bytes are compared. If asked to, it unmaps the destination of some transfers and
// maps other pages at its address. The last line says how long the program's calls of ibv_reg_mr and ibv_dereg_mr took,
// without the reading of the clock; the median and the mean of the transfers. Those of the first transfer stand apart,
// because Pinrail starts in them. The mean contains interrupts: the device's own work runs in them, in an emulated
// guest. Run with and without pinrun.
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "test/verbs/rdma_device.h"

namespace pinrail::test {
namespace {

using Clock = std::chrono::steady_clock;

size_t bytes = size_t{64} << 10;  // of each buffer
constexpr size_t kSent = 4096;    // bytes of a transfer: the end of the buffer
constexpr int kBuffers = 16;
constexpr int kTimedCalls = 4;  // of each transfer
constexpr int kRemoteWrite = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// A device, and two queue pairs of it that are connected to each other.
struct Rail {
  RdmaDevice device;
  ibv_cq* cq = nullptr;
  ibv_qp* sender = nullptr;
  ibv_qp* receiver = nullptr;

  std::string open(const char* name) {
    std::string wrong = device.open(name, 1, -1);
    if (!wrong.empty()) return wrong;
    cq = ibv_create_cq(device.context(), 16, nullptr, nullptr, 0);
    if (cq == nullptr) return "no completion queue";
    sender = device.make_queue_pair(cq);
    receiver = device.make_queue_pair(cq);
    if (sender == nullptr || receiver == nullptr) return "no queue pair";
    return device.join(sender, receiver);
  }

  void close() {
    ibv_destroy_qp(sender);
    ibv_destroy_qp(receiver);
    ibv_destroy_cq(cq);
    device.close();
  }
};

struct Totals {
  uint64_t transfers = 0, failed = 0, wrong_bytes = 0;
  Clock::duration registering{};  // of the transfer under way
  std::vector<double> us;         // of each transfer
};

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// What reading the clock takes once, which in an emulated guest is more than a hit. Each timed call contains as much.
Clock::duration clock_cost() {
  constexpr int kTries = 1000;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kTries; ++i) Clock::now();
  return (Clock::now() - start) / kTries;
}

ibv_mr* timed_reg(Totals* totals, ibv_pd* domain, void* addr, int access) {
  const Clock::time_point start = Clock::now();
  ibv_mr* region = ibv_reg_mr(domain, addr, bytes, access);
  totals->registering += Clock::now() - start;
  return region;
}

bool timed_dereg(Totals* totals, ibv_mr* region) {
  const Clock::time_point start = Clock::now();
  const int error = ibv_dereg_mr(region);
  totals->registering += Clock::now() - start;
  return error == 0;
}

bool is_as_asked(const ibv_mr& region, const ibv_pd* domain, const void* addr) {
  return region.pd == domain && region.context == domain->context && region.addr == addr && region.length == bytes;
}

bool write_by_rdma(const Rail& rail, const ibv_mr& from, const ibv_mr& to, uint64_t number) {
  ibv_sge piece{reinterpret_cast<uintptr_t>(from.addr) + bytes - kSent, kSent, from.lkey};
  ibv_send_wr request{};
  request.wr_id = number;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(to.addr) + bytes - kSent;
  request.wr.rdma.rkey = to.rkey;
  ibv_send_wr* refused = nullptr;
  return ibv_post_send(rail.sender, &request, &refused) == 0 && wait_for_completion(rail.cq, number);
}

bool transfer(const Rail& rail, char* from, char* to, Totals* totals) {
  ibv_pd* domain = rail.device.pd();
  ibv_mr* source = timed_reg(totals, domain, from, IBV_ACCESS_LOCAL_WRITE);
  ibv_mr* sink = timed_reg(totals, domain, to, kRemoteWrite);
  if (source == nullptr || sink == nullptr) {
    std::printf("ibv_reg_mr failed: %s\n", std::strerror(errno));
    return false;
  }
  const bool moved = is_as_asked(*source, domain, from) && is_as_asked(*sink, domain, to) &&
                     write_by_rdma(rail, *source, *sink, totals->transfers);
  const bool released = timed_dereg(totals, source) && timed_dereg(totals, sink);
  return moved && released;
}

char* map(void* where) {
  const int fixed = where != nullptr ? MAP_FIXED : 0;
  void* memory = mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<char*>(memory);
}

uint64_t count_wrong(const char* memory, char right) {
  uint64_t wrong = 0;
  for (size_t i = bytes - kSent; i < bytes; ++i) wrong += memory[i] != right ? 1 : 0;
  return wrong;
}

void step(const std::vector<std::unique_ptr<Rail>>& rails, char* from, char* to, uint64_t remap_every, Totals* totals) {
  const uint64_t number = totals->transfers++;
  if (remap_every != 0 && number % remap_every == remap_every - 1) {
    munmap(to, bytes);
    map(to);
  }
  const auto pattern = static_cast<char>('A' + number % 26);
  std::memset(from + bytes - kSent, pattern, kSent);
  std::memset(to + bytes - kSent, 0, kSent);
  totals->registering = {};
  if (!transfer(*rails[number % rails.size()], from, to, totals)) ++totals->failed;
  totals->us.push_back(microseconds(totals->registering));
  totals->wrong_bytes += count_wrong(to, pattern);
}

std::string open_all(std::vector<std::unique_ptr<Rail>>* rails) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  std::string wrong = count == 0 ? "no RDMA device" : "";
  for (int i = 0; i < count && wrong.empty(); ++i) {
    rails->push_back(std::make_unique<Rail>());
    wrong = rails->back()->open(ibv_get_device_name(list[i]));
  }
  ibv_free_device_list(list);
  return wrong;
}

void print(size_t devices, double clock_us, const Totals& totals) {
  std::vector<double> later(totals.us.begin() + 1, totals.us.end());
  std::sort(later.begin(), later.end());
  double sum = 0;
  for (const double us : later) sum += us;
  const auto counted = [](uint64_t number) { return static_cast<unsigned long long>(number); };
  std::printf("devices %zu transfers %llu failed %llu wrong_bytes %llu first_us %.1f median_us %.3f mean_us %.3f\n",
              devices, counted(totals.transfers), counted(totals.failed), counted(totals.wrong_bytes), totals.us[0],
              later[later.size() / 2] - kTimedCalls * clock_us,
              sum / static_cast<double>(later.size()) - kTimedCalls * clock_us);
}

int run(uint64_t transfers, uint64_t remap_every) {
  std::vector<std::unique_ptr<Rail>> rails;
  const std::string wrong = open_all(&rails);
  if (!wrong.empty()) {
    std::printf("%s\n", wrong.c_str());
    return 77;
  }
  char *from[kBuffers], *to[kBuffers];
  for (int i = 0; i < kBuffers; ++i) {
    from[i] = map(nullptr);
    to[i] = map(nullptr);
  }
  Totals totals;
  const double clock_us = microseconds(clock_cost());
  // Each buffer serves each rail in turn.
  while (totals.transfers < transfers) {
    const uint64_t buffer = totals.transfers / rails.size() % kBuffers;
    step(rails, from[buffer], to[buffer], remap_every, &totals);
  }
  print(rails.size(), clock_us, totals);
  for (const auto& rail : rails) rail->close();
  return totals.failed + totals.wrong_bytes == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pinrail::test

int main(int argc, char** argv) {
  const long transfers = argc >= 2 ? std::atol(argv[1]) : 0, remap_every = argc >= 3 ? std::atol(argv[2]) : 0;
  const long kib = argc == 4 ? std::atol(argv[3]) : 64;
  if (transfers > 1 && remap_every >= 0 && kib > 0 && kib <= 65536 && argc <= 4) {
    pinrail::test::bytes = static_cast<size_t>(kib) << 10;
    return pinrail::test::run(static_cast<uint64_t>(transfers), static_cast<uint64_t>(remap_every));
  }
  std::fprintf(stderr,
               "Usage: per_transfer TRANSFERS [REMAP_EVERY [KIB]], with TRANSFERS above 1; REMAP_EVERY 0: never;\n"
               "buffers of KIB KiB, by default 64\n"
               "Exit status: 0: all bytes are right; 1: not; 2: wrong arguments; 77: no RDMA device.\n");
  return 2;
}
