#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# headers_test.sh - every public header compiles alone, as C99 and as C++17, with warnings as errors; its enum values fit
# old compilers. The library and the components export only what they should, and are complete with -flto.
set -eu
srcdir=${srcdir:-$(dirname "$0")/..}
include=$srcdir/framework/include
count=0
for header in "$include"/pinrail/*.h; do
  ${CC:-gcc} -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$include" -fsyntax-only -x c "$header"
  ${CXX:-g++} -std=c++17 -Wall -Wextra -Wpedantic -Werror -I"$include" -fsyntax-only -x c++ "$header"
  count=$((count + 1))
done
[ "$count" -ge 10 ] || { echo "headers_test: only $count headers found in $include" >&2; exit 1; }

# A header that is installed is complete: it refers to no part of the sources.
! grep -rnE '(base|components|framework)/' "$include" >&2 ||
  { echo "headers_test: an installed header refers to what is not installed" >&2; exit 1; }

# Each call that may be refused for its arguments has a line in refusal_test.cc, which checks that it says so.
refusals=$srcdir/test/unit/api/refusal_test.cc
calls=$(cat "$include"/pinrail/*.h | grep -oE '^PINRAIL_API pinrail_status_t pinrail_[a-z_]+' | awk '{ print $3 }')
[ "$(echo "$calls" | wc -l)" -ge 40 ] || { echo "headers_test: only $(echo "$calls" | wc -l) calls are seen" >&2; exit 1; }
for call in $calls; do
  [ "$call" != pinrail_mpool_invalidate_range ] || continue # it never reports
  grep -q "$call" "$refusals" || { echo "headers_test: $refusals does not call $call" >&2; exit 1; }
done

# Nothing public without the prefix: names that the library exports.
library=.libs/libpinrail.so
if [ -e "$library" ]; then
  strangers=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | grep -vE '^pinrail_' || true)
  [ -z "$strangers" ] || { echo "headers_test: exported without the prefix: $strangers" >&2; exit 1; }
elif [ -e .libs/libpinrail.a ]; then
  echo "not checked: what a shared library exports; only the static one was built"
else
  echo "headers_test: $library is not built" >&2
  exit 1
fi
for component in components/.libs/*.so; do
  [ -e "$component" ] || continue
  names=$(nm -D --defined-only "$component" | awk '{print $3}')
  [ "$names" = pinrail_component ] || { echo "headers_test: $component exports: $names" >&2; exit 1; }
done

# No object with static storage duration has a destructor (R10), so no code is registered to run at exit.
for object in "$library" components/.libs/*.so; do
  [ -e "$object" ] || continue
  ! nm -D --undefined-only "$object" | grep -qE ' (__cxa_atexit|atexit|on_exit)(@|$)' ||
    { echo "headers_test: $object has a destructor of an object with static storage duration" >&2; exit 1; }
done

# No variable of a function has a guard: if another thread held it at a fork, the child would wait for ever.
for object in "$library" components/.libs/*.so; do
  [ -e "$object" ] || continue
  ! nm "$object" | grep -E ' _ZGV' >&2 ||
    { echo "headers_test: $object has a variable that is initialised under a guard" >&2; exit 1; }
done

# With -flto, as packages of Fedora and Ubuntu are built, functions that only assembly calls stay. This links no whole
# library; a compiler that cannot link with -flto is left out.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# lto FILE OPTION...
lto() {
  file=$1
  shift
  # shellcheck disable=SC2086 # two words
  ${CXX:-g++} -std=c++17 -D_GNU_SOURCE -O1 -fPIC -shared -flto -I. -I"$srcdir" -I"$include" "$@" "$file" -o "$work/out.so"
}
echo 'int number;' >"$work/try.cc"
if lto "$work/try.cc" 2>/dev/null; then
  lto "$srcdir/base/patch/code_x86_64.cc"
  lto "$srcdir/base/patch/code_aarch64.cc"
  [ ! -e contrib/pinrun/libpinrun.la ] ||
    lto "$srcdir/contrib/pinrun/dlsym.cc" "-Wl,--version-script=$srcdir/contrib/pinrun/libpinrun.map"
else
  echo "not checked: -flto, which ${CXX:-g++} cannot link with"
fi
