# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034 # its users read suite, extra_suite, extra and architecture
# roots.sh - the systems of contrib/workshop/on-system, and which root folders are in use. A run holds a shared lock on its root folder itself, until it ends; a root of
# another version is removed under the exclusive lock, hence only if no run holds it. Sourced by on-system, make-root and
# contrib/workshop/on-arm64.

# One per line: name, suite, suite of extra packages, extra packages. Those of another architecture have it at the end of
# their names.
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

# tree_of CACHE SYSTEM TOP full|plain - the folder of that system's copy of the sources TOP.
tree_of() { echo "$1/$2/tree-$(printf '%s' "$3" | sha256sum | cut -c1-8)$([[ $4 == full ]] || echo -fresh)"; }

# remove_sources TREE LIST - removes the files that LIST names from TREE, and what was built of them there with its record of
# dependencies: make would not build an object any more whose record names a file that is gone.
remove_sources() {
  local record object
  [[ -s $2 ]] || return 0
  (cd "$1" && xargs -d '\n' rm -f --) <"$2"
  sed 's|^|/|' "$2" | { grep -rlFf - --include='*.Po' --include='*.Plo' "$1" || true; } | while IFS= read -r record; do
    object=${record/.deps\//}
    rm -f -- "$record" "${object%.P*}.o" "${object%.P*}.lo"
  done
}

# hold_root FOLDER - on descriptor 6. Fails if the folder is gone, or is another one by now; then nothing is held.
hold_root() {
  { exec 6<"$1"; } 2>/dev/null || return 1
  flock -s 6
  if [[ ! /proc/self/fd/6 -ef $1 ]]; then
    exec 6<&-
    return 1
  fi
}

# remove_unused_roots FOLDER...
remove_unused_roots() {
  local folder
  for folder in "$@"; do
    (
      exec 6<"$folder"
      if flock -n -x 6; then rm -rf --one-file-system -- "$folder"; fi
    )
  done
}
