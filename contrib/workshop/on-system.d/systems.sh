# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034 # its users read suite, extra_suite, extra and architecture
# systems.sh - the systems of contrib/workshop/on-system, one per line: name, suite, suite of extra packages, extra
# packages. Those of another architecture have it at the end of their names. Sourced by on-system and make-root.

list_systems() {
  cat <<'END'
debian-11            bullseye  bookworm      libcli11-dev
debian-12            bookworm  -             -
debian-13            trixie    trixie        openmpi-bin libopenmpi-dev libfabric-bin libfabric-dev
debian-testing       testing   -             -
debian-experimental  testing   experimental  libc6 libc6-dev libc-bin libc-dev-bin
musl                 trixie    trixie        musl-tools musl-dev
debian-12-arm64      bookworm  -             -
ubuntu-24.04         noble     -             -
END
}

# read_system NAME - sets suite, extra_suite, extra and architecture (empty: this machine's), or fails.
read_system() {
  local name
  architecture=
  [[ $1 != *-arm64 ]] || architecture=arm64
  while read -r name suite extra_suite extra; do
    [[ $name != "$1" ]] || return 0
  done < <(list_systems)
  return 1
}
