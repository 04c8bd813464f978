// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/top/top.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace pinrail::top {
namespace {

// The first line of the request; empty if none comes within two seconds. What follows it is not read.
std::string request_line(int connection) {
  constexpr timeval kPatience = {2, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  char room[2048];
  size_t length = 0;
  while (length < sizeof(room) && memchr(room, '\n', length) == nullptr) {
    const ssize_t got = recv(connection, room + length, sizeof(room) - length, 0);
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

void answer(int connection, int pid) {
  const std::string line = request_line(connection);
  const bool is_page = line.rfind("GET /metrics ", 0) == 0 || line.rfind("GET / ", 0) == 0;
  const std::string body = is_page ? prometheus_text(read_pools(pid, false)) : "the page is /metrics\n";
  send_all(connection, std::string(is_page ? "HTTP/1.0 200 OK" : "HTTP/1.0 404 Not Found") +
                           "\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body);
}

int refuse(uint16_t port) {
  std::fprintf(stderr, "pinrail_top: cannot listen on 127.0.0.1 port %u: %s; name another port\n", port,
               std::strerror(errno));  // NOLINT(concurrency-mt-unsafe): one thread
  return 1;
}

}  // namespace

int serve(uint16_t port, int pid) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
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
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    answer(connection, pid);
    close(connection);
  }
}

}  // namespace pinrail::top
