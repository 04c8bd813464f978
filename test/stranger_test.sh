#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# stranger_test.sh - components that are written in plain C against an installed Pinrail alone work. contrib/new-component
# makes one of each framework; the commands of its README build, check, load and install it. Programs use the pool
# "count" and the index "array", and the index under grdma replays the recorded traces.
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

# In a folder of their own, so that nothing of the source tree is beside them.
mkdir "$work/src" "$work/mine"
cd "$work" || exit 99
flags="-std=c11 -O1 -g -Wall -Wextra -Wpedantic -Werror -pthread ${PINRAIL_SANITIZE:-}"
PINRAIL_CONFORM="$root$exec_prefix/bin/pinrail_conform --components $root$libdir/pinrail"
export PINRAIL_CONFORM
for framework_and_name in "rcache array" "mpool count" "registrar ledger" "monitor bell"; do
  # shellcheck disable=SC2086 # two words
  "$srcdir/contrib/new-component" $framework_and_name >"$work/out" 2>&1 || fail "new-component $framework_and_name"
  component=$(echo "$framework_and_name" | tr ' ' _)
  MAKEFLAGS='' ${MAKE:-make} -C "$component" WARNINGS="$flags" CC="${CC:-cc}" >"$work/out" 2>&1 ||
    fail "$component does not compile"
  cp "$component/$component.so" "$work/mine"
  if [ ! -x "$root$exec_prefix/bin/pinrail_conform" ] || [ -n "${PINRAIL_SANITIZE:-}" ]; then continue; fi
  MAKEFLAGS='' ${MAKE:-make} -C "$component" check >"$work/out" 2>&1 || fail "make check of $component"
done
# The index again, with a second publish that says that an event overtook it.
mkdir overtaken
sed 's/^  if (is_overtaken) {/  static int publishes;\n  if (++publishes == 2 || is_overtaken) {/' \
  rcache_array/rcache_array.c >rcache_array/overtaken.c
# shellcheck disable=SC2086
${CC:-cc} $flags $cflags -shared -fPIC rcache_array/overtaken.c -o overtaken/rcache_array.so >"$work/out" 2>&1 ||
  fail "the index that is overtaken does not compile"
cp "$srcdir/test/stranger/stranger.c" "$work/src"
cd "$build" || exit 99
# shellcheck disable=SC2086
${CC:-cc} $flags $cflags "$work/src/stranger.c" -o "$work/stranger" $libs >"$work/out" 2>&1 ||
  fail "the program does not compile"

PINRAIL_MCA_mca_base_component_path=$work/mine:$root$libdir/pinrail
PINRAIL_MCA_mpool_grdma_rcache_name=array
PINRAIL_MCA_mpool_grdma_leave_pinned=1
export PINRAIL_MCA_mca_base_component_path PINRAIL_MCA_mpool_grdma_rcache_name PINRAIL_MCA_mpool_grdma_leave_pinned
for case in count array overtaken; do
  folder=$work/mine
  [ "$case" = overtaken ] && folder=$work/overtaken
  PINRAIL_MCA_monitor=external PINRAIL_MCA_mca_base_component_path=$folder:$PINRAIL_MCA_mca_base_component_path \
    "$work/stranger" "$case" >"$work/out" 2>&1 || fail "case $case"
  grep -q 'pinrail: ' "$work/out" && fail "case $case says something"
  echo "$case: $failures failed until here"
done

if [ -x "$root$exec_prefix/bin/pinrail_perf" ]; then
  # Loaded by parameter, as their READMEs say.
  PINRAIL_MCA_mpool_grdma_leave_pinned=-1 "$root$exec_prefix/bin/pinrail_perf" --registrar ledger --size 64K \
    --mca monitor external >"$work/out" 2>&1 || fail "the registrar is not loaded"
  grep -q 'registrar ledger' "$work/out" || fail "pinrail_perf does not name the registrar"
  PINRAIL_MCA_mpool_grdma_leave_pinned=-1 "$root$exec_prefix/bin/pinrail_info" --mca monitor bell --all --parsable \
    >"$work/out" 2>&1 || fail "the monitor is not loaded"
  grep -q '^mca:monitor:bell:status:SUCCESS' "$work/out" || fail "the monitor is not open"
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
