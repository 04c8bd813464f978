# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # top, build, target, cc, cxx, archiver, options, tests and runner are its users'
# foreign.sh - builds Pinrail with another compiler and C library, with few third parties, and runs tests of it. Sourced
# by contrib/workshop/on-arm64 and contrib/workshop/on-musl, which set:
#
#   top build       the sources, and where to build
#   cc cxx archiver the tools
#   options         further arguments of configure
#   tests           programs of the build tree
#   runner          what a program is run by

gtest=/usr/src/googletest

# need COMMAND...: or the script ends with status 77.
need() {
  local needed
  for needed; do
    command -v "$needed" >/dev/null || { echo "SKIP: there is no $needed" && exit 77; }
  done
  [[ -d $gtest ]] || { echo "SKIP: there is no $gtest" && exit 77; }
}

build_googletest() {
  local source name library
  mkdir -p "$build/lib"
  for source in googletest/src/gtest-all googletest/src/gtest_main googlemock/src/gmock-all; do
    name=$(basename "$source")
    library=$build/lib/lib${name%-all}.a
    [[ ! -e $library ]] || continue
    "$cxx" -O1 -std=c++17 -I"$gtest/googletest" -I"$gtest/googlemock" -I"$gtest/googletest/include" \
      -I"$gtest/googlemock/include" -c "$gtest/$source.cc" -o "$build/lib/$name.o"
    "$archiver" rcs "$library" "$build/lib/$name.o"
  done
}

# Libraries that are header files alone are this machine's.
link_headers() {
  local header
  mkdir -p "$build/include"
  for header in CLI nlohmann; do
    [[ ! -d /usr/include/$header ]] || ln -sfn "/usr/include/$header" "$build/include/$header"
  done
}

configure_foreign() {
  [[ -x $top/configure ]] || (cd -- "$top" && ./autogen.sh)
  [[ ! -e $build/Makefile ]] || return 0
  (cd -- "$build" && "$top/configure" --enable-werror --enable-debug --without-verbs --without-uring --without-hwloc \
    --without-lzma --without-benchmark --without-ucx --without-openmpi --without-libfabric "${options[@]}" \
    CPPFLAGS="-isystem $build/include -isystem $gtest/googletest/include -isystem $gtest/googlemock/include" \
    LDFLAGS="-L$build/lib")
}

build_foreign() {
  build_googletest
  link_headers
  configure_foreign
  # One after the other: "all" is another make, which would compile the same files at the same time.
  make -k -C "$build" -j"$(nproc)" all
  make -k -C "$build" -j"$(nproc)" "${tests[@]}"
}

# program_of TEST: the program itself, where libtool made a script of that name.
program_of() {
  local program
  program=$build/$(dirname "$1")/.libs/$(basename "$1")
  [[ -x $program ]] || program=$build/$1
  echo "$program"
}

# run_foreign PROGRAM [ARGUMENT]...
run_foreign() {
  local program
  program=$(program_of "$1")
  shift
  (cd -- "$build" && PINRAIL_MCA_mca_base_component_path=$build/components/.libs "${runner[@]}" "$program" "$@")
}

# run_tests: each with a time limit; what it said and its status stand beside it.
run_tests() {
  local test status
  for test in "${tests[@]}"; do
    status=0
    run_foreign "$test" >"$build/$test.foreign-log" 2>&1 || status=$?
    echo "$status" >"$build/$test.foreign-status"
  done
}

forget_tests() {
  local test
  rm -f -- "$build/results"
  for test in "${tests[@]}"; do rm -f -- "$build/$test.foreign-log" "$build/$test.foreign-status"; done
}

# compare_monitors NAME COMMAND...: what pinrail_info says there with the table of that name.
compare_monitors() {
  local log=$build/monitors.log status=0 word=FAIL
  "$top/test/systems/compare" --system "$1" "${@:2}" contrib/tools/pinrail_info >"$log" 2>&1 </dev/null || status=$?
  case $status in 0) word=PASS ;; 77) word=SKIP ;; esac
  awk -v name=monitors_as_recorded -v status="$word" -f "$top/contrib/workshop/run-tests.d/count.awk" "$log" >>"$build/results"
  tail -n 3 "$log"
  ((status == 0 || status == 77))
}

# tell_results NAME COMMAND...: a line for each, and in results what contrib/run-tests writes there; the words are for
# compare_monitors. False: one failed.
tell_results() {
  local test word status failed=0
  : >"$build/results"
  for test in "${tests[@]}"; do
    status=$(cat "$build/$test.foreign-status" 2>/dev/null || echo "none: it did not end")
    case $status in 0) word=PASS ;; 77) word=SKIP ;; *) word=FAIL && failed=1 ;; esac
    touch "$build/$test.foreign-log"
    awk -v name="${test#test/}" -v status="$word" -f "$top/contrib/workshop/run-tests.d/count.awk" "$build/$test.foreign-log" \
      >>"$build/results"
    echo "$test: exit status $status; $(grep -E '^\[  (PASSED|FAILED|SKIPPED) ' "$build/$test.foreign-log" | head -n 3 | tr '\n' ' ')"
  done
  compare_monitors "$@" || failed=1
  echo "$(grep -c ^passed "$build/results") passed, $(grep -c ^failed "$build/results") failed," \
    "$(grep -c ^skipped "$build/results") skipped"
  sed -n 's/^failed /  failed   /p' "$build/results"
  return $failed
}
