#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# gpu_soak_test.sh - short runs of test/gpu/soak over the driver double: the four modes, the kinds of memory, and frees
# that the monitor sees by itself.
set -eu
soak=test/gpu/soak
check() {
  echo "soak --double $*"
  export CUDA_DOUBLE_GRANULARITY=16384 # rounds as short as with the other kinds
  all=$(timeout 120 $soak --double --rounds 1500 "$@") || true
  echo "$all"
  line=$(echo "$all" | tail -n 1)
  case $line in
    "soak: 1500 rounds, "*" bytes verified, 0 stale, 0 open handles left") ;;
    *) echo "gpu_soak_test: $* ends with: $line" >&2; exit 1 ;;
  esac
}
for mode in 1 2 3 4; do check --mode $mode; done
check --mode 4 --unit 32768
for kind in vmm pool; do
  for mode in 1 4; do check --mode $mode --kind $kind; done
done
for mode in 1 4; do check --mode $mode --kind pool --free defer; done
if [ "$(uname -m)" = x86_64 ]; then
  for kind in ipc vmm pool; do check --mode 3 --monitor cuda --kind $kind; done
fi
for wrong in "--mode 5" "--rounds x" "--rounds" "--kind x" "--free x" "--unit 100" "--what"; do
  code=0
  # shellcheck disable=SC2086 # two words
  $soak $wrong >/dev/null 2>&1 || code=$?
  [ $code = 2 ] || { echo "gpu_soak_test: $wrong exits with $code" >&2; exit 1; }
done

# The parts of a report about a real driver.
expect() {
  case $2 in
    *"$3"*) ;;
    *) echo "gpu_soak_test: $1 says $2, not $3" >&2; exit 1 ;;
  esac
}
story=$(timeout 120 test/gpu/story --double --peek)
expect story "$story" '"record_event": 0, "open_event": 0, "wait_for_event": 0, "destroy_event": 0,'
expect story "$story" '"open_second_while_first_is_open": 208, "the_old_mapping_shows": 1'
expect story "$story" '"neighbour_shows": 3, "second_shows_still": 2, "close_neighbour": 0, "second_shows_alone": 2,'
large=$(timeout 120 test/gpu/story --double --large)
expect "story --large" "$large" '"neighbours_are_apart": 8388608,'
reset=$(timeout 120 test/gpu/story --double --reset)
expect "story --reset" "$reset" '"reset": 0, "alloc_after_it": 709, "retain_after_it": 0, "the_same_context": true,'
expect "story --reset" "$reset" '"id_where_it_was": 0, "open_after_reset": 0, "at_the_same_address": true,'
kinds=$(timeout 120 test/gpu/kinds --double)
expect kinds "$kinds" '{"ipc": {"bytes": 32768, "attributes": 0, "legacy": 1, "handle_types": 0,'
expect kinds "$kinds" '"pool": {"bytes": 32768, "attributes": 0, "legacy": 0, "handle_types": 1, '
expect kinds "$kinds" '"two_allocations": {"open": 0, "open_other": 0, "both_are_right": true, "close": 0, "other_is_right_still": true, "close_other": 0}, "one_in_two_pools": {"open": 0, "open_other": 0, "both_are_right": true, "close": 0, "other_is_right_still": true, "close_other": 0}}, "cache":'
expect kinds "$kinds" '"free_at_once": 0, "released_ms": '
for program in story kinds; do
  code=0
  test/gpu/$program --what >/dev/null 2>&1 || code=$?
  [ $code = 2 ] || { echo "gpu_soak_test: $program --what exits with $code" >&2; exit 1; }
done
report=$(timeout 300 test/gpu/run --double --rounds 20 --json)
expect run "$report" '"driver": "--double"'
expect run "$report" '"kind": "pool", "mode": 4, "options": "--free defer", "exit": 0, "result": "soak: 20 rounds, '
if command -v python3 >/dev/null; then echo "$report" | python3 -m json.tool >/dev/null; fi
for wrong in "--rounds 0" "--rounds" "--what"; do
  code=0
  # shellcheck disable=SC2086 # two words
  test/gpu/run $wrong >/dev/null 2>&1 || code=$?
  [ $code = 2 ] || { echo "gpu_soak_test: run $wrong exits with $code" >&2; exit 1; }
done
