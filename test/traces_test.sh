#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# traces_test.sh - replays recorded traces: no error, and no fewer hits than the table beside them says.
# PINRAIL_TRACES names another folder with a README.md of that kind, PINRAIL_PERF another binary; words on the command
# line are passed to pinrail_perf. Exit status 77: no registrar works here.
set -u
tool=${PINRAIL_PERF:-./contrib/tools/pinrail_perf}
srcdir=${srcdir:-$(dirname "$0")/..}
traces=${PINRAIL_TRACES:-$srcdir/test/traces}
. "$srcdir/test/support/script.sh"
replayed=0

# reference NAME COLUMN: a cell of the README's table.
reference() {
  awk -F'|' -v name="$1" -v column="$2" '
    function cell(i) { gsub(/^ +| +$/, "", $i); return $i }
    cell(2) == "trace" { for (i = 2; i < NF; i++) if (cell(i) == column) at = i }
    cell(2) == name && at { print cell(at); exit }' "$traces/README.md"
}

check() { # check NAME STATUS
  calls=$(figure calls) hits=$(figure hits) errors=$(figure errors)
  wanted_calls=$(reference "$1" "register calls")
  wanted=$(reference "$1" "reference hits")
  echo "$1: status $2, $calls calls, $hits hits (reference $wanted), $errors errors, $(figure seconds) s"
  [ "$2" -eq 0 ] && [ -n "$wanted" ] && [ "$calls" = "$wanted_calls" ] && [ "$hits" -ge "$wanted" ] &&
    [ "$errors" -eq 0 ]
}

"$tool" --size 4K --iterations 10 >"$work/out" 2>"$work/err"
if [ $? -ne 0 ] && grep -q NOT_AVAILABLE "$work/err"; then
  echo "SKIP: no registrar works here"
  exit 77
fi

for file in "$traces"/*.trace.xz; do
  "$tool" --json --trace "$file" "$@" >"$work/out" 2>"$work/err"
  status=$?
  if grep -q 'no liblzma' "$work/err"; then
    echo "SKIP: this build has no liblzma"
    exit 77
  fi
  replayed=$((replayed + 1))
  check "$(basename "$file" .trace.xz)" "$status" && continue
  cat "$work/err"
  failures=$((failures + 1))
done

echo "$replayed traces, $failures failed"
[ "$replayed" -gt 0 ] && [ "$failures" -eq 0 ]
