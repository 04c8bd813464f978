#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Instructions of hits (callgrind), the program's loop not included: among 1 and among 1,024 regions, and among 64 parts
# of one region; and of one thread beside 1 and beside 1,024 threads that use the pool. Called in the build folder. Fails
# if a hit takes more instructions than given as the first argument, in a build with GCC and without --enable-debug, or if
# it takes more by one hundredth beside 1,024 threads.
set -u -o pipefail
most=${1:-110}
command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed"; exit 77; }
export LD_LIBRARY_PATH=$PWD/.libs PINRAIL_MCA_mca_base_component_path=$PWD/components/.libs
program=test/stress/.libs/hit_cost
[ -x $program ] || program=test/stress/hit_cost
output=$(mktemp)
trap 'rm -f "$output"' EXIT
cost() {  # cost THREADS REGIONS [inner]
  valgrind -q --tool=callgrind --max-threads=1100 --toggle-collect=pinrail_test_hit_often --callgrind-out-file="$output" \
    "$program" "$@" >/dev/null 2>&1 || { echo "hit_cost $* failed" >&2; exit 1; }
  callgrind_annotate --inclusive=yes --auto=no "$output" 2>/dev/null | sed 's/,//g' |
    awk 'match($0, /:pinrail_mpool_(de)?register( |$)/) {
      name = substr($0, RSTART, RLENGTH)
      sub(/ $/, "", name)
      if ($1 > whole[name]) whole[name] = $1  # the other lines are what was inlined from other files
    } END {printf "%.0f\n", (whole[":pinrail_mpool_register"] + whole[":pinrail_mpool_deregister"]) / 10000}'
}
hot=$(cost 1 1) random=$(cost 1 1024) inner=$(cost 1 64 inner) many=$(cost 1024 1)
echo "hit_cost: $hot instructions, $random among 1,024 regions, $inner among parts of one, $many beside 1,024 threads;" \
  "at most $most"
! grep -q '^PINRAIL_DEBUG_CPPFLAGS = .*PINRAIL_DEBUG' Makefile || most=999999
[ "$hot" -gt 0 ] && [ "$hot" -le "$most" ] && [ "$random" -le "$most" ] && [ "$inner" -le "$most" ] &&
  [ "$many" -le $((hot + hot / 100)) ]
