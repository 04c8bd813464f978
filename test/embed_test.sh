#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# embed_test.sh - a runtime with autotools embeds Pinrail's dist tarball (test/embed): with the prefix foo_ and the
# components built in, with the prefix bar_ too, and with the components as shared objects, of which two runtimes load the
# same files. Two of them work in one process. "make embed-check" runs it, not make check: it compiles the
# library several times. embed_test.sh --short DISTDIR builds one of the four, foo_ with the components built in: make
# distcheck does that with the folder that it has unpacked. Nothing is optimised: it is about names, files and
# processes. Exit status 77: no autotools.
set -u
srcdir=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd) || exit 99
for tool in autoreconf automake libtoolize; do
  command -v $tool >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: a build with sanitizers"; exit 77; }
work=$(mktemp -d) || exit 99
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
HOME=$work
export HOME
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PINRAIL_MCA_[A-Za-z0-9_]*\)=.*/\1/p') MAKEFLAGS MAKELEVEL 2>/dev/null
jobs=${PINRAIL_EMBED_JOBS:-2}
failures=0
short=
[ "${1:-}" != --short ] || short=$2
hosts='foo bar'
[ -z "$short" ] || hosts=foo

fail() {
  echo "FAIL: $*"
  [ ! -s "$work/out" ] || tail -40 "$work/out" | sed 's/^/  | /'
  failures=$((failures + 1))
}

mkdir "$work/dist" || exit 99
if [ -n "$short" ]; then
  mkdir "$work/dist/pinrail" && tar -C "$short" --exclude=./_build --exclude=./_inst -cf - . |
    tar -C "$work/dist/pinrail" -xf - && chmod -R u+w "$work/dist" || exit 99
else
  make distdir >"$work/out" 2>&1 || { fail "make distdir"; exit 1; }
  dist=$(find . -maxdepth 1 -type d -name 'pinrail-[0-9]*' | head -1)
  [ -n "$dist" ] || { fail "make distdir left no folder"; exit 1; }
  mv "$dist" "$work/dist/pinrail" || exit 99
fi

# configure_ac NAME, makefile_am NAME: of the runtime.
configure_ac() {
  cat <<END
AC_INIT([$1], [1.0])
AC_CONFIG_SRCDIR([host.c])
AC_CONFIG_AUX_DIR([build-aux])
AC_CONFIG_MACRO_DIRS([m4])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_PROG_CC
AC_PROG_CXX
AM_PROG_AR
LT_INIT([disable-static])
m4_include([pinrail/contrib/m4/pinrail.m4])
PINRAIL_SYMBOL_PREFIX([$1_])
PINRAIL_SETUP([pinrail])
PINRAIL_AM_CONDITIONALS
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
END
}
makefile_am() {
  cat <<END
ACLOCAL_AMFLAGS = -I m4
SUBDIRS = pinrail .
lib_LTLIBRARIES = lib$1.la
lib$1_la_SOURCES = host.c
nodist_EXTRA_lib$1_la_SOURCES = dummy.cc
lib$1_la_CPPFLAGS = \$(PINRAIL_EMBEDDED_CPPFLAGS) -DHOST=$1
lib$1_la_LIBADD = \$(PINRAIL_EMBEDDED_LIBADD)
lib$1_la_DEPENDENCIES = \$(PINRAIL_EMBEDDED_LIBADD)
lib$1_la_LDFLAGS = -avoid-version -Wl,-z,nodelete -Wl,--version-script=\$(srcdir)/$1.map
EXTRA_DIST = $1.map
END
}

# A runtime's source tree, with Pinrail inside.
for host in $hosts; do
  mkdir "$work/$host"
  configure_ac "$host" >"$work/$host/configure.ac"
  makefile_am "$host" >"$work/$host/Makefile.am"
  echo "{ global: ${host}_*; local: *; };" >"$work/$host/$host.map"
  sed "s/foo/$host/g" "$srcdir/test/embed/host.c" >"$work/$host/host.c"
  cp -R "$work/dist/pinrail" "$work/$host/pinrail"
  (cd "$work/$host" && mkdir -p m4 && autoreconf -i --no-recursive) >"$work/out" 2>&1 || fail "autoreconf of $host"
done

build() { # HOST FOLDER [OPTION...]
  host=$1
  folder=$2
  shift 2
  mkdir -p "$work/$folder"
  (cd "$work/$folder" && "../$host/configure" --prefix="$work/root" CFLAGS='-O0 -g0' CXXFLAGS='-O0 -g0' "$@" && make -j"$jobs" && make install) \
    >"$work/out" 2>&1 || { fail "$folder is not built"; return 1; }
  found=$(find "$work/$folder" -name 'pinrail_info' -o -name pinrail_perf -o -name libpinrail.la)
  [ -z "$found" ] || fail "$folder has tools or the library: $found"
}

strange_names() { # LIBRARY PREFIX
  nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | grep -v "^$2" | grep -vx pinrail_component
}

run_two() { # FOO [BAR]
  FOO_MCA_mpool_grdma_size_limit=5M BAR_MCA_mpool_grdma_size_limit=7M "$work/two" "$@" >"$work/out" 2>&1 ||
    fail "$* do not work together"
}

check_names() { # HOST: of its library, and of what two copies in one static program would share
  names=$(strange_names "$work/$1-static/.libs/lib$1.so" "$1_")
  [ -z "$names" ] || fail "lib$1.so exports names without its prefix: $names"
  shared=$(nm --defined-only "$work/$1-static/pinrail/.libs/libpinrail_embedded.a" 2>/dev/null |
    awk -v prefix="$1_" 'NF == 3 && $2 ~ /^[TDBRC]$/ && index($3, prefix) == 0 { print $3 }' | sort -u)
  [ -z "$shared" ] || fail "names without a prefix in libpinrail_embedded.a: $shared"
}

${CC:-cc} -std=gnu11 -Wall -Wextra -Werror "$srcdir/test/embed/two.c" -o "$work/two" -ldl >"$work/out" 2>&1 ||
  fail "two.c does not compile"
if [ -n "$short" ]; then
  if build foo foo-static; then
    run_two "$work/foo-static/.libs/libfoo.so"
    check_names foo
  fi
  echo "$failures failures"
  [ "$failures" -eq 0 ]
  exit
fi
if build foo foo-static && build bar bar-static; then
  run_two "$work/foo-static/.libs/libfoo.so" "$work/bar-static/.libs/libbar.so"
  check_names foo
  check_names bar
  [ -z "$(find "$work/root" -name 'pinrail*' -not -path '*/lib/pinrail')" ] ||
    fail "something of Pinrail is installed: $(find "$work/root" -name 'pinrail*')"
fi
if build foo foo-dso --disable-static-components && build bar bar-dso --disable-static-components; then
  ls "$work"/root/lib/pinrail/rcache_vma.so >/dev/null 2>&1 || fail "no component is installed"
  run_two "$work/root/lib/libfoo.so" "$work/root/lib/libbar.so"
fi
echo "$failures failures"
[ "$failures" -eq 0 ]
