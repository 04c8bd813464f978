#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# interpose_test.sh - runs test/interpose/interpose under every allocator and beside every other runtime that is installed. In
# the build tree.
#   test/interpose_test.sh [--seconds S | --minutes M] [--threads N] [--only PATTERN] [--help]
#     --minutes 5   what a release is tried with: five minutes for each combination
# Prints one line for each: passed, failed or skipped, with the reason. Status 0: nothing failed; 77: nor was any allocator or
# runtime of those asked for tried.
set -u -o pipefail
time=(--seconds 0.8) threads=4 only=.
[ -z "${PINRAIL_TEST_LONG:-}" ] || time=(--seconds 1.5)
while [ $# -gt 0 ]; do
  case $1 in
    --seconds | --minutes) time=("$1" "${2:?}"); shift ;;
    --threads) threads=${2:?}; shift ;;
    --only) only=${2:?}; shift ;;
    --help) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "interpose: unknown option $1; try --help" >&2; exit 2 ;;
  esac
  shift
done
program=test/interpose/interpose
own=$PWD/test/interpose/.libs/free_madvises.so
libraries=$PWD/.libs
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: a sanitizer has an allocator of its own"; exit 77; }
[ -x $program ] || { echo "SKIP: $program is not built here (no io_uring, or another machine)"; exit 77; }
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=0 passed=0 skipped=0
were_tried=no

known=$(PATH=$PATH:/sbin ldconfig -p 2>/dev/null)
has_library() { grep -q "^\s*$1 " <<<"$known"; }

# tell RESULT NAME TEXT
tell() {
  printf '%-7s %-24s %s\n' "$1" "$2" "$3"
  eval "$1=\$(($1 + 1))"
}

# combination NAME WANTED_STATUS NEEDED_LIBRARY PRELOAD OPTION...
combination() {
  local name=$1 wanted=$2 needed=$3 preload=$4 status
  shift 4
  grep -qE "$only" <<<"$name" || return 0
  if [ -n "$needed" ] && ! has_library "$needed"; then
    tell skipped "$name" "$needed is not installed"
    return
  fi
  LD_LIBRARY_PATH=$libraries LD_PRELOAD=$preload timeout 3600 "$program" "${time[@]}" --threads "$threads" "$@" \
    >"$output" 2>&1
  status=$?
  if [ $status -eq 77 ]; then
    tell skipped "$name" "$(tail -1 "$output")"
  elif [ $status -ne "$wanted" ]; then
    tell failed "$name" "status $status"
    cat "$output"
  elif [ -n "$preload" ] && [ "$wanted" -eq 0 ] && ! grep -q "^allocator .*$(basename "$preload")" "$output"; then
    tell failed "$name" "its allocator was not used: $(grep ^allocator "$output")"
  else
    tell passed "$name" "$(grep '^interpose:' "$output" | tail -1)"
    case $name in must-*) ;; *) were_tried=yes ;; esac
  fi
}

mimalloc=libmimalloc.so.2
! has_library libmimalloc.so.3 || mimalloc=libmimalloc.so.3
openmpi=libopen-pal.so.40
! has_library libopen-pal.so.80 || openmpi=libopen-pal.so.80
allocators=(libc: jemalloc:libjemalloc.so.2 "mimalloc:$mimalloc" tcmalloc:libtcmalloc_minimal.so.4 \
  "free_madvises:$own")
for allocator in "${allocators[@]}"; do
  library=${allocator#*:}
  needed=$library
  case $library in /*) needed= ;; esac
  combination "${allocator%%:*}" 0 "$needed" "$library"
done
for when in before after running; do
  combination "ucx-$when" 0 libucm.so.0 "" --peer ucx --when $when
  combination "openmpi-$when" 0 $openmpi "" --peer openmpi --when $when
done
# The others can fail: without reports differences are found.
time=(--seconds 2)
combination must-see-differences 1 "" "" --monitor external --no-writes
echo "interpose: $passed passed, $skipped skipped, $failed failed"
[ $failed -eq 0 ] || exit 1
[ $were_tried = yes ] || exit 77
