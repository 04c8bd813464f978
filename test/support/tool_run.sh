# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
# shellcheck disable=SC2154 # tool is of who sources this
# tool_run.sh - a tool as its users run it, far from their homes and their environment. Sourced with $tool set.
grep -q "^#define HAVE_TOOLS" config.h || { echo "SKIP: built without CLI11 or nlohmann-json"; exit 77; }
[ -x "$tool" ] || { echo "there is no $tool"; exit 99; }
. "${srcdir:-.}/test/support/script.sh"

# expect STATUS WORDS...: runs the tool; what it writes is in $work/out and $work/err.
expect() {
  wanted=$1
  shift
  "$tool" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ "$status" -eq "$wanted" ] || fail "$tool $*: exit status $status, not $wanted"
}

# figure NAME: the first number of that name in JSON.
figure() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" "$work/out" | head -n 1; }
