#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The model can fail: each line of test/model/mutants breaks a copy of one file, and the program built with that copy
# must find an execution that goes wrong. Every tenth line is tried so, with PINRAIL_TEST_LONG=1 every third, and with
# PINRAIL_MODEL_ALL=1 (make model-soak) every one; of the others only the expression is tried. That the programs find
# nothing in the unchanged code is what they show themselves.
set -u
every=10
[ -z "${PINRAIL_TEST_LONG:-}" ] || every=3
[ -z "${PINRAIL_MODEL_ALL:-}" ] || every=1
seconds=600 # the most that one program may take, on a machine that others use: it ends by itself in some seconds
srcdir=${srcdir:-$(dirname "$0")/../..}
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: the same as in a build without sanitizers"; exit 77; }
library=test/.libs/libmodel.a
[ -e "$library" ] || { echo "FAIL: $library is not built"; exit 1; }
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
wraps=$(sed -n 's/^model_wraps = //p' "$srcdir/test/local.mk")

# mutate NAME FILE EXPRESSION: makes the copy; false, with a line that begins with FAIL, if it is no other file.
mutate() {
  mkdir -p "$work/$1/$(dirname "$2")"
  sed "$3" "$srcdir/$2" >"$work/$1/$2"
  ! cmp -s "$work/$1/$2" "$srcdir/$2" || { echo "FAIL: $1: the expression matches nothing in $2" && return 1; }
}

# try NAME FILE EXPRESSION PROGRAM FILTER: a line that begins with "caught" or with FAIL.
try() {
  local place=$work/$1
  mutate "$1" "$2" "$3" || return
  # shellcheck disable=SC2086 # one word a flag
  if ! ${CXX:-g++} "${flags[@]}" -include "$work/first.h" -I"$place" -I"$srcdir" \
    -I"$srcdir/framework/include" -I. -c "$srcdir/test/model/$4_model_test.cc" -o "$place/test.o" >"$place/log" 2>&1 ||
    ! ${CXX:-g++} "$place/test.o" "$library" $wraps -lgtest -lpthread -o "$place/test" >"$place/log" 2>&1; then
    echo "FAIL: $1 does not compile: $(grep -m1 error "$place/log")"
    return
  fi
  timeout "$seconds" "$place/test" --gtest_filter="$5" >"$place/log" 2>&1
  local status=$?
  if [ $status -eq 1 ] && grep -q 'Which is: "' "$place/log"; then
    echo "caught $1: $(grep -m1 -o 'Which is: .*' "$place/log" | cut -c11-)"
  else
    echo "FAIL: $1 is not caught, status $status"
  fi
}

# GoogleTest's header, compiled once for all of them. Without it they compile, too.
flags=(-std=c++17 -O1 -w -fno-builtin -fsanitize=thread)
echo '#include <gtest/gtest.h>' >"$work/first.h"
${CXX:-g++} "${flags[@]}" -x c++-header "$work/first.h" -o "$work/first.h.gch" 2>/dev/null || rm -f "$work/first.h.gch"

running=0 lines=0
while IFS= read -r line; do
  case $line in '#'* | '') continue ;; esac
  lines=$((lines + 1))
  name=${line%% | *}
  file=$(awk -F' [|] ' '{print $2}' <<<"$line")
  program=$(awk -F' [|] ' '{print $(NF - 1)}' <<<"$line")
  filter=${line##* | }
  # The expression may hold bars of its own.
  expression=${line#*" | $file | "}
  expression=${expression%" | $program | $filter"}
  if [ $((lines % every)) -ne 0 ]; then
    mutate "$name" "$file" "$expression" >"$work/$name.result"
    continue
  fi
  try "$name" "$file" "$expression" "$program" "$filter" >"$work/$name.result" &
  running=$((running + 1))
  if [ $running -ge 2 ]; then
    wait -n
    running=$((running - 1))
  fi
done <"$srcdir/test/model/mutants"
wait
cat "$work"/*.result
! grep -q '^FAIL' "$work"/*.result || exit 1
[ "$(cat "$work"/*.result | grep -c '^caught')" -eq $((lines / every)) ] || { echo "FAIL: not every mutant was tried"; exit 1; }
