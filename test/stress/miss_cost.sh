#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Instructions, and locked ones among them, of a miss with its eviction (callgrind): miss_cost.cc. Called in the build
# folder of a build with GCC and without --enable-debug; fails if there are more than the second section of HACKING says.
# The check of the monitors is left out, because it runs every 40 us, which under callgrind is at most misses.
set -u -o pipefail
misses=20480 most=${1:-4800}
command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed"; exit 77; }
! grep -q '^PINRAIL_DEBUG_CPPFLAGS = .*PINRAIL_DEBUG' Makefile || { echo "SKIP: debug builds check more"; exit 77; }
export LD_LIBRARY_PATH=$PWD/.libs PINRAIL_MCA_mca_base_component_path=$PWD/components/.libs
program=test/stress/.libs/miss_cost
[ -x $program ] || program=test/stress/miss_cost
output=$(mktemp)
trap 'rm -f "$output"' EXIT
valgrind -q --tool=callgrind --collect-bus=yes --toggle-collect=pinrail_test_miss_often --callgrind-out-file="$output" \
  $program >/dev/null 2>&1 || { echo "miss_cost failed" >&2; exit 1; }
# Two figures of a line of callgrind_annotate, without the commas and the percentages.
figures() { sed -E 's/\([^)]*\)//g; s/,//g; s/ \. / 0 /g' | awk '{print $1 + 0, $2 + 0; exit}'; }
read -r all all_locked < <(callgrind_annotate "$output" 2>/dev/null | grep 'PROGRAM TOTALS' | figures)
read -r check check_locked < <(callgrind_annotate --inclusive=yes "$output" 2>/dev/null |
  grep -E 'monitor::check\(\)' | figures)
awk -v a="$all" -v al="$all_locked" -v c="${check:-0}" -v cl="${check_locked:-0}" -v n=$misses -v most="$most" 'BEGIN {
  printf "miss_cost: %.0f instructions, %.1f of them locked; at most %d\n", (a - c) / n, (al - cl) / n, most
  exit a == 0 || (a - c) / n > most }'
