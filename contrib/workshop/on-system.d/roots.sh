# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# roots.sh - which root folders are in use. A run holds a shared lock on its root folder itself, until it ends; a root of
# another version is removed under the exclusive lock, hence only if no run holds it. Sourced by on-system, make-root and
# contrib/workshop/on-arm64.

# tree_of CACHE SYSTEM TOP full|plain - the folder of that system's copy of the sources TOP.
tree_of() { echo "$1/$2/tree-$(printf '%s' "$3" | sha256sum | cut -c1-8)$([[ $4 == full ]] || echo -fresh)"; }

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
