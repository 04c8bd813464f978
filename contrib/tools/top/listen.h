// SPDX-License-Identifier: BSD-3-Clause
// listen.h - a page for Prometheus, on the loopback interface only.
#ifndef PINRAIL_TOOLS_TOP_LISTEN_H
#define PINRAIL_TOOLS_TOP_LISTEN_H

#include <cstdint>

namespace pinrail::top {

// Serves http://127.0.0.1:PORT/metrics until a signal ends the process. port 0: the kernel chooses one; the address is
// printed. Returns 1 after a message if the port cannot be had.
int serve(uint16_t port, int pid);

}  // namespace pinrail::top

#endif
