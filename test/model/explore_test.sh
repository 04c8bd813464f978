#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# explore_test.sh - all cases of the model on the weak machine (test/model/README), which allows whatever x86 does. Runs
# in the build tree.
set -u
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: the same as in a build without sanitizers"; exit 77; }
# tried MACHINE PROGRAM: prints what failed, and how many passed.
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
tried weak test/model/references_model && tried weak test/model/pool_model
