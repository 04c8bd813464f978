// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_report.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iostream>

#include "contrib/tools/common/reasons.h"

namespace pinrail::pingpong {
namespace {

constexpr char kNote[] =
    "Where the device is software in an emulated guest, message is the emulator's time; look at registration";

double median(const std::vector<Sample>& samples, double Sample::*figure) {
  std::vector<double> figures;
  figures.reserve(samples.size());
  for (const Sample& sample : samples) figures.push_back(sample.*figure);
  std::sort(figures.begin(), figures.end());
  const size_t half = figures.size() / 2;
  return figures.size() % 2 == 1 ? figures[half] : (figures[half - 1] + figures[half]) / 2;
}

// What one line says.
struct Line {
  const Row& row;
  double message_ns, registration_ns;
  double message_ratio, registration_ratio;  // plain's figure divided by this one's
};

// The first way of each kind and length is plain.
std::vector<Line> lines_of(const std::vector<Row>& rows) {
  std::vector<Line> lines;
  double plain_message = 0, plain_registration = 0;
  const Buffers* buffers = nullptr;
  for (const Row& row : rows) {
    const double message = median(row.samples, &Sample::message);
    const double registration = median(row.samples, &Sample::registration);
    if (row.buffers != buffers) {
      buffers = row.buffers;
      plain_message = message;
      plain_registration = registration;
    }
    lines.push_back({row, message, registration, plain_message / message, plain_registration / registration});
  }
  return lines;
}

void print_line(const Line& line) {
  const Row& row = line.row;
  std::printf("%-8s  %8zu  %-14s  %11.1f  %7.2f  %15.2f  %7.2f  %6.2f %%  %13" PRIu64 "  %6" PRIu64 "\n",
              kind_name(row.buffers->kind()), row.buffers->bytes(), row.way->name(), line.message_ns / 1e3,
              line.message_ratio, line.registration_ns / 1e3, line.registration_ratio,
              100 * line.registration_ns / line.message_ns, row.counts.registrations, row.counts.hits);
}

tools::Json json_of(const Line& line) {
  const Row& row = line.row;
  return {{"buffers", kind_name(row.buffers->kind())},
          {"bytes", row.buffers->bytes()},
          {"way", row.way->name()},
          {"ns_per_message", line.message_ns},
          {"ratio_plain", line.message_ratio},
          {"registration_ns_per_message", line.registration_ns},
          {"registration_ratio_plain", line.registration_ratio},
          {"registration_share", line.registration_ns / line.message_ns},
          {"messages", row.messages},
          {"samples", row.samples.size()},
          {"registrations", row.counts.registrations},
          {"hits", row.counts.hits},
          {"evictions", row.counts.evictions}};
}

}  // namespace

void print_table(const Match& match, const std::string& device, const Options& options) {
  std::printf("SEND over %s, monitor %s, %" PRIu64 " rounds, %" PRIu64 " bytes compared, none differed.\n",
              device.c_str(), options.monitor.c_str(), match.rounds(), match.bytes_verified());
  std::printf(
      "Medians, for one message. message: register both buffers, transfer, deregister both; fresh: and unmap both.\n"
      "registration: of that, without the transfer and the munmap calls. x: plain's time divided by this one.\n"
      "%s.\n\n",
      kNote);
  std::printf("%-8s  %8s  %-14s  %11s  %7s  %15s  %7s  %8s  %13s  %6s\n", "buffers", "bytes", "way", "message us", "x",
              "registration us", "x", "share", "registrations", "hits");
  for (const Line& line : lines_of(match.rows())) print_line(line);
}

void print_json(const Match& match, const std::string& device, const Options& options) {
  tools::Json rows = tools::Json::array();
  for (const Line& line : lines_of(match.rows())) rows.push_back(json_of(line));
  tools::print({{"device", device},
                {"operation", "SEND"},
                {"monitor", options.monitor},
                {"rounds", match.rounds()},
                {"bytes_verified", match.bytes_verified()},
                {"note", kNote},
                {"rows", rows}},
               std::cout);
}

}  // namespace pinrail::pingpong
