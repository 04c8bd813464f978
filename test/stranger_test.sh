#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# stranger_test.sh - an index and a pool that are written in plain C against an installed Pinrail alone work: the
# pool "count" and the index "array" of test/stranger. The index under grdma replays the recorded traces.
# Installs this build into a folder of its own. Exit status 77: no pkg-config.
set -u
srcdir=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd) || exit 99
build=$(pwd)
command -v pkg-config >/dev/null || { echo "SKIP: no pkg-config"; exit 77; }
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
HOME=$work
export HOME
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PINRAIL_MCA_[A-Za-z0-9_]*\)=.*/\1/p') LD_LIBRARY_PATH 2>/dev/null
failures=0

fail() {
  echo "FAIL: $*"
  [ ! -s "$work/out" ] || sed 's/^/  | /' "$work/out"
  failures=$((failures + 1))
}

# Installed below a folder; pkg-config and the loader are told.
root=$work/root
MAKEFLAGS='' ${MAKE:-make} -C "$build" install DESTDIR="$root" >"$work/out" 2>&1 || { fail "make install"; exit 1; }
libdir=$(pkg-config --variable=libdir contrib/pinrail.pc)
includedir=$(pkg-config --variable=includedir contrib/pinrail.pc)
exec_prefix=$(pkg-config --variable=exec_prefix contrib/pinrail.pc)
[ -d "$root$libdir/pinrail" ] || { echo "SKIP: components are built in"; exit 77; }
LD_LIBRARY_PATH=$root$libdir
PKG_CONFIG_PATH=$root$libdir/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$root
export LD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR

grep -r 'base/' "$root$includedir" >"$work/out" && fail "installed headers refer to what is not installed"
cflags=$(pkg-config --cflags pinrail) || exit 99
libs=$(pkg-config --libs pinrail) || exit 99

# Copied, so that nothing of the source tree is beside them.
mkdir "$work/src" "$work/mine"
cp "$srcdir"/test/stranger/*.[ch] "$work/src"
flags="-std=c11 -O1 -g -Wall -Wextra -Wpedantic -Werror -pthread ${PINRAIL_SANITIZE:-}"
for component in rcache_array mpool_count; do
  # shellcheck disable=SC2086
  ${CC:-cc} $flags $cflags -shared -fPIC "$work/src/$component.c" -o "$work/mine/$component.so" >"$work/out" 2>&1 ||
    fail "$component does not compile"
done
# shellcheck disable=SC2086
${CC:-cc} $flags $cflags "$work/src/stranger.c" -o "$work/stranger" $libs >"$work/out" 2>&1 ||
  fail "the program does not compile"

PINRAIL_MCA_mca_base_component_path=$work/mine:$root$libdir/pinrail
PINRAIL_MCA_mpool_grdma_rcache_name=array
PINRAIL_MCA_mpool_grdma_leave_pinned=1
export PINRAIL_MCA_mca_base_component_path PINRAIL_MCA_mpool_grdma_rcache_name PINRAIL_MCA_mpool_grdma_leave_pinned
for case in count array overtaken threads; do
  overtake=0
  [ "$case" = overtaken ] && overtake=2
  PINRAIL_MCA_monitor=external PINRAIL_MCA_rcache_array_overtake=$overtake "$work/stranger" "$case" \
    >"$work/out" 2>&1 || fail "case $case"
  grep -q 'pinrail: ' "$work/out" && fail "case $case says something"
  echo "$case: $failures failed until here"
done

if [ -x "$root$exec_prefix/bin/pinrail_perf" ]; then
  : >"$work/out"
  unset PINRAIL_MCA_mpool_grdma_leave_pinned
  PINRAIL_PERF=$root$exec_prefix/bin/pinrail_perf sh "$srcdir/test/traces_test.sh" \
    --mca mca_base_component_path "$PINRAIL_MCA_mca_base_component_path" --mca mpool_grdma_rcache_name array
  status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || fail "the traces over rcache array"
else
  echo "the traces are not replayed: built without the tools"
fi
echo "$failures failures"
[ "$failures" -eq 0 ]
