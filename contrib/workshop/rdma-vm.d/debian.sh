# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # build is the caller's
# debian.sh - packages of any of Debian's suites, without that suite being added to the machine. Sourced by get-kernel
# and by contrib/openmpi. Lists and downloads go into $build, apt's output into $build/apt.log.

# Prints the mirrors that this machine's own apt uses for Debian, one per line.
mirrors() {
  local codename
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
  apt-get --print-uris update 2>/dev/null |
    sed -n -E "s!^'(.*)/dists/($codename|oldstable|stable|testing|unstable|sid)/InRelease'.*!\\1!p" | awk '!seen[$0]++'
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
