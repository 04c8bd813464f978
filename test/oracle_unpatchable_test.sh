#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# oracle_unpatchable_test.sh - with a C library in which one function cannot be patched, the events of that function are
# not seen. So memory to which they can happen is not kept, all other memory is, a message names the former, and the oracle
# finds no difference. Runs in the build tree. Exit status 77: it cannot be tried here.
set -u -o pipefail
grep -q "^#define HAVE_TOOLS" config.h || { echo "SKIP: built without CLI11 or nlohmann-json"; exit 77; }
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
libc=/lib/x86_64-linux-gnu/libc.so.6
skip() {
  echo "SKIP: $1"
  exit 77
}
[ -z "${PINRAIL_SANITIZE:-}" ] || skip "sanitizers and code patching do not go together"
[ -e $libc ] || skip "there is no $libc"
info=$PWD/contrib/tools/pinrail_info oracle=$PWD/test/oracle/oracle

# under FUNCTION COMMAND...: runs it with a C library whose FUNCTION cannot be patched.
under() {
  LD_LIBRARY_PATH=$work/$1 timeout 120 "${@:2}" >"$work/out" 2>"$work/err"
}
for function in munmap fallocate; do
  mkdir "$work/$function"
  python3 "$srcdir/test/oracle/unpatchable_libc" $function $libc "$work/$function/libc.so.6" >"$work/why" 2>&1 ||
    skip "$(cat "$work/why")"
done

# says EVENT WORD: in the default column of pinrail_info --monitors.
says() { grep -Eq "^$1 .* $2 *\$" "$work/out" || fail "$1 is not \"$2\""; }
# keeps KIND YES|NO
keeps() { grep -Eq "^$1 +$([ "$2" = YES ] || echo "not ")kept" "$work/out" || fail "$1: kept is not $2"; }
kinds=("anonymous" "heap" "stack" "shared anonymous" "System V" "private file" "shared file")
finds_nothing() {
  local status
  under "$@"
  status=$?
  [ $status -ne 77 ] || skip "$(grep SKIP "$work/out")"
  # 1 is for too few of an event, too.
  [ $status -le 1 ] || fail "${*:2}: exit status $status"
  tail -n 1 "$work/out" | grep -Eq '^oracle: [1-9][0-9]* operations, [1-9][0-9]* bytes verified, 0 differences$' ||
    fail "the last line: $(tail -n 1 "$work/out")"
  grep -q "unknown code" "$work/err" || fail "it was not said that $1 is unknown"
}

# Only mappings of files are not kept.
under fallocate "$info" --monitors || fail "pinrail_info"
says fallocate-punch-hole "not cached"
says ftruncate "not cached"
for event in munmap mmap-over madvise-dontneed shmdt; do says $event before; done
for kind in "${kinds[@]}"; do keeps "$kind" "$([[ $kind == *file ]] && echo NO || echo YES)"; done
grep -q "^shared file .*no monitor sees punch_hole" "$work/out" || fail "the reason for shared files is not said"
finds_nothing fallocate "$oracle" --seconds 2
grep -Eq '^ftruncate +[1-9][0-9]* +0 ' "$work/out" || fail "a mapping of a file was kept"
grep -Eq '^munmap +[1-9][0-9]* +[1-9][0-9]* ' "$work/out" || fail "private memory was not kept"

# Nothing is kept, and it is said why; but for what userfaultfd watches.
export PINRAIL_MCA_monitor=^uffd
under munmap "$info" --monitors || fail "pinrail_info"
for kind in "${kinds[@]}"; do keeps "$kind" NO; done
under munmap "$PWD/contrib/tools/pinrail_perf" --size 64K && fail "pinrail_perf does not fail though nothing is kept"
grep -q "no memory is kept registered" "$work/err" || fail "it is not said that nothing is kept"
grep -q "no monitor here sees what the C library unmaps" "$work/err" || fail "the reason is not said"
grep -q "past the C library" "$work/err" && fail "the C library's munmap is taken for another's"
under munmap "$oracle" --seconds 2 && fail "leave_pinned=1 is not refused though nothing can be kept"
unset PINRAIL_MCA_monitor
under munmap "$info" --monitors || fail "pinrail_info"
if grep -Eq '^anonymous +kept' "$work/out"; then
  says munmap after
  finds_nothing munmap "$oracle" --seconds 2
  grep -Eq '^munmap +[1-9][0-9]* +[1-9][0-9]* ' "$work/out" || fail "what userfaultfd watches was not kept"
  grep -Eq '^shmdt +[1-9][0-9]* +0 ' "$work/out" || fail "memory was kept whose events are not seen"
else
  echo "not tried: userfaultfd does not work here, so nothing is kept where munmap is not seen"
fi
exit $((failures != 0))
