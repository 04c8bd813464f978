#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# No stale registration in programs whose allocators give memory back by system calls of their own: AddressSanitizer,
# ThreadSanitizer, valgrind, Go, allocators that are preloaded, some of which unmap later, one that is loaded late. ROUNDS
# (500) of each: ROUNDS=10000 by hand.
set -u -o pipefail
rounds=${ROUNDS:-500}
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: a build with sanitizers has one of these allocators everywhere"; exit 77; }
folder=test/own_calls
allocator=$PWD/$folder/.libs/raw_malloc.so
quarantine=$PWD/$folder/.libs/raw_quarantine.so
hidden=$PWD/$folder/.libs/raw_hidden.so
export LD_LIBRARY_PATH=$PWD/.libs PINRAIL_MCA_mca_base_component_path=$PWD/components/.libs
work=$(mktemp -d)
output=$work/output
trap 'rm -rf "$work"' EXIT
failed=0 passed=0 skipped=0

tell() {
  printf '%-8s %-28s %s\n' "$1" "$2" "$3"
  eval "$1=\$(($1 + 1))"
}

# trial NAME SAID PROGRAM [ARGUMENT...]: in the environment as it is. SAID: what has to be found among all that is said.
# With rounds_may_be_stale, what is found in use is: a registration from before that may be stale.
trial() {
  local name=$1 said=$2 program=$3 status
  shift 3
  [ "$program" != valgrind ] || { program=$(command -v valgrind); set -- "$@" "$rounds"; }
  if [ ! -x "$program" ]; then
    tell skipped "$name" "not built: there is no such sanitizer or compiler here"
    return
  fi
  if [ $# -gt 1 ]; then
    timeout 600 "$program" "$@" >"$output" 2>&1
  else
    timeout 600 "$program" "$rounds" "$@" >"$output" 2>&1
  fi
  status=$?
  if [ $status -eq 77 ]; then
    tell skipped "$name" "there is no io_uring here"
    return
  fi
  [ -z "${rounds_may_be_stale:-}" ] || [ $status -ne 1 ] || status=0
  if [ $status -ne 0 ] || ! grep -q -- "$said" "$output"; then
    tell failed "$name" "status $status"
    cat "$output"
  else
    tell passed "$name" "$(grep '^rounds:' "$output")"
  fi
}

# sanitized NAME: the program, built with -fsanitize=NAME; the library is as it is.
sanitized() {
  "${CXX:-c++}" -std=c++17 -O1 -g -fsanitize="$1" -I"$srcdir/framework/include" "$srcdir/test/own_calls/rounds.cc" \
    -o "$work/rounds_$1" -L.libs -lpinrail -ldl >"$work/log" 2>&1 || cat "$work/log" >&2
}

# in_go: the program as a part of one in Go, where there is a Go compiler with cgo.
in_go() {
  command -v go >/dev/null || return
  mkdir "$work/go"
  cp "$srcdir/test/own_calls/rounds.go" "$srcdir/test/own_calls/rounds.cc" "$work/go"
  (cd "$work/go" && GO111MODULE=off CGO_CXXFLAGS="-std=c++17 -O1 -DROUNDS_IN_GO -I$include" \
    CGO_LDFLAGS="-L$libraries -lpinrail -ldl" go build -o ../rounds_go .) >"$work/log" 2>&1 || cat "$work/log" >&2
}

# preloaded NAME: a library of the system.
preloaded() {
  local library
  library=$(ldconfig -p 2>/dev/null | sed -n "s/.*lib$1\.so.*x86-64.* => //p" | head -n 1)
  [ -n "$library" ] || { tell skipped "$1" "not installed"; return; }
  LD_PRELOAD=$library trial "$1" ' 0 stale' "$plain"
}

srcdir=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)
include=$srcdir/framework/include libraries=$PWD/.libs
in_go
sanitized address
sanitized thread
if [ ! -e $folder/rounds ] || [ ! -e "$allocator" ]; then
  make -s test/own_calls/rounds test/own_calls/raw_malloc.la test/own_calls/raw_quarantine.la test/own_calls/raw_hidden.la \
    >/dev/null 2>&1
fi
plain=$folder/rounds
kept='[1-9][0-9]* kept hits'
# Where the kernel gives no userfaultfd, nothing is kept, and it is said why.
if PINRAIL_MCA_monitor=uffd "$plain" 1 >/dev/null 2>&1; then
  with_uffd="$kept, 0 stale; monitors .*uffd"
else
  with_uffd=' 0 kept hits, 0 stale'
fi
no_uffd=' 0 kept hits, 0 stale'
asan=quarantine_size_mb=0:thread_local_quarantine_size_kb=0:detect_leaks=0

GLIBC_TUNABLES=glibc.malloc.mmap_threshold=65536 trial "the C library's" "$kept" "$plain"
ASAN_OPTIONS=$asan trial AddressSanitizer "$with_uffd" "$work/rounds_address"
TSAN_OPTIONS=report_bugs=0 trial ThreadSanitizer "$with_uffd" "$work/rounds_thread"
LD_PRELOAD=$allocator trial "preloaded" "$with_uffd" "$plain"
trial "loaded late" "$with_uffd" "$plain" "$allocator"
LD_PRELOAD=$quarantine trial "unmaps later" "$with_uffd" "$plain"
if command -v valgrind >/dev/null; then
  rounds=20 trial "valgrind" ' 0 kept hits, 0 stale' valgrind -q --smc-check=all "$plain"
fi
# The runtime of Go gives memory back at any time, and is known by the program's note: nothing is kept without uffd.
trial "Go" "$with_uffd" "$work/rounds_go"
# Allocators whose system calls are libc's, with settings by which they give memory back at once.
MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0 preloaded jemalloc
MIMALLOC_RESET_DELAY=0 MIMALLOC_PURGE_DELAY=0 preloaded mimalloc
TCMALLOC_AGGRESSIVE_DECOMMIT=1 preloaded tcmalloc_minimal
export PINRAIL_MCA_monitor=^uffd
ASAN_OPTIONS=$asan trial "AddressSanitizer, no uffd" "$no_uffd" "$work/rounds_address"
ASAN_OPTIONS=$asan trial "AddressSanitizer, it is said" "AddressSanitizer gives memory back past" "$work/rounds_address"
LD_PRELOAD=$allocator trial "preloaded, no uffd" "$no_uffd" "$plain"
LD_PRELOAD=$allocator trial "preloaded, it is said" "raw_malloc.so gives memory back past" "$plain"
LD_PRELOAD=$quarantine trial "unmaps later, it is said" "raw_quarantine.so gives memory back past" "$plain"
LD_PRELOAD=$hidden rounds_may_be_stale=yes trial "found in use, it is said" "the program was loaded, or was seen in use" "$plain"
trial "loaded late, it is said" "raw_malloc.so was loaded, or was seen" "$plain" "$allocator"
# What shows that the others can fail.
export PINRAIL_MCA_monitor_trust_allocators=yes
if LD_PRELOAD=$allocator "$plain" "$rounds" >"$output" 2>&1; then
  tell failed must-be-stale "$(grep '^rounds:' "$output")"
else
  tell passed must-be-stale "$(grep '^rounds:' "$output")"
fi
echo "own_calls: $passed passed, $skipped skipped, $failed failed"
[ $failed -eq 0 ]
