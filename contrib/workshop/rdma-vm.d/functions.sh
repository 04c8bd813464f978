# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # cache_root, version and headers are for those who source this; build is theirs
# functions.sh - messages of three lines on stderr; packages and sources of Debian; servers in the guest. Sourced by rdma-vm,
# get-kernel, on-system, on-arm64, contrib/openmpi, contrib/libfabric and contrib/pinrun, each with its own name in speaker.
speaker=${speaker:-rdma-vm}
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

# Packages of any of Debian's suites, without that suite being added to the machine. Lists and downloads go into $build, apt's
# output into $build/apt.log.

# The name of this machine's suite of Debian.
# shellcheck source=/dev/null
codename() { (. /etc/os-release && echo "${VERSION_CODENAME:-stable}"); }

# Prints the mirrors that this machine's own apt uses for Debian, one per line.
mirrors() {
  apt-get --print-uris update 2>/dev/null |
    sed -n -E "s!^'(.*)/dists/($(codename)|oldstable|stable|testing|unstable|sid)/InRelease'.*!\\1!p" | awk '!seen[$0]++'
}

# private_apt TOOL ARGUMENTS... - runs apt with lists, cache and sources of its own.
private_apt() {
  local tool=$1
  shift
  "$tool" -q -c "$build/apt/conf" \
    -o Dir::Etc::SourceList="$build/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State="$build/apt/state" -o Dir::State::status=/dev/null -o Dir::Cache="$build/apt/cache" \
    -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any -o Acquire::Languages=none -o Acquire::Retries=2 "$@"
}

# from_mirrors TYPE SUITE ARCHITECTURE COMMAND... - TYPE is deb or deb-src. Reads the suite's list of packages, signed by
# Debian, then runs COMMAND, from one mirror after the other until both succeed. If none did, it prints apt's last lines
# and fails.
from_mirrors() {
  local type=$1 suite=$2 architecture=$3 mirror keyring=/usr/share/keyrings/debian-archive-keyring
  shift 3
  [[ -e $keyring.gpg ]] && keyring=$keyring.gpg || keyring=$keyring.pgp
  mkdir -p "$build"/apt/{state/lists/partial,cache/archives/partial}
  # The machine's own hooks after an update concern the machine's lists, not these.
  printf '#clear APT::Update::%s;\n' Post-Invoke Post-Invoke-Success >"$build/apt/conf"
  printf 'APT::Architecture "%s";\nAPT::Architectures { "%s"; };\n' "$architecture" "$architecture" >>"$build/apt/conf"
  while read -r mirror; do
    echo "$type [arch=$architecture signed-by=$keyring] $mirror $suite main" >"$build/apt/sources.list"
    if private_apt apt-get update && "$@"; then return; fi
  done < <(mirrors) >>"$build/apt.log" 2>&1
  tail -n 5 "$build/apt.log" >&2 2>/dev/null || true
  return 1
}

# download_source PACKAGE[=VERSION] - fetches the files of a source package into $build.
download_source() { (cd "$build" && private_apt apt-get source --download-only "$1"); }

# What is made from the sources of a Debian package, once, into a cache; nothing is installed.

# once RESULT COMMAND [ARGUMENT]... - if there is no RESULT, the command makes it as $build/result. RESULT appears by rename,
# so it is always complete. Prints RESULT.
once() {
  if [[ ! -e $1 ]]; then
    mkdir -p "${1%/*}"
    trap 'rm -rf "${build:-}"' EXIT
    trap 'exit 143' TERM
    build=$(mktemp -d "${1%/*}/build.XXXXXX")
    tell "making ${1##*/}, once, in ${1%/*}"
    "${@:2}"
    mv -T "$build/result" "$1" 2>/dev/null || [[ -e $1 ]] || return
  fi
  echo "$1"
}

# fetch_source PACKAGE VERSION FOLDER [PATTERN] - unpacks upstream's sources, or what of them matches, into FOLDER. If
# "sources" names a folder, that has the tarball.
fetch_source() {
  local tar
  [[ -n ${sources:-} ]] || from_mirrors deb-src "$(codename)" "$(dpkg --print-architecture)" download_source "$1=$2" || true
  tar=$(compgen -G "${sources:-$build}/$1_*.orig.tar.*" | head -n 1) ||
    fail "no sources" "none of this machine's apt sources gave the sources of $1 $2." \
      "see that the sources name a Debian mirror which \"apt-get update\" reaches, then run this again."
  mkdir -p "$3"
  tar -C "$3" --strip-components=1 --wildcards -xf "$tar" ${4:+"$4"}
}

# version_of PACKAGE - of its sources, as apt knows it: a package that was rebuilt (+b1) has none of its own.
version_of() { apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n -E '/^Version: /{s/\+b[0-9]+$//;s/^Version: //p}'; }

# logged WHAT PACKAGES COMMAND [ARGUMENT]... - of a compiler; the packages are those that may be missing.
logged() {
  "${@:3}" >>"$build/log" 2>&1 </dev/null || {
    tail -n 15 "$build/log" >&2
    fail "$1 does not compile" "\"$3\" failed; its last lines stand above." "install what is missing (Debian: $2)."
  }
}

# read_open_mpi - sets version, of the sources of the Open MPI that is installed, and headers, its folder. Debian's
# revision of a rebuilt package (+b1) has no sources of its own.
read_open_mpi() {
  version=$(dpkg-query -W -f '${source:Version}' libopenmpi-dev 2>/dev/null) ||
    fail "no Open MPI" "libopenmpi-dev is not installed." "apt-get install libopenmpi-dev"
  headers=/usr/lib/$(cc -print-multiarch)/openmpi/include
}

# Servers in the guest.

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
