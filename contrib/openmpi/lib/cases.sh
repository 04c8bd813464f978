# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# cases.sh - prints the result of each case, and the log of one that failed. Sourced.
# shellcheck disable=SC2154 # pattern and work are the caller's

passed=0 failed=0 skipped=0

# wanted NAME
# shellcheck disable=SC2053 # a pattern
wanted() { [[ $1 == $pattern ]]; }

pass() { passed=$((passed + 1)) && echo "passed $1"; }
skip() { skipped=$((skipped + 1)) && echo "skipped $1: $2"; }

# fail_case NAME WHY LOG: in the log the program's output stands above mpirun's report of its end.
fail_case() {
  failed=$((failed + 1))
  echo "failed $1: $2"
  tail -n 40 -- "$3" | sed 's/^/  | /'
}

summary() {
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0 && passed > 0))
}
