# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# messages.sh - messages of three lines on stderr, and the cache folder. Sourced by rdma-vm, get-kernel, on-system and
# contrib/openmpi, each with its own name in speaker.
speaker=${speaker:-rdma-vm}
# shellcheck disable=SC2034 # its users read it
cache_root=${PINRAIL_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/pinrail}

# complain TITLE WHAT_HAPPENED WHAT_FOLLOWS WHAT_TO_DO
complain() {
  printf "[$speaker: %s]\nWhat happened  %s\nWhat follows   %s\nWhat to do     %s\n" "$@" >&2
}

# fail TITLE WHAT_HAPPENED WHAT_TO_DO - 125 is this script's own failure, as it is timeout(1)'s and env(1)'s.
follows="the command was not run"
fail() {
  complain "$1" "$2" "$follows; the exit status is 125." "$3"
  exit 125
}

tell() { printf '%s: %s\n' "$speaker" "$*" >&2; }

# bounded SECONDS COMMAND... - executes it. --pdeathsig: even a SIGKILL of the script leaves nothing running.
bounded() {
  exec setpriv --pdeathsig KILL timeout --foreground -s KILL "$1" setpriv --pdeathsig KILL "${@:2}"
}
