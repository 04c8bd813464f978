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
# unpatchable FUNCTION TO: makes that C library.
unpatchable() {
  python3 - "$1" $libc "$2" <<'END'
"""FUNCTION FROM TO - a copy of the C library (x86-64 glibc) whose FUNCTION cannot be patched.

FUNCTION is munmap or fallocate. Its code is replaced by other code that does the same: a short jump, as a patch of an
unknown kind would be, then instructions with no room for a jump up to the system call. Both go on in munmap behind its
system call, where errno is set. fallocate is no cancellation point there.
"""
import struct
import sys

# [endbr64] mov $11, %eax; syscall
ENDBR64 = bytes.fromhex("f30f1efa")
MUNMAP = bytes.fromhex("b80b0000000f05")
JUMP = bytes.fromhex("eb00")
CODE = {
    # push $11; pop %rax; syscall: as long as what it replaces, so what follows may stay.
    "munmap": bytes.fromhex("6a0b 58 0f05"),
    # xor %eax, %eax; mov $1, %ah; mov $0x1d, %al; mov %rcx, %r10; movslq %esi, %rsi; movslq %edi, %rdi; syscall
    "fallocate": bytes.fromhex("31c0 b401 b01d 4989ca 4863f6 4863ff 0f05"),
}


class Library:
    def __init__(self, image):
        self.image = bytearray(image)
        table, = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3a)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * size) for i in range(count)]

    def function(self, wanted):
        """Its place in the file, and its length. In the library's text a place is an address less one distance."""
        symbols = next(s for s in self.sections if s[1] == 11)  # .dynsym
        names = self.sections[symbols[6]]
        for at in range(symbols[4], symbols[4] + symbols[5], 24):
            name, _, _, section, address, length = struct.unpack_from("<IBBHQQ", self.image, at)
            start = names[4] + name
            if section and self.image[start:self.image.index(0, start)] == wanted.encode():
                text = self.sections[section]
                return address - text[3] + text[4], length
        sys.exit(f"there is no {wanted}")


def main():
    wanted, source, target = sys.argv[1:]
    with open(source, "rb") as file:
        library = Library(file.read())
    munmap, _ = library.function("munmap")
    if library.image[munmap:munmap + 4] == ENDBR64:
        munmap += len(ENDBR64)
    if library.image[munmap:munmap + len(MUNMAP)] != MUNMAP:
        sys.exit("munmap of this C library is not known")
    behind = munmap + len(MUNMAP)
    start, length = library.function(wanted)
    if library.image[start:start + 4] == ENDBR64:
        start, length = start + len(ENDBR64), length - len(ENDBR64)
    code = JUMP + CODE[wanted]
    if start + len(code) != behind:
        code += b"\xe9" + struct.pack("<i", behind - (start + len(code) + 5))
    if len(code) > length:
        sys.exit(f"{wanted} is too short")
    library.image[start:start + len(code)] = code
    with open(target, "wb") as file:
        file.write(library.image)


main()
END
}

info=$PWD/contrib/tools/pinrail_info oracle=$PWD/test/oracle/oracle

# under FUNCTION COMMAND...: runs it with a C library whose FUNCTION cannot be patched.
under() {
  LD_LIBRARY_PATH=$work/$1 timeout 120 "${@:2}" >"$work/out" 2>"$work/err"
}
for function in munmap fallocate; do
  mkdir "$work/$function"
  unpatchable $function "$work/$function/libc.so.6" >"$work/why" 2>&1 ||
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
