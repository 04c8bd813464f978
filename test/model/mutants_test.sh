#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The model can fail: each line of test/model/mutants breaks a copy of one file, and the program built with that copy
# must find an execution that goes wrong.
set -u
seconds=600 # the most that one program may take, on a machine that others use: it ends by itself in some seconds
srcdir=${srcdir:-$(dirname "$0")/../..}
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: the same as in a build without sanitizers"; exit 77; }
library=test/.libs/libmodel.a
[ -e "$library" ] || { echo "FAIL: $library is not built"; exit 1; }
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
wraps=$(sed -n 's/^model_wraps = //p' "$srcdir/test/local.mk")

# try NAME FILE EXPRESSION PROGRAM FILTER: a line that begins with "caught" or with FAIL.
try() {
  local place=$work/$1
  mkdir -p "$place/$(dirname "$2")"
  sed "$3" "$srcdir/$2" >"$place/$2"
  if cmp -s "$place/$2" "$srcdir/$2"; then
    echo "FAIL: $1: the expression matches nothing in $2"
    return
  fi
  # shellcheck disable=SC2086 # one word a flag
  if ! ${CXX:-g++} -std=c++17 -O1 -w -fno-builtin-memset -fsanitize=thread -I"$place" -I"$srcdir" \
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

# What fails without a mutant shows nothing with one.
for program in references pool; do
  [ -x "test/model/${program}_model" ] || { echo "FAIL: test/model/${program}_model is not built"; exit 1; }
  filter=$(sed -n "s/.* | $program | //p" "$srcdir/test/model/mutants" | sort -u | paste -sd:)
  timeout "$seconds" "test/model/${program}_model" --gtest_filter="$filter" >"$work/log" 2>&1 || {
    echo "FAIL: ${program}_model fails without any mutant"
    exit 1
  }
done

running=0
while IFS= read -r line; do
  case $line in '#'* | '') continue ;; esac
  name=${line%% | *}
  file=$(awk -F' [|] ' '{print $2}' <<<"$line")
  program=$(awk -F' [|] ' '{print $(NF - 1)}' <<<"$line")
  filter=${line##* | }
  # The expression may hold bars of its own.
  expression=${line#*" | $file | "}
  expression=${expression%" | $program | $filter"}
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
[ "$(cat "$work"/*.result | wc -l)" -ge 10 ] || { echo "FAIL: the list of mutants was not read"; exit 1; }
