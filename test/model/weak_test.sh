#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# weak_test.sh - the protocol of references on the weak machine (test/model/README): all cases of references, and those of
# whole pools that take some seconds; with PINRAIL_TEST_LONG=1 all that run on x86, some minutes. Runs in the build tree.
set -u
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: the same as in a build without sanitizers"; exit 77; }
PINRAIL_MODEL_MACHINE=weak
export PINRAIL_MODEL_MACHINE
quick='PoolModel.a_hit_against_an_invalidation:*.a_noted_drop_against_the_evictor:*.two_evictors:*.two_drops'
quick=$quick:'*.an_event_against_the_same_event:*.a_drop_on_another_thread_against_the_evictor'
[ -z "${PINRAIL_TEST_LONG:-}" ] || quick='*'
# Prints what failed, and how many passed.
tried() {
  if said=$("$@" 2>&1); then
    echo "weak_test: $1: $(printf '%s\n' "$said" | sed -n 's/^\[  PASSED  \] \([0-9]* tests\{0,1\}\).*/\1/p') passed"
  else
    printf '%s\n' "$said" | grep -v '^\[       OK'
    echo "weak_test: $1 failed"
    return 1
  fi
}
# Half of the cases of pools each, because one explorer uses one processor.
half() { GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$1 tried test/model/pool_model --gtest_filter="$quick"; }
half 0 &
other=$!
tried test/model/references_model && half 1
status=$?
wait "$other" && exit "$status"
exit 1
