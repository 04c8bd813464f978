#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# pinrun_test.sh - the launcher's options, and what a program of libibverbs sees under it. Runs in the build tree, beside
# a double of libibverbs; contrib/pinrun/run-guest runs real programs beside a soft-RoCE device.
set -u
pinrun=contrib/pinrun/pinrun
[ -x "$pinrun" ] || { echo "SKIP: pinrun is not built here (no libibverbs, no shared libraries, or a sanitizer)"; exit 77; }
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PIN\(RAIL_MCA\|RUN\)_[A-Za-z0-9_]*\)=.*/\1/p') 2>/dev/null
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAIL: $*"; sed 's/^/  | /' "$work/out"; failures=$((failures + 1)); }

# expect STATUS TEXT ARGUMENT...: the status, and a line of the output that contains the text.
expect() {
  local status=$1 words=$2 got=0
  shift 2
  "$pinrun" "$@" >"$work/out" 2>&1 || got=$?
  [ "$got" -eq "$status" ] || fail "pinrun $* ended with $got, not $status"
  grep -qF -- "$words" "$work/out" || fail "pinrun $* does not say: $words"
}
expect 0 'Usage: pinrun' --help
expect 0 'pinrun ' --version
expect 0 'pinrun ' -V
expect 0 'Usage: pinrun' -h
for option in --version --help; do
  "$pinrun" $option >/dev/full 2>"$work/out"
  [ $? -eq 1 ] || fail "pinrun $option >/dev/full: it says that all is well, or another word"
done
expect 2 'no command'
expect 2 '--nothing is no option' --nothing true
expect 2 '--record needs a file' --record
expect 2 'does not exist' --record "$work/nowhere/trace" true
mkdir -p "$work/here/traces" "$work/elsewhere/traces"
(cd "$work/here" && CDPATH=$work/elsewhere "$OLDPWD/$pinrun" --record traces/trace env) >"$work/out" 2>&1
grep -qxF "PINRAIL_MCA_mpool_base_record=$work/here/traces/trace" "$work/out" || fail "--record goes to a folder of CDPATH"
expect 2 '--mca needs a name and a value' --mca name
expect 2 'is not the name of a parameter' --mca 'a b' 1 true
expect 127 'no-such-program' no-such-program
expect 3 'as it is' -- sh -c 'echo as it is; exit 3'
# A command that registers nothing says so, once.
expect 0 'no registration by this process' --stats bash -c 'env true; (exit 0); echo'
[ "$(grep -c 'pinrun: ' "$work/out")" -eq 1 ] || fail "each process without a registration says so"

if [ -x test/pinrun/calls ]; then
  LD_LIBRARY_PATH=$PWD/test/fake/verbs/.libs:$PWD/test/fake/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  expect 0 'registrations by the program' --stats test/pinrun/calls
  grep -E '\[ +(OK|FAILED) +\]' "$work/out"
  ! grep -n 'What happened' "$work/out" || fail "a program of libibverbs is told about pools"
  expect 1 'FAILED' --share test/pinrun/calls --gtest_filter='*exposes_no_more*'
  expect 0 '2 tests from' --share --mca mpool_grdma_gpu_registrar cuda_ipc test/pinrun/calls --gtest_filter='*gpu_memory*'
  grep -q '2 tests\.$' "$work/out" || fail "GPU memory: not both tests passed"
  expect 0 '1 test from' --share --mca mpool_grdma_gpu_registrar cuda_ipc test/pinrun/calls --gtest_filter='*dmabuf_at*'
  expect 1 'FAILED' --release test/pinrun/calls --gtest_filter='*registered_once*'
  # Parts of a program that do not find pinrun's functions; a library that wraps them.
  expect 0 '10 tests' test/pinrun/doors
  LD_PRELOAD=$PWD/test/pinrun/.libs/wrapper.so expect 0 'wrapper: 4 calls' --stats test/pinrun/calls \
    --gtest_filter='*equal_requests*:*a_key_exposes_no_more*'
  grep -q '4 registrations by the program' "$work/out" || fail "what a preloaded library wraps is not served"
  # A child counts its own calls.
  expect 0 '1 registrations by the program' --stats test/pinrun/calls --gtest_filter='*gives_back_what_it_inherited*'
  [ "$(grep -c ' 1 registrations by the program' "$work/out")" -eq 2 ] || fail "a child counts what its parent did"
  # Installed where a folder has a blank in its name.
  mkdir -p "$work/a folder/pinrun" && cp contrib/pinrun/.libs/libpinrun.so "$work/a folder/pinrun"
  sed "s|@pkglibdir@|$work/a folder|" "${srcdir:-..}/contrib/pinrun/pinrun.in" >"$work/a folder/launch" && chmod +x "$work/a folder/launch"
  "$work/a folder/launch" --stats test/pinrun/by_name >"$work/out" 2>&1
  grep -q '100 registrations by the program: 99 from the cache' "$work/out" || fail "a blank in a folder's name"
  mkdir "$work/a:b" && cp -r "$work/a folder/." "$work/a:b" && sed -i "s|a folder|a:b|" "$work/a:b/launch"
  if "$work/a:b/launch" true >"$work/out" 2>&1 || ! grep -q 'has a colon' "$work/out"; then
    fail "a colon in a folder's name is not refused"
  fi
  # Threads of Pinrail deregister while a program with one thread forks.
  children=500
  [ -z "${PINRAIL_TEST_LONG:-}" ] || children=20000
  expect 0 "0 of $children children" test/pinrun/fork_children $children
  # The program opens libibverbs itself.
  expect 0 '100 registrations by the program: 99 from the cache' --stats test/pinrun/by_name
  expect 0 '100 registrations, 1 by the device' test/pinrun/by_name
  # The trace of a run has a line for each call that was served, and pinrail_perf accepts it.
  expect 0 OK --record "$work/trace" test/pinrun/calls --gtest_filter='*registered_once*'
  # read_traces FILE...: compressed where this build has liblzma.
  read_traces() { for trace; do xz -dcf "$trace"; done; }
  read_traces "$work"/trace.* >"$work/out"
  [ "$(grep -c '^[0-9]* [0-9]* R ' "$work/out")" -eq 102 ] || fail "the trace has not 102 R lines"
  [ "$(grep -c '^[0-9]* [0-9]* D ' "$work/out")" -eq 102 ] || fail "the trace has not 102 D lines"
  grep -q '^[0-9]* [0-9]* I ' "$work/out" || fail "the trace has no I line"
  # Traces of a child and of a call that names more than there is of memory.
  expect 0 OK --record "$work/inherited" test/pinrun/calls --gtest_filter='*gives_back_what_it_inherited*'
  [ "$(read_traces "$work"/inherited.* | grep -c '^[0-9]* [0-9]* D ')" -eq 2 ] || fail "what a child inherited is in its trace"
  expect 0 OK --record "$work/no-range" test/pinrun/calls --gtest_filter='*unmaps_no_range*'
  if [ -x contrib/tools/pinrail_perf ]; then
    for trace in "$work"/trace.* "$work"/inherited.* "$work"/no-range.*; do
      contrib/tools/pinrail_perf --registrar mlock --trace "$trace" >"$work/out" 2>&1 || fail "$trace is not replayed"
    done
  fi
fi
exit $((failures != 0))
