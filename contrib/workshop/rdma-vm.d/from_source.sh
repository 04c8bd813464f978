# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # its users read suite and cache_root, and set speaker and follows
# from_source.sh - makes something from the sources of a Debian package, once, into a cache; nothing is installed. Sourced by
# contrib/openmpi, contrib/libfabric and contrib/pinrun.

from_source=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=contrib/workshop/rdma-vm.d/messages.sh
. "$from_source/messages.sh"
# shellcheck source=contrib/workshop/rdma-vm.d/debian.sh
. "$from_source/debian.sh"
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")

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
  [[ -n ${sources:-} ]] || from_mirrors deb-src "$suite" "$(dpkg --print-architecture)" download_source "$1=$2" || true
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
