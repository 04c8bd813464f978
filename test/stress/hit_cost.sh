#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Instructions of 10,000 hits of one thread, beside 1 and beside 1,024 threads that use the pool (callgrind). Called in
# the build folder; fails if the second figure is above the first by more than one hundredth.
set -u -o pipefail
command -v valgrind >/dev/null || { echo "SKIP: valgrind is not installed"; exit 77; }
export LD_LIBRARY_PATH=$PWD/.libs PINRAIL_MCA_mca_base_component_path=$PWD/components/.libs
program=test/stress/.libs/hit_cost
[ -x $program ] || program=test/stress/hit_cost
output=$(mktemp)
trap 'rm -f "$output"' EXIT
cost() {
  valgrind -q --tool=callgrind --max-threads=1100 --toggle-collect=pinrail_test_hit_often --callgrind-out-file="$output" \
    "$program" "$1" >/dev/null 2>&1 || { echo "hit_cost $1 failed" >&2; exit 1; }
  awk '/^(summary|totals):/ {print $2; exit}' "$output"
}
one=$(cost 1) many=$(cost 1024)
echo "hit_cost: 10,000 hits take $one instructions alone, $many beside 1,024 threads"
[ "$many" -le $((one + one / 100)) ]
