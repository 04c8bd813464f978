# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
# shellcheck disable=SC2034 # who sources this uses them
# script.sh - what tests that are scripts share: $srcdir, a folder $work, which is the home of what they run, none of this
# user's parameters, and fail WORDS..., which counts in $failures and shows $work/out and $work/err. Sourced.
# With $tool set to a program's path: that it is there, and how users run it, far from their homes and environment.
if [ -n "${tool:-}" ]; then
  grep -q "^#define HAVE_TOOLS" config.h || { echo "SKIP: built without CLI11 or nlohmann-json"; exit 77; }
  [ -x "$tool" ] || { echo "there is no $tool"; exit 99; }
fi
srcdir=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd) || exit 99
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
HOME=$work
export HOME
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PINRAIL_MCA_[A-Za-z0-9_]*\)=.*/\1/p') 2>/dev/null
failures=0

fail() {
  echo "FAIL: $*"
  cat "$work/out" "$work/err" 2>/dev/null | sed 's/^/  | /'
  failures=$((failures + 1))
}

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
