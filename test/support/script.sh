# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
# shellcheck disable=SC2034 # who sources this uses them
# script.sh - what tests that are scripts share: $srcdir, a folder $work, which is the home of what they run, none of this
# user's parameters, and fail WORDS..., which counts in $failures and shows $work/out and $work/err. Sourced.
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
