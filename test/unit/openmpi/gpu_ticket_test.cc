// SPDX-License-Identifier: BSD-3-Clause
// A block of 256 bytes comes back from its ticket of 64 bytes in another process, or not at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "test/support/cases.h"
#include "test/support/files.h"

extern "C" {
#include "contrib/openmpi/gpu_ticket.h"
}

namespace {
bool is_memory_shared_out = false;  // no file gets memory any more
}

extern "C" __attribute__((visibility("default"))) int posix_fallocate(int file, off_t from, off_t bytes) {
  if (is_memory_shared_out) return ENOSPC;
  return fallocate(file, 0, from, bytes) == 0 ? 0 : errno;
}

namespace pinrail {
namespace {

struct Ticket {
  unsigned char bytes[PINRAIL_TICKET_BYTES];
};

pinrail_gpu_block_t block_at(uint32_t slot, uint64_t checksum, pid_t exporter = getpid()) {
  pinrail_gpu_block_t block{};
  block.magic = PINRAIL_GPU_BLOCK_MAGIC;
  block.pid = static_cast<uint32_t>(exporter);
  block.slot = slot;
  block.segment = 1;
  std::memset(block.driver, static_cast<int>(checksum & 0xff), sizeof(block.driver));
  block.checksum = checksum;
  return block;
}

Ticket ticket_of(const pinrail_gpu_block_t& block) {
  Ticket ticket{};
  EXPECT_EQ(write_ticket(&block, ticket.bytes), PINRAIL_SUCCESS);
  return ticket;
}

pinrail_status_t read(const Ticket& ticket, pinrail_gpu_block_t* block_out) {
  gpu_table_t table{};
  const pinrail_status_t status = read_ticket(&table, ticket.bytes, block_out);
  close_table(&table);
  return status;
}

TEST(GpuTicket, another_process_reads_all_blocks_of_an_exporter_with_one_mapping) {
  std::vector<Ticket> tickets;
  for (uint32_t slot = 0; slot < 100; ++slot) tickets.push_back(ticket_of(block_at(slot, 0x100 + slot)));
  test::expect_success_in_child([&] {
    gpu_table_t table{};
    for (uint32_t slot = 0; slot < 100; ++slot) {
      const pinrail_gpu_block_t block = block_at(slot, 0x100 + slot, getppid());
      pinrail_gpu_block_t seen{};
      if (read_ticket(&table, tickets[slot].bytes, &seen) != PINRAIL_SUCCESS) return 1;
      if (std::memcmp(&seen, &block, sizeof(seen)) != 0) return 2;
    }
    return 0;
  });
}

// The exporter has closed its table, and a pipe without data has the descriptor's number.
TEST(GpuTicket, a_descriptor_that_is_a_pipe_by_now_keeps_no_reader_waiting) {
  Ticket ticket = ticket_of(block_at(8, 0x5678));
  const test::TempFolder folder;
  const std::string name = folder.path("pipe");  // a named pipe: only that blocks open()
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  const int end = open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(end, 0);
  constexpr size_t kDescriptor = sizeof(uint64_t) + sizeof(uint32_t);  // its place in the ticket
  std::memcpy(ticket.bytes + kDescriptor, &end, sizeof(end));
  test::expect_success_in_child([&] {
    alarm(20);
    pinrail_gpu_block_t seen{};
    return read(ticket, &seen) == PINRAIL_ERR_NOT_FOUND ? 0 : 1;
  });
  close(end);
}

TEST(GpuTicket, the_ticket_of_freed_memory_does_not_lead_to_what_took_its_slot) {
  const Ticket old = ticket_of(block_at(3, 1));
  const Ticket young = ticket_of(block_at(3, 2));
  pinrail_gpu_block_t seen{};
  EXPECT_EQ(read(old, &seen), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(seen.magic, 0u) << "outputs are written on success alone";
  EXPECT_EQ(read(young, &seen), PINRAIL_SUCCESS);
  EXPECT_EQ(seen.checksum, 2u);
}

TEST(GpuTicket, a_handle_of_the_driver_is_no_ticket) {
  Ticket handle{};
  std::memset(handle.bytes, 0x5a, sizeof(handle.bytes));
  pinrail_gpu_block_t seen{};
  EXPECT_EQ(read(handle, &seen), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(read(Ticket{}, &seen), PINRAIL_ERR_BAD_PARAM) << "nor are zeros";
}

TEST(GpuTicket, a_mapping_of_another_table_is_replaced) {
  const Ticket ticket = ticket_of(block_at(4, 9));
  gpu_table_t table{};
  pinrail_gpu_block_t seen{};
  ASSERT_EQ(read_ticket(&table, ticket.bytes, &seen), PINRAIL_SUCCESS);
  const uint64_t id = table.id;
  table.id = ~id;  // as if it were of another exporter
  EXPECT_EQ(read_ticket(&table, ticket.bytes, &seen), PINRAIL_SUCCESS);
  EXPECT_EQ(table.id, id);
  close_table(&table);
}

TEST(GpuTicket, an_exporter_that_is_gone_is_not_found) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Ticket ticket{};
  test::expect_success_in_child([&] {
    const pinrail_gpu_block_t block = block_at(1, 5);
    const bool is_made = write_ticket(&block, ticket.bytes) == PINRAIL_SUCCESS;
    return is_made && write(ends[1], ticket.bytes, sizeof(ticket.bytes)) == sizeof(ticket.bytes) ? 0 : 1;
  });
  ASSERT_EQ(::read(ends[0], ticket.bytes, sizeof(ticket.bytes)), static_cast<ssize_t>(sizeof(ticket.bytes)));
  pinrail_gpu_block_t seen{};
  EXPECT_EQ(read(ticket, &seen), PINRAIL_ERR_NOT_FOUND);
  for (const int end : ends) close(end);
}

TEST(GpuTicket, a_block_without_a_slot_or_beyond_the_table_has_none) {
  Ticket ticket{};
  pinrail_gpu_block_t block = block_at(1, 1);
  block.segment = 0;
  EXPECT_EQ(write_ticket(&block, ticket.bytes), PINRAIL_ERR_NOT_SUPPORTED);
  block = block_at(UINT32_MAX, 1);
  EXPECT_EQ(write_ticket(&block, ticket.bytes), PINRAIL_ERR_OUT_OF_RESOURCE);
}

// In a process of its own, which has no table yet.
TEST(GpuTicket, a_process_that_may_make_no_file_so_long_has_no_tickets_and_goes_on) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask = [] {
    const rlimit few{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &few);
    Ticket ticket{};
    const pinrail_gpu_block_t block = block_at(1, 1);
    exit(write_ticket(&block, ticket.bytes) == PINRAIL_ERR_OUT_OF_RESOURCE ? 0 : 1);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "");
}

// A write into a file without memory would end the process.
TEST(GpuTicket, without_memory_for_its_place_a_block_has_no_ticket) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask = [](bool has_table) {
    Ticket ticket{};
    const pinrail_gpu_block_t first = block_at(0, 1), far = block_at(100000, 1);
    if (has_table && write_ticket(&first, ticket.bytes) != PINRAIL_SUCCESS) exit(1);
    is_memory_shared_out = true;
    if (write_ticket(&far, ticket.bytes) != PINRAIL_ERR_OUT_OF_RESOURCE) exit(2);
    is_memory_shared_out = false;
    exit(write_ticket(&far, ticket.bytes) == PINRAIL_SUCCESS ? 0 : 3);
  };
  EXPECT_EXIT(ask(false), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ask(true), testing::ExitedWithCode(0), "");
}

TEST(GpuTicket, the_table_does_not_get_the_number_of_standard_input) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask = [] {
    close(STDIN_FILENO);
    Ticket ticket{};
    const pinrail_gpu_block_t block = block_at(1, 1);
    exit(write_ticket(&block, ticket.bytes) == PINRAIL_SUCCESS && fcntl(STDIN_FILENO, F_GETFD) < 0 ? 0 : 1);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "");
}

TEST(GpuTicket, a_reader_without_a_free_descriptor_does_not_take_the_memory_for_freed) {
  const Ticket ticket = ticket_of(block_at(5, 1));
  test::expect_success_in_child([&] {
    const rlimit none{3, 3};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return 1;
    pinrail_gpu_block_t seen{};
    return read(ticket, &seen) == PINRAIL_ERR_OUT_OF_RESOURCE ? 0 : 2;
  });
}

}  // namespace
}  // namespace pinrail
