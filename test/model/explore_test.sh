#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# explore_test.sh - the protocol of references on the weak machine (test/model/README): all cases that run on x86, but for
# one that takes half a minute. With PINRAIL_MODEL_ALL=1 (make model-soak) that one as well, and, on x86, the cases of
# pools that are DISABLED_. Runs in the build tree.
set -u
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: the same as in a build without sanitizers"; exit 77; }
# tried MACHINE PROGRAM [OPTION]...: prints what failed, and how many passed.
tried() {
  machine=$1
  shift
  if said=$(PINRAIL_MODEL_MACHINE=$machine "$@" 2>&1) && ! printf '%s\n' "$said" | grep -q 'PASSED  . 0 tests'; then
    echo "explore_test: $1 on $machine: $(printf '%s\n' "$said" | sed -n 's/^\[  PASSED  \] \([0-9]* tests\{0,1\}\).*/\1/p') passed"
  else
    printf '%s\n' "$said" | grep -v '^\[       OK'
    echo "explore_test: $1 on $machine failed"
    return 1
  fi
}
pools() { tried "$1" test/model/pool_model --gtest_also_run_disabled_tests --gtest_filter="$2"; }
skipped='*DISABLED_*'
[ -n "${PINRAIL_MODEL_ALL:-}" ] || skipped="$skipped:*_of_what_is_claimed_twice"
# Half of the cases of pools each, because one explorer uses one processor.
half() {
  GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$1
  export GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX
  pools weak "-$skipped" && { [ -z "${PINRAIL_MODEL_ALL:-}" ] || pools x86 '*DISABLED_*'; }
}
half 0 &
other=$!
tried weak test/model/references_model && half 1
status=$?
wait "$other" && exit "$status"
exit 1
