// SPDX-License-Identifier: BSD-3-Clause
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>

#include "contrib/tools/common/json.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/top/top.h"

namespace pinrail::top {
namespace {

std::string number(double value) {
  return tools::text(value >= 100 || value == std::floor(value) ? "%.0f" : "%.1f", value);
}

// "1.5K", "20M": at most three digits before the unit.
std::string scaled(double value, double step) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  size_t unit = 0;
  for (; value >= step && unit + 1 < std::size(kUnits); ++unit) value /= step;
  return number(value) + kUnits[unit];
}

std::string label(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

tools::Json json_of(const Pool& pool) {
  const pinrail_figures_t& figures = pool.figures;
  tools::Json json = {{"pid", pool.pid},
                      {"command", pool.command},
                      {"pool", pool.name},
                      {"registrar", pool.registrar},
                      {"monitors", pool.monitors},
                      {"hits", pool.counts.hits},
                      {"misses", pool.misses},
                      {"hit_rate", pool.hit_rate()},
                      {"miss_reasons", tools::reasons_json(pool.reasons)}};
  json["evictions"] = pool.evictions();
  json["memory_events"] = figures.memory_events;
  json["invalidations"] = figures.invalidations;
  json["refusals"] = figures.refusals;
  json["registered_bytes"] = pool.registered_bytes;
  json["registered_count"] = pool.registered_count;
  if (pool.knows_use()) {
    json["held_bytes"] = figures.held_bytes;
    json["held_count"] = figures.held_count;
    json["idle_bytes"] = pool.idle_bytes();
    json["dead_bytes"] = figures.dead_bytes;
    json["dead_count"] = figures.dead_count;
  }
  json["size_limit"] = figures.size_limit == UINT64_MAX ? tools::Json() : tools::Json(figures.size_limit);
  json["registrar_ns"] = pool.counts.registrar_ns;
  json["longest_call_ns"] = figures.longest_call_ns;
  for (const CostlyRange& range : pool.ranges) {
    json["costliest_ranges"].push_back({{"base", range.base},
                                        {"length", range.length},
                                        {"misses", range.misses},
                                        {"reason", tools::reason_key(range.reason)}});
  }
  return json;
}

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  uint64_t (*value)(const Pool& pool);
};
constexpr Metric kMetrics[] = {
    {"pinrail_hits_total", "counter", "Requests that a cached registration answered.",
     [](const Pool& pool) { return pool.counts.hits; }},
    {"pinrail_evictions_total", "counter", "Registrations given back to make room.",
     [](const Pool& pool) { return pool.evictions(); }},
    {"pinrail_memory_events_total", "counter", "Memory events that ended registrations.",
     [](const Pool& pool) { return uint64_t{pool.figures.memory_events}; }},
    {"pinrail_invalidations_total", "counter", "Registrations that memory events ended.",
     [](const Pool& pool) { return uint64_t{pool.figures.invalidations}; }},
    {"pinrail_refusals_total", "counter", "Calls that the registrar refused.",
     [](const Pool& pool) { return uint64_t{pool.figures.refusals}; }},
    {"pinrail_registered_bytes", "gauge", "Bytes registered with the device.",
     [](const Pool& pool) { return uint64_t{pool.registered_bytes}; }},
    {"pinrail_held_bytes", "gauge", "Bytes that are referenced.",
     [](const Pool& pool) { return uint64_t{pool.figures.held_bytes}; }},
    {"pinrail_dead_bytes", "gauge", "Bytes whose memory went away, and that were not given back yet.",
     [](const Pool& pool) { return uint64_t{pool.figures.dead_bytes}; }},
    {"pinrail_registrar_nanoseconds_total", "counter", "Time inside the registrar, of all threads together.",
     [](const Pool& pool) { return uint64_t{pool.counts.registrar_ns}; }},
    {"pinrail_longest_call_nanoseconds", "gauge", "The longest call of the registrar.",
     [](const Pool& pool) { return uint64_t{pool.figures.longest_call_ns}; }},
};

std::string labels_of(const Pool& pool) {
  return "pid=\"" + std::to_string(pool.pid) + "\",command=\"" + label(pool.command) + "\",pool=\"" + label(pool.name) +
         "\",file=\"" + std::to_string(pool.file) + "\"";
}

void put_head(const char* name, const char* type, const char* help, std::ostream& out) {
  out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
}

}  // namespace

std::string bytes_text(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "none";
  return scaled(static_cast<double>(bytes), 1024) + (bytes < 1024 ? "B" : "");
}

std::string time_text(uint64_t ns) { return ns == 0 ? "-" : number(static_cast<double>(ns) / 1e6) + "ms"; }

std::string sum_line(const std::vector<Pool>& pools, const std::vector<Pool>& before, double seconds) {
  double hits = 0, misses = 0;
  uint64_t bytes = 0;
  for (const Pool& pool : pools) {
    const Rates rates = rates_of(pool, before, seconds);
    hits += rates.hits;
    misses += rates.misses;
    bytes += pool.registered_bytes;
  }
  return tools::text("pinrail_top: %zu pools, %s hits/s, %s misses/s, %s registered", pools.size(),
                     scaled(hits, 1000).c_str(), scaled(misses, 1000).c_str(), bytes_text(bytes).c_str());
}

std::string use_line(const Pool& pool) {
  const pinrail_figures_t& figures = pool.figures;
  const auto in = [](uint64_t bytes, uint64_t count) { return bytes_text(bytes) + tools::text(" in %" PRIu64, count); };
  std::string line = "registered " + in(pool.registered_bytes, pool.registered_count);
  if (!pool.knows_use()) return line;
  return line + ": held " + in(figures.held_bytes, figures.held_count) + ", dead " +
         in(figures.dead_bytes, figures.dead_count) + ", idle " + bytes_text(pool.idle_bytes());
}

