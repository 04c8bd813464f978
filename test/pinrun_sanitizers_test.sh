#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# pinrun_sanitizers_test.sh - programs that are built with a sanitizer: one of libibverbs under pinrun, and one of
# libpinrail, with the address, thread and undefined-behaviour sanitizers of GCC and Clang, each with its runtime as a
# shared and as a static library. Each must run, and the sanitizer must report a mistake. Runs in the build tree, beside
# a double of libibverbs. A line each: "passed NAME", "FAIL: NAME: why" or "skipped NAME".
set -u
srcdir=${srcdir:-..}
pinrun=$PWD/contrib/pinrun/pinrun
[ -x "$pinrun" ] || { echo "SKIP: pinrun is not built here (no libibverbs, no shared libraries, or a sanitizer)"; exit 77; }
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PIN\(RAIL_MCA\|RUN\)_[A-Za-z0-9_]*\)=.*/\1/p') 2>/dev/null
unset LD_PRELOAD ASAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
libraries=$PWD/test/fake/verbs/.libs:$PWD/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failures=0

failed() {
  echo "FAIL: $1: $2"
  sed 's/^/  | /' "$work/out"
  failures=$((failures + 1))
}

# runtime_option COMPILER SANITIZER KIND
runtime_option() {
  case $1-$3 in
    g++-static) case $2 in address) echo -static-libasan ;; thread) echo -static-libtsan ;; *) echo -static-libubsan ;; esac ;;
    clang++-shared) echo -shared-libsan ;;
  esac
}

# build NAME COMPILER SANITIZER KIND: makes $work/verbs and $work/pool.
build() {
  local options=(-std=c++17 -g -O1 "-fsanitize=$3" -pthread "-I$srcdir" "-I$srcdir/framework/include" -Iframework/include)
  [ "$3" != address ] || options+=(-DPINRAIL_TEST_ADDRESS)
  # shellcheck disable=SC2207 # one option or none
  options+=($(runtime_option "$2" "$3" "$4"))
  "$2" "${options[@]}" "$srcdir/test/pinrun/sanitized.cc" -o "$work/verbs" -Ltest/fake/verbs/.libs -libverbs &&
    "$2" "${options[@]}" -DPINRAIL_TEST_POOL "$srcdir/test/pinrun/sanitized.cc" -o "$work/pool" -L.libs -lpinrail
}

report_of() { case $1 in address) echo heap-buffer-overflow ;; thread) echo 'data race' ;; *) echo 'runtime error' ;; esac; }

# run ARGUMENT...: the double keeps its regions, so that leaks are not looked for. libpinrail is not instrumented here.
# What the shell says of a program that a signal ends is not printed.
run() {
  ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=$tsan LD_LIBRARY_PATH=$path timeout 120 "$@" >"$work/out" 2>&1
} 2>/dev/null

# check NAME SANITIZER COMMAND...
check() {
  local name=$1 sanitizer=$2
  shift 2
  if ! run "$@" || ! grep -q '^all was right$' "$work/out"; then
    failed "$name" "it does not run"
  elif grep -qE 'ERROR: |WARNING: |runtime error' "$work/out"; then
    failed "$name" "the sanitizer reports what is right"
  elif [ "$1" = "$pinrun" ] && ! grep -q 'registrations by the program: [1-9][0-9]* from the cache' "$work/out"; then
    failed "$name" "the cache does not serve it"
  elif run "$@" mistake; ! grep -q "$(report_of "$sanitizer")" "$work/out"; then
    failed "$name" "the sanitizer does not report a mistake"
  else
    echo "passed  $name"
    passed=$((passed + 1))
  fi
}

# try COMPILER SANITIZER KIND
try() {
  local name="$1, $2, $3 runtime" path=$libraries tsan=''
  [ "$1-$3" != clang++-shared ] ||
    path=$libraries:$(dirname -- "$(clang++ -print-file-name="libclang_rt.asan-$(uname -m).so")")
  if ! build "$name" "$@" >"$work/out" 2>&1; then
    echo "skipped $name: this machine builds none: $(tail -n 1 "$work/out")"
  elif ! run "$work/verbs"; then
    echo "skipped $name: such a program does not run without pinrun, either"
  else
    check "$name, under pinrun" "$2" "$pinrun" --stats "$work/verbs"
    tsan=ignore_noninstrumented_modules=1 check "$name, with libpinrail" "$2" "$work/pool"
  fi
}

for compiler in g++ clang++; do
  command -v $compiler >/dev/null || { echo "skipped $compiler: it is not installed"; continue; }
  for sanitizer in address thread undefined; do
    for kind in shared static; do try $compiler $sanitizer $kind; done
  done
done
[ $failures -eq 0 ] || exit 1
[ $passed -gt 0 ] || { echo "SKIP: this machine builds no program with a sanitizer"; exit 77; }
