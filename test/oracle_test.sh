#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# oracle_test.sh - a short run of the oracle: no difference with Pinrail's own monitors, some without any, one mutant
# that must be caught, and words that are no options. Runs in the build tree. Exit status 77: memory cannot be pinned
# here, or a sanitizer keeps monitors from patching.
set -u
grep -q "^#define HAVE_TOOLS" config.h || { echo "SKIP: built without CLI11 or nlohmann-json"; exit 77; }
oracle=test/oracle/oracle
mutants=test/oracle/oracle_mutants
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: sanitizers and code patching do not go together"; exit 77; }
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"

# try STATUS PROGRAM ARGUMENT...
try() {
  wanted=$1
  shift
  timeout 120 "$@" >"$work/out" 2>&1
  status=$?
  [ "$status" -eq 77 ] && [ "$wanted" -ne 77 ] && { grep SKIP "$work/out"; exit 77; }
  [ "$status" -eq "$wanted" ] || fail "$*: exit status $status, not $wanted"
}

last() { tail -n 1 "$work/out"; }

try 0 $oracle --seconds 5
last | grep -Eq '^oracle: [1-9][0-9]* operations, [1-9][0-9]* bytes verified, 0 differences$' || fail "the last line: $(last)"
grep -q '^munmap .* [1-9][0-9]* *0$' "$work/out" || fail "munmap is not counted, or was answered from the cache"

# Two events of its own that move the break leave each other's memory alone.
try 0 $oracle --seconds 2 --threads 8 --events brk,free-trim --largest 64

# A user's limit, as most systems set it: both pools fill it, and requests that find it in use are no failures.
privileged=
[ "$(id -u)" -ne 0 ] || ! command -v setpriv >/dev/null || privileged="setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock"
# shellcheck disable=SC3045 # dash and bash have it
if (ulimit -l 8192) 2>/dev/null && { [ "$(id -u)" -ne 0 ] || [ -n "$privileged" ]; }; then
  # shellcheck disable=SC2016,SC2086
  try 0 $privileged sh -c 'ulimit -l 8192 && exec "$@"' sh $oracle --seconds 3 --events munmap,mmap-over
fi

# It can fail: without a monitor, and if one kind of event is hidden.
try 1 $oracle --seconds 1 --monitor none
last | grep -Eq ', [1-9][0-9]* differences$' || fail "without a monitor no difference was found"
grep -q 'DIFFERENCE: buffer .* the device' "$work/out" || fail "a difference is not explained"
try 0 $mutants --seconds 2 --prepin --events munmap,mmap-over
grep -q "^pinned ahead  [1-9]" "$work/out" || fail "nothing was pinned ahead"
try 1 $mutants --seconds 30 --mutant munmap-reuse
last | grep -Eq ', [1-9][0-9]* differences$' || fail "the mutant was not caught"

try 0 $mutants --mutant list
grep -q '^munmap ' "$work/out" || fail "munmap is not listed"
grep -q '^mprotect ' "$work/out" && fail "mprotect is listed, after which registrations are good"
try 2 $mutants --mutant munmapp
try 2 $mutants --mutant fork
try 2 $oracle --mutant munmap
try 2 $oracle --seconds 0
try 2 $oracle --seconds
try 2 $oracle --threads 65
try 2 $oracle --events munmap,nothing
try 2 $oracle --nonsense
try 2 $oracle munmap
try 2 $oracle --monitor nosuch --seconds 1
try 0 $oracle --help
grep -q -e --mutant "$work/out" || fail "--help does not tell of --mutant"
$oracle --help >/dev/full 2>"$work/out"
[ $? -eq 1 ] || fail "--help >/dev/full: it says that all is well"
exit $((failures != 0))
