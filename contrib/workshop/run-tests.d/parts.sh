# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # work, top, jobs, results, folder and chosen are the caller's
# parts.sh - how a variant of Pinrail is built and checked, and what run-tests runs, part by part. Sourced.

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
# Without symbols for debuggers, which take a third of the time to compile. configure, libtool and make start thousands of
# shells, so theirs is dash, where there is one; the part dist has the one that configure chooses.
build() {
  local part=$1 folder=$work/$1 log=$work/$1/build.log shell
  shift
  mkdir -p -- "$folder"
  : >"$log"
  shell=$(command -v dash || command -v bash)
  if [[ ! $folder/config.status -nt $top/configure || $(cat "$folder/arguments" 2>/dev/null) != "$*" ]]; then
    (cd -- "$folder" && CONFIG_SHELL=$shell "$shell" "$top/configure" CXXFLAGS=-g0 "$@") >>"$log" 2>&1 </dev/null || { broken "$part" "$log" "configure failed"; return; }
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

# The parts.

without_peers=(--without-benchmark --without-ucx --without-openmpi --without-libfabric)
# Of the parts whose tests run neither what serves peers nor the pages: the same tests remain, and less is made.
bare=("${without_peers[@]}" --disable-pages)
# But for verbs and the JSON library, which what is installed needs; the part tsan does without JSON.
without_third_parties=("${without_peers[@]}" --without-gtest --without-uring --without-hwloc --without-lzma --without-cuda)

# build_tests PART: builds all programs of the tests, and what scripts among them run besides.
build_tests() {
  local log=$work/$1/build-tests.log
  make -C "$work/$1" -j"$jobs" check TESTS= >"$log" 2>&1 </dev/null || broken "$1" "$log" "its tests could not be built"
}

part_gcc() {
  build gcc --enable-werror --enable-debug || return
  build_tests gcc || return
  mapfile -t tests < <(tests_of "$work/gcc" '*')
  check gcc "${tests[@]}"
}

# What frameworks promise, and what pools, monitors and GPU memory do beyond that.
promised=('test/conform/*' 'test/mpool/*' 'test/monitor/*' 'test/gpu/*')

# Not optimised, as dist is not: the part gcc is.
part_static() {
  build static --enable-werror PINRAIL_OPTIMIZE=-O0 --enable-static --enable-static-components "${bare[@]}" || return
  mapfile -t tests < <(tests_of "$work/static" 'test/mpool/grdma' 'test/tools_info_test.sh' 'test/tools_top_test.sh' 'test/readme_test.sh')
  check static "${tests[@]}"
}

part_tsan() {
  export TSAN_OPTIONS="halt_on_error=0 exitcode=66 second_deadlock_stack=1"
  build tsan --enable-werror --enable-sanitizer=thread --enable-debug --without-json "${bare[@]}" "CFLAGS=-O1 -g" CXXFLAGS=-g1 PINRAIL_OPTIMIZE=-O1 || return
  mapfile -t tests < <(tests_of "$work/tsan" 'test/stress/*' 'test/mpool/grdma' 'test/gpu/gpu_events' \
    'test/gpu/gpu_locks' 'test/gpu/gpu_restart' 'test/mpool/alloc' 'test/attack/*')
  check tsan "${tests[@]}"
}

part_asan() {
  export ASAN_OPTIONS="detect_stack_use_after_return=1" UBSAN_OPTIONS="print_stacktrace=1"
  build asan --enable-sanitizer=address,undefined --enable-debug "${bare[@]}" "CFLAGS=-O1 -g" CXXFLAGS=-g1 PINRAIL_OPTIMIZE=-O1 || return
  mapfile -t tests < <(tests_of "$work/asan" 'test/unit/*' "${promised[@]}" 'test/fault/*')
  check asan "${tests[@]}"
}

# Its warnings need no optimisation, and its programs are not run.
build_clang() { build clang CC=clang CXX=clang++ --enable-werror --enable-debug --disable-pages "CFLAGS=-O0" "CXXFLAGS=-O0"; }

part_clang() {
  build_clang || return
  echo "passed compiles without a warning" | record clang
}

sources() { (cd -- "$top" && find base framework components contrib/examples contrib/tools contrib/openmpi contrib/libfabric test -name '*.h' -o -name '*.cc' -o -name '*.c'); }
scripts() {
  (cd -- "$top" && grep -rlE '^#!/bin/(ba)?sh|shellcheck shell=' autogen.sh .ci contrib test --include='*' \
    --exclude-dir=build-aux --exclude-dir=m4 | sort)
}

lint_format() {
  local version
  command -v clang-format >/dev/null || { echo "SKIP: clang-format is not installed" && return 77; }
  version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
  ((version == 14)) || { echo "SKIP: clang-format is version $version; the layout is that of 14" && return 77; }
  (cd -- "$top" && sources | xargs clang-format --dry-run -Werror)
}

lint_shell() {
  command -v shellcheck >/dev/null || { echo "SKIP: shellcheck is not installed" && return 77; }
  (cd -- "$top" && scripts | xargs shellcheck --external-sources --severity=warning)
}

# Needs config.h, so the part gcc comes first.
lint_hook_wall() {
  [ -f "$work/gcc/config.h" ] || { echo "SKIP: the part gcc was not built in $work" && return 77; }
  "$top/test/hook_wall/check" --jobs "$jobs" "$work/gcc"
}

# A mutant whose line of code has changed guards nothing any more.
lint_mutants() { "$top/test/mutants/run" --match; }

part_lint() {
  run_one lint format lint_format
  run_one lint shellcheck lint_shell
  run_one lint hook_wall lint_hook_wall
  run_one lint mutants lint_mutants
}

tidy() {
  local flags=(-std=c++17 -I"$top/framework/include" -I"$top" -I"$work/clang"
    -DPINRAIL_SYSCONFDIR='"/etc"' -DPINRAIL_PKGLIBDIR='"/usr/lib/pinrail"')
  command -v clang-tidy >/dev/null || { echo "SKIP: clang-tidy is not installed" && return 77; }
  (cd -- "$top" && sources | grep '^\(base\|framework\|components\|contrib\)/.*\.cc$' |
    xargs -n 4 -P "$jobs" sh -c 'files=$*; clang-tidy --quiet --warnings-as-errors="*" $files -- '"${flags[*]@Q}" sh)
}

part_tidy() {
  build_clang || return
  run_one tidy clang-tidy tidy
}

# in_guest SESSION [RDMA_VM_OPTION]...: runs the tests on standard input, a line each, "NAME COMMAND", one after the other
# in one guest, in the build folder of the part gcc. Booting a guest for each would take longer than the tests.
in_guest() {
  local session=$work/guest/$1 name command names=()
  shift
  rm -rf -- "$session"
  mkdir -p -- "$session"
  while read -r name command; do
    names+=("$name")
    printf 'timeout 600 sh -c %q >"$RDMA_VM_OUT/%s.log" 2>&1; echo $? >"$RDMA_VM_OUT/%s.status"\n' "$command" "$name" "$name"
  done >"$session/tests"
  (cd -- "$work/gcc" && "$top/contrib/workshop/rdma-vm" --timeout 1800 --out "$session" "$@" -- \
    bash "$session/tests") >"$session/session" 2>&1 </dev/null || true
  for name in "${names[@]}"; do run_one guest "$name" came_back "$session" "$name"; done
}

# came_back SESSION NAME: prints the log of a test in the guest, and has its status.
came_back() {
  cat -- "$1/$2.log" 2>/dev/null
  [[ -s $1/$2.status ]] || { tail -n 20 -- "$1/session" && echo "it did not end in the guest" && return 1; }
  return "$(<"$1/$2.status")"
}

# guest_tests: the tests of the guest without a limit on pinned memory. Those with --no-reports or a mutant must find
# differences when events are not reported; otherwise the same test without them would prove nothing.
guest_tests() {
  local seconds=10
  [[ -z ${PINRAIL_TEST_LONG:-} ]] || seconds=30
  cat <<END
conform_verbs test/conform/verbs
perf_within_a_limit PINRAIL_MCA_mpool_grdma_size_limit=8M contrib/tools/pinrail_perf --registrar verbs --size 1M --regions 64 --iterations 200
oracle test/oracle/oracle --prepin --registrar verbs --largest 64 --size-limit 1024 --seconds $seconds
oracle_can_fail test/oracle/oracle_mutants --registrar verbs --largest 64 --size-limit 1024 --seconds 60 --mutant munmap-reuse; [ \$? -eq 1 ]
rdma_fork test/verbs/rdma_fork
mrall test/mpool/mrall --gtest_filter=*MrallDevice*
mrall_everywhere contrib/tools/pinrail_perf --scenario mrall
oracle_mrall test/oracle/oracle --mrall --registrar verbs --largest 64 --size-limit 1024 --events munmap,mmap-over --seconds $seconds
tutorial contrib/examples/cached_reg_mr | tee /dev/stderr | grep -q '^999 hits, 1 misses\$'
rdma_pingpong test/verbs/rdma_pingpong --seconds $((seconds / 3))
rdma_pingpong_can_fail test/verbs/rdma_pingpong --no-reports --seconds 1; [ \$? -eq 1 ]
perf contrib/tools/pinrail_perf --registrar verbs
END
  [[ -z ${PINRAIL_TEST_LONG:-} ]] || echo 'pinrun ../../contrib/pinrun/run-guest --in-guest'
  [[ ! -x $work/gcc/test/libfabric/import ]] || cat <<END
libfabric_import test/libfabric/import
libfabric_import_can_fail test/libfabric/import --silent
libfabric_import_uffd test/libfabric/import --uffd
END
  [[ -z ${PINRAIL_TEST_LONG:-} || ! -x $work/gcc/test/libfabric/per_transfer ]] ||
    echo 'libfabric_hook ../../contrib/libfabric/hook-cases "verbs;ofi_rxm" 10.9.9.1'
}

# The guest's kernel is fetched while other parts compile.
start_preparing_guest() {
  [[ " ${chosen[*]} " == *" guest "* && $(uname -m) == x86_64 ]] || return 0
  mkdir -p -- "$work/guest"
  "$top/contrib/workshop/rdma-vm" --prepare --timeout 900 >"$work/guest/prepare.log" 2>&1 </dev/null &
  guest_preparation=$!
}

# Sets guest_is_prepared. Called in the shell that started the preparation: a part may run in a subshell.
wait_for_guest() {
  guest_is_prepared=
  [[ -n ${guest_preparation:-} ]] || return 0
  if wait "$guest_preparation"; then guest_is_prepared=yes; fi
}

part_guest() {
  if [[ $(uname -m) != x86_64 ]]; then
    echo "skipped guest: the guest is x86-64, this machine is not" >>"$results"
    return
  fi
  build gcc --enable-werror --enable-debug || return
  build_tests gcc || return
  [[ -n $guest_is_prepared ]] ||
    { broken guest "$work/guest/prepare.log" "the guest could not be prepared"; return; }
  in_guest device < <(guest_tests)
  # The device refuses what is beyond the limit, so the pool without one of its own must have evicted.
  in_guest memlock --memlock 4096 <<'END'
oracle_memlock test/oracle/oracle --registrar verbs --largest 64 --size-limit 1024 --seconds 10 >"$RDMA_VM_OUT/figures"; rc=$?; cat "$RDMA_VM_OUT/figures"; [ $rc -eq 0 ] && grep -Eq "^pool unlimited .* [1-9][0-9]+ evictions" "$RDMA_VM_OUT/figures"
END
  # A kernel whose soft-RoCE pages on demand; both must be seen: right bytes, and wrong ones refused.
  [[ -z ${PINRAIL_TEST_LONG:-} ]] || in_guest paging --kernel odp --memlock 16384 <<'END'
odp contrib/tools/pinrail_perf --scenario odp
odp_untrusted PINRAIL_MCA_registrar_verbs_odp_page_aligned=no contrib/tools/pinrail_perf --scenario odp 2>&1 | tee /dev/stderr | grep -q "did not begin at the start of a page"
odp_small_mtu ip link set dum0 mtu 1500; contrib/tools/pinrail_perf --scenario odp 2>&1 | tee /dev/stderr | grep -q "moved wrong bytes or failed"
END
  [[ -x $work/gcc/test/libfabric/import ]] ||
    echo "skipped guest/libfabric_import: libfabric-dev is not installed" >>"$results"
}

# MPI programs under an unmodified Open MPI, side by side with its own registration cache.
part_openmpi() {
  build gcc --enable-werror --enable-debug || return
  openmpi_cases openmpi host 3600 "$top/contrib/openmpi/run-tests" --build "$work/gcc"
  [[ $(uname -m) == x86_64 ]] || return 0
  if [[ -z ${PINRAIL_TEST_LONG:-} ]]; then
    echo "skipped openmpi/guest: a job in the guest runs with --all" >>"$results"
    return
  fi
  openmpi_cases openmpi guest 1200 "$top/contrib/openmpi/run-guest" --build "$work/gcc" --only rxd
}

# openmpi_cases PART NAME SECONDS COMMAND...: runs a script that prints a result per line, and figures between them, which
# stay in the log; what belongs to a failure is printed.
openmpi_cases() {
  local part=$1 log=$work/openmpi/$2.log seconds=$3 status=0
  shift 3
  mkdir -p -- "$work/openmpi"
  timeout -k 10 "$seconds" "$@" >"$log" 2>&1 </dev/null || status=$?
  grep -E '^(passed|failed|skipped) ' "$log" | record "$part"
  grep -E '^  \| ' "$log" || true
  ((status == 0 || status == 77)) || grep -q '^failed' "$log" || broken "$part" "$log" "it ended with status $status"
}

# dist_files: each source is in the tarball that distcheck made.
dist_files() {
  local missing
  missing=$(cd -- "$top" && find base framework components contrib test -type f \
    ! -path 'contrib/build-aux/*' ! -path 'contrib/m4/l*.m4' ! -name '*~' ! -name '*.pyc' | sort |
    comm -23 - <(tar -tf "$work"/gcc/pinrail-*.tar.xz | sed 's|^[^/]*/||' | sort))
  [[ -z $missing ]] || { echo "not in the tarball: $missing" && return 1; }
}

# Without most third parties: what is left must build, install and run. The part gcc runs the tests; here those run that read the sources, from the tarball. dist_files
# finds what the tarball lacks. The tarball, which is made twice, is compressed little.
part_dist() {
  build gcc --enable-werror --enable-debug || return
  rm -f -- "$work"/gcc/pinrail-*.tar.xz
  XZ_OPT=-0 run_one dist distcheck make -C "$work/gcc" -j"$jobs" distcheck \
    "TESTS=test/readme_test.sh test/headers_test.sh test/documents_test.sh" \
    "DISTCHECK_CONFIGURE_FLAGS=--enable-werror ${without_third_parties[*]} CXXFLAGS=-g0 PINRAIL_OPTIMIZE=-O0"
  run_one dist files dist_files
}

# What the part systems runs on each system after its build there, and on this one if there is a table for it.
part_system() {
  build system --enable-werror --enable-debug || return
  mapfile -t tests < <(tests_of "$work/system" "${promised[@]}" 'test/readme_test.sh' 'test/unit/base/hook_scope_test' \
    'test/interpose_test.sh')
  # What this script runs; where it cannot be built, the script says so.
  make -C "$work/system" -j"$jobs" test/interpose/interpose test/interpose/free_madvises.la >>"$work/system/build.log" 2>&1 || true
  check system "${tests[@]}"
  if [[ ! -x $work/system/contrib/tools/pinrail_info ]]; then
    echo "skipped system/monitors_as_recorded: the tools are not built: no CLI11 or JSON library" >>"$results"
    return
  fi
  make -C "$work/system" -j"$jobs" test/oracle/oracle >>"$work/system/check.log" 2>&1 ||
    { broken system "$work/system/check.log" "the oracle could not be built"; return; }
  (cd -- "$work/system" && run_one system monitors_as_recorded "$top/test/systems/compare")
  (cd -- "$work/system" && run_one system oracle timeout 120 test/oracle/oracle --seconds 30)
  [[ -n ${PINRAIL_TEST_LONG:-} ]] || return 0
  run_one system oracle_mutants make -C "$work/system" oracle-mutants
  # The part openmpi runs with the Open MPI of this machine.
  [[ $(ompi_info --version 2>/dev/null) != "Open MPI v5"* ]] ||
    openmpi_cases system mpi5 1200 "$top/contrib/openmpi/run-tests" --short --build "$work/system"
}

# on_system SYSTEM: records its results, as run-tests there counted them, or on-musl or on-arm64.
on_system() {
  local log=$work/systems/$1.log status=0
  local command=("$top/contrib/workshop/on-system" "$1" --timeout 3600 -- env "PINRAIL_TEST_LONG=${PINRAIL_TEST_LONG:-}")
  # Debian 13's headers of Open MPI lack some.
  local headers='export PINRAIL_CACHE_DIR=$PWD/build-test/cache; contrib/openmpi/get headers >/dev/null 2>&1'
  local there="$headers;"'contrib/run-tests --no-install --part system; echo "== results"; cat build-test/results'
  local foreign='contrib/on-FOREIGN; echo "== results"; sed "s| | system/|" build-FOREIGN/results ||
    echo "skipped system/all: what contrib/on-FOREIGN needs is not here"'
  case $1 in
    musl) there=${foreign//FOREIGN/musl} ;;
    arm64) command=(env -C "$top") there=${foreign//FOREIGN/arm64} ;;
  esac
  "${command[@]}" sh -c "$there" >"$log" 2>&1 || status=$?
  sed -n '1,/^== results$/p' "$log" | grep '^ *[|>] ' || true
  if ! grep -q '^== results$' "$log"; then
    broken systems "$log" "contrib/workshop/on-system $1 ended with status $status"
    return
  fi
  sed '1,/^== results$/d' "$log" | sed "s|^\([a-z]*\) system|\1 systems/$1|" >>"$results"
}

part_systems() {
  local system
  if ((EUID != 0)); then
    echo "skipped systems/all: contrib/workshop/on-system has to be run by root" >>"$results"
    return
  fi
  if [[ -x $work/gcc/contrib/tools/pinrail_info ]]; then
    (cd -- "$work/gcc" && run_one systems monitors_here_as_recorded "$top/test/systems/compare")
  fi
  for system in ${PINRAIL_TEST_SYSTEMS:-debian-13}; do on_system "$system"; done
}
