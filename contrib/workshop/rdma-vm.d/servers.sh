# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# servers.sh - waits for a server in the guest. Sourced by contrib/libfabric and contrib/pinrun.

# wait_for_server - until a process listens, over TCP or the connection manager, or the server, which is the last job in
# the background, has ended; for at most 40 s. Each server is waited for before the next one starts, and nothing else
# listens in the guest.
wait_for_server() {
  local round
  for ((round = 0; round < 80; round++)); do
    kill -0 $! || return 0
    if grep -q ' 0A ' /proc/net/tcp /proc/net/tcp6 || rdma resource show cm_id | grep -q LISTEN; then return; fi
    sleep 0.5
  done
} 2>/dev/null
