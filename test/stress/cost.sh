#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# cost.sh hit|miss [MOST] - instructions by callgrind, in the build folder; fails if there are more than MOST, in a build with
# GCC and without --enable-debug. For what is counted see cost.cc.
#   hit   the program's loop not included: among 1 and among 1,024 regions, and among 64 parts of one region; and of one thread
#         beside 1 and beside 1,024 threads that use the pool, which may be one hundredth more
#   miss  with its eviction, and the locked ones among them, as the second section of HACKING says. The check of the monitors is
#         left out, because it runs every 40 us, which under callgrind is at most misses
set -u -o pipefail
command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed"; exit 77; }
export LD_LIBRARY_PATH=$PWD/.libs PINRAIL_MCA_mca_base_component_path=$PWD/components/.libs
program=test/stress/.libs/cost
[ -x $program ] || program=test/stress/cost
output=$(mktemp)
trap 'rm -f "$output"' EXIT
is_debug() { grep -q '^PINRAIL_DEBUG_CPPFLAGS = .*PINRAIL_DEBUG' Makefile; }

hit_cost() {  # hit_cost THREADS REGIONS [inner]
  valgrind -q --tool=callgrind --max-threads=1100 --toggle-collect=pinrail_test_hit_often --callgrind-out-file="$output" \
    $program hit "$@" >/dev/null 2>&1 || { echo "cost hit $* failed" >&2; exit 1; }
  callgrind_annotate --inclusive=yes --auto=no "$output" 2>/dev/null | sed 's/,//g' |
    awk 'match($0, /:pinrail_mpool_(de)?register( |$)/) {
      name = substr($0, RSTART, RLENGTH)
      sub(/ $/, "", name)
      if ($1 > whole[name]) whole[name] = $1  # the other lines are what was inlined from other files
    } END {printf "%.0f\n", (whole[":pinrail_mpool_register"] + whole[":pinrail_mpool_deregister"]) / 10000}'
}
hits() {
  local most=$1 hot random inner many
  hot=$(hit_cost 1 1) random=$(hit_cost 1 1024) inner=$(hit_cost 1 64 inner) many=$(hit_cost 1024 1)
  echo "cost of a hit: $hot instructions, $random among 1,024 regions, $inner among parts of one, $many beside 1,024 threads;" \
    "at most $most"
  ! is_debug || most=999999
  [ "$hot" -gt 0 ] && [ "$hot" -le "$most" ] && [ "$random" -le "$most" ] && [ "$inner" -le "$most" ] &&
    [ "$many" -le $((hot + hot / 100)) ]
}

misses() {
  local misses=20480 most=$1 all all_locked check check_locked
  ! is_debug || { echo "SKIP: debug builds check more"; exit 77; }
  valgrind -q --tool=callgrind --collect-bus=yes --toggle-collect=pinrail_test_miss_often --callgrind-out-file="$output" \
    $program miss >/dev/null 2>&1 || { echo "cost miss failed" >&2; exit 1; }
  # Two figures of a line of callgrind_annotate, without the commas and the percentages.
  figures() { sed -E 's/\([^)]*\)//g; s/,//g; s/ \. / 0 /g' | awk '{print $1 + 0, $2 + 0; exit}'; }
  read -r all all_locked < <(callgrind_annotate "$output" 2>/dev/null | grep 'PROGRAM TOTALS' | figures)
  read -r check check_locked < <(callgrind_annotate --inclusive=yes "$output" 2>/dev/null |
    grep -E 'monitor::check\(\)' | figures)
  awk -v a="$all" -v al="$all_locked" -v c="${check:-0}" -v cl="${check_locked:-0}" -v n=$misses -v most="$most" 'BEGIN {
    printf "cost of a miss: %.0f instructions, %.1f of them locked; at most %d\n", (a - c) / n, (al - cl) / n, most
    exit a == 0 || (a - c) / n > most }'
}

case ${1:-} in
  hit) hits "${2:-110}" ;;
  miss) misses "${2:-4800}" ;;
  *) echo "usage: test/stress/cost.sh hit|miss [MOST]" >&2; exit 2 ;;
esac