// The widths of the columns before the reasons.
constexpr char kColumns[] = "%8s %-12.12s %-6.6s %5s %6s %6s %6s %6s %6s %6s %7s %5s %7s  %s";

std::string head_line() {
  return tools::text(kColumns, "PID", "COMMAND", "POOL", "HIT%", "HITS/S", "MISS/S", "BYTES", "HELD", "IDLE", "DEAD",
                     "EVICT/S", "REG%", "LONGEST", "WHY MISSES");
}

std::string pool_line(const Pool& pool, const Rates& rates) {
  const auto use = [&](uint64_t bytes) { return pool.knows_use() ? bytes_text(bytes) : "-"; };
  return tools::text(kColumns, std::to_string(pool.pid).c_str(), pool.command.c_str(), pool.name.c_str(),
                     number(pool.hit_rate()).c_str(), scaled(rates.hits, 1000).c_str(),
                     scaled(rates.misses, 1000).c_str(), bytes_text(pool.registered_bytes).c_str(),
                     use(pool.figures.held_bytes).c_str(), use(pool.idle_bytes()).c_str(),
                     use(pool.figures.dead_bytes).c_str(), scaled(rates.evictions, 1000).c_str(),
                     number(rates.registrar_ns / 1e7).c_str(), time_text(pool.figures.longest_call_ns).c_str(),
                     tools::reasons_text(pool.reasons, 3).c_str());
}

std::string json_text(const std::vector<Pool>& pools) {
  tools::Json json = {{"pools", tools::Json::array()}};
  for (const Pool& pool : pools) json["pools"].push_back(json_of(pool));
  std::ostringstream out;
  tools::print(json, out);
  return out.str();
}

std::string prometheus_text(const std::vector<Pool>& pools) {
  std::ostringstream out;
  for (const Metric& metric : kMetrics) {
    put_head(metric.name, metric.type, metric.help, out);
    for (const Pool& pool : pools) out << metric.name << '{' << labels_of(pool) << "} " << metric.value(pool) << '\n';
  }
  put_head("pinrail_misses_total", "counter", "Requests that no cached registration answered, by reason.", out);
  for (const Pool& pool : pools) {
    for (uint32_t reason = 0; reason < PINRAIL_MISS_REASONS; ++reason) {
      out << "pinrail_misses_total{" << labels_of(pool) << ",reason=\"" << tools::reason_key(reason) << "\"} "
          << pool.reasons[reason] << '\n';
    }
  }
  return out.str();
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr timeval kPatience = {2, 0};

Clock::time_point end_of_patience() { return Clock::now() + std::chrono::seconds(kPatience.tv_sec); }

// What comes until then, at most. 0 or less: nothing.
ssize_t receive(int connection, Clock::time_point until, char* room, size_t length) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  pollfd line{connection, POLLIN, 0};
  if (left <= 0 || poll(&line, 1, static_cast<int>(left)) <= 0) return 0;
  return recv(connection, room, length, 0);
}

// The first line of the request, as far as it comes within two seconds.
std::string request_line(int connection) {
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  const auto until = end_of_patience();
  char room[2048];
  size_t length = 0;
  while (length < sizeof(room) && memchr(room, '\n', length) == nullptr) {
    const ssize_t got = receive(connection, until, room + length, sizeof(room) - length);
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  const std::string text(room, length);
  return text.substr(0, text.find_first_of("\r\n"));
}

void send_all(int connection, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t now = send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) return;
    sent += static_cast<size_t>(now);
  }
}

// Reads what the client still sends until it has read all: the kernel would drop the answer with what is unread.
void end_of_answer(int connection) {
  const auto until = end_of_patience();
  char room[2048];
  shutdown(connection, SHUT_WR);
  while (receive(connection, until, room, sizeof(room)) > 0) continue;
}

void answer(int connection, int pid) {
  const std::string line = request_line(connection);
  const bool is_page = line.rfind("GET /metrics ", 0) == 0 || line.rfind("GET / ", 0) == 0;
  const std::string body = is_page ? prometheus_text(read_pools(pid, false)) : "the page is /metrics\n";
  send_all(connection, std::string(is_page ? "HTTP/1.0 200 OK" : "HTTP/1.0 404 Not Found") +
                           "\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body);
  end_of_answer(connection);
}

// Returns it, or another one of the same socket: under the number of a standard output that is closed it would get what
// is printed.
int above_standard(int socket) {
  if (socket < 0 || socket > STDERR_FILENO) return socket;
  const int moved = fcntl(socket, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(socket);
  return moved;
}

int refuse(uint16_t port) {
  std::fprintf(stderr, "pinrail_top: cannot listen on 127.0.0.1 port %u: %s; name another port\n", port,
               std::strerror(errno));  // NOLINT(concurrency-mt-unsafe): one thread
  return 1;
}

}  // namespace

int serve(uint16_t port, int pid) {
  const int listener = above_standard(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener < 0) return refuse(port);
  constexpr int kYes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &kYes, sizeof(kYes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, length) != 0 || listen(listener, 8) != 0 ||
      getsockname(listener, generic, &length) != 0) {
    close(listener);
    return refuse(port);
  }
  std::printf("http://127.0.0.1:%u/metrics\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (;;) {
    const int connection = above_standard(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection < 0) {
      usleep(100000);  // as while this process has no descriptor left
      continue;
    }
    answer(connection, pid);
    close(connection);
  }
}

}  // namespace pinrail::top
