# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # work, jobs, results and folder are the caller's
# build.sh - how a variant of Pinrail is built and checked. Sourced by run-tests.

# record PART: appends the results on standard input, one per line, to the list.
record() { sed "s|^\([a-z]*\) |\1 $1/|" >>"$results"; }

# show LOG: its lines about errors, which need not be the last ones of a build with several jobs, and its end.
show() {
  { grep -nE '^(FAIL|ERROR)|\*\*\*|error:|cannot ' -- "$1" || true; } | head -n 15 | cut -c -300 | sed 's/^/  > /'
  tail -n 25 -- "$1" | sed 's/^/  | /'
}

# broken PART LOG WHY: the whole part is one failure.
broken() {
  tell "$1: $3; what $2 says:"
  show "$2"
  echo "failed $1: $3" >>"$results"
  return 1
}

# build PART [CONFIGURE_ARGUMENT]...: configures and makes in $work/PART, as far as that is not done yet.
# Without symbols for debuggers, which take a third of the time to compile.
build() {
  local part=$1 folder=$work/$1 log=$work/$1/build.log
  shift
  mkdir -p -- "$folder"
  : >"$log"
  if [[ ! $folder/config.status -nt $top/configure || $(cat "$folder/arguments" 2>/dev/null) != "$*" ]]; then
    (cd -- "$folder" && "$top/configure" CXXFLAGS=-g0 "$@") >>"$log" 2>&1 </dev/null || { broken "$part" "$log" "configure failed"; return; }
    echo "$*" >"$folder/arguments"
  fi
  make -C "$folder" -j"$jobs" >>"$log" 2>&1 </dev/null || broken "$part" "$log" "the build failed"
}

# words_of FOLDER VARIABLE: what this variable of its Makefile holds.
words_of() {
  # Only the lines with the mark: make also prints that it remakes a Makefile.
  printf 'include Makefile\nprint-words: ; @echo words: $(%s)\n' "$2" | make -s -C "$1" -f - print-words | sed -n 's/^words: //p'
}

# tests_of FOLDER PATTERN...: prints those of its TESTS that match one of the patterns; those of tests_first come first.
tests_of() {
  local folder=$1 test pattern known
  shift
  known=" $(words_of "$folder" TESTS) "
  for test in $(words_of "$folder" tests_first) $known; do
    [[ $known == *" $test "* ]] || continue
    for pattern in "$@"; do
      # shellcheck disable=SC2053 # a pattern
      if [[ $test == $pattern ]]; then echo "$test" && break; fi
    done
  done | awk '!seen[$0]++'
}

# collect PART TEST...: records the results of make check; a test without a result failed.
collect() {
  local part=$1 folder=$work/$1 test status
  shift
  for test; do
    status=$(sed -n 's/^:global-test-result: //p' "$folder/${test%.sh}.trs" "$folder/$test.trs" 2>/dev/null | head -n 1)
    local test_log=$folder/$test.log
    [[ -e $test_log ]] || test_log=$folder/${test%.sh}.log
    if [[ -z $status || ! -e $test_log ]]; then
      echo "failed $test: it did not run"
    else
      awk -v name="${test#test/}" -v status="$status" -f "$parts/count.awk" "$test_log"
    fi
  done | record "$part"
}

# run_tests FOLDER PROGRAMS TEST...: runs those that pin memory one after the other, beside them the rest, and when all of
# these have ended, one after the other, those that run alone.
run_tests() {
  local folder=$1 programs=$2 test pinning=() others=() last=() pin alone
  shift 2
  pin=" $(words_of "$folder" tests_that_pin) "
  alone=" $(words_of "$folder" tests_alone) "
  for test; do
    case $pin:$alone in
      *" $test "*:*) pinning+=("$test") ;;
      *:*" $test "*) last+=("$test") ;;
      *) others+=("$test") ;;
    esac
  done
  # run_list NAME JOBS TEST...
  run_list() {
    local name=$1 at_once=$2
    shift 2
    (($#)) || return 0
    TMPDIR=$folder/tmp make -C "$folder" -j"$at_once" check-TESTS "TESTS=$*" "check_PROGRAMS=$programs" \
      "TEST_SUITE_LOG=test/$name.suite" "LOG_COMPILER=timeout -k 10 $test_seconds" >"$folder/$name.log" 2>&1 </dev/null || true
  }
  # What a test leaves that is stopped goes with its folder.
  mkdir -p -- "$folder/tmp"
  run_list pinning 1 "${pinning[@]}" &
  ((jobs > 1)) || wait $!
  run_list others "$jobs" "${others[@]}"
  ((jobs == 1)) || wait $!
  run_list alone 1 "${last[@]}"
  rm -rf --one-file-system -- "$folder/tmp"
}

# check PART TEST...: builds these tests and runs them.
check() {
  local part=$1 folder=$work/$1 log=$work/$1/check.log programs=() test
  shift
  (($#)) || { echo "make knows no test of this part" >"$log"; broken "$part" "$log" "nothing to run"; return; }
  for test; do [[ $test == *.sh ]] || programs+=("$test"); done
  find "$folder/test" -name '*.trs' -delete
  : >"$log"
  if ! make -C "$folder" -j"$jobs" check "check_PROGRAMS=${programs[*]}" TESTS= >>"$log" 2>&1 </dev/null; then
    broken "$part" "$log" "its tests could not be built"
    return
  fi
  run_tests "$folder" "${programs[*]}" "$@"
  collect "$part" "$@"
}

# run_one PART NAME COMMAND...: a test outside of make check; 77 is a skip.
run_one() {
  local part=$1 name=$2 log=$work/$1/$2.log status=0 word=FAIL
  shift 2
  mkdir -p -- "$work/$part"
  "$@" >"$log" 2>&1 </dev/null || status=$?
  case $status in 0) word=PASS ;; 77) word=SKIP ;; esac
  awk -v name="$name" -v status="$word" -f "$parts/count.awk" "$log" | record "$part"
  [[ $word != FAIL ]] || show "$log"
}
