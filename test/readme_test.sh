#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# readme_test.sh - what README.md and the pages for beginners show works: the C program of contrib/doc/start.md is built and
# run as it stands there, and so are the component file that it names and each command that starts with "$ pinrail_" (or
# with a parameter before that).
# Runs in the build tree. With PINRAIL_LIBDIR and PINRAIL_BINDIR set it runs against an installation, by pkg-config.
set -u
srcdir=${srcdir:-$(dirname "$0")/..}
readme=$srcdir/contrib/doc/start.md
top=$(pwd)
grep -q "^#define HAVE_TOOLS" config.h 2>/dev/null || [ -n "${PINRAIL_BINDIR:-}" ] ||
  { echo "SKIP: built without CLI11 or nlohmann-json"; exit 77; }
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
HOME=$work
export HOME
failures=0
checks=0

# check WORDS COMMAND...
check() {
  what=$1
  shift
  checks=$((checks + 1))
  if "$@" >"$work/out" 2>&1; then return 0; fi
  echo "FAIL: $what"
  sed 's/^/  | /' "$work/out"
  failures=$((failures + 1))
  return 1
}

# says WORDS COMMAND...: it succeeds, and prints the words.
says() {
  words=$1
  shift
  "$@" >"$work/said" || return
  cat "$work/said"
  grep -q "$words" "$work/said"
}

# listing NAME: the block of code that begins with "/* NAME ...".
listing() {
  awk -v first="/* $1" 'index($0, first) == 1 { inside = 1 } inside && /^```/ { exit } inside' "$readme"
}

# The shared library, where it was built, and the static one, which is linked by pkg-config --static, as the page says.
if [ -n "${PINRAIL_LIBDIR:-}" ]; then
  libdir=$PINRAIL_LIBDIR
  PKG_CONFIG_PATH=$libdir/pkgconfig
  cflags=$(PKG_CONFIG_PATH=$PKG_CONFIG_PATH pkg-config --cflags pinrail) || exit 1
  components=$libdir/pinrail
  tools=$PINRAIL_BINDIR
else
  libdir=$top/.libs
  PKG_CONFIG_PATH=$top/contrib
  cflags="-I$srcdir/framework/include"
  components=$top/components/.libs
  tools=$top/contrib/tools
fi
export PKG_CONFIG_PATH
# A library with a sanitizer in it wants a program with the same.
flags="-std=c11 -Wall -Wextra -Werror ${PINRAIL_SANITIZE:-}"

# try_program KIND LINKER_ARGUMENT...: the program, linked so.
try_program() {
  kind=$1
  shift
  # shellcheck disable=SC2086
  check "the program compiles ($kind)" ${CC:-cc} $flags $cflags "$work/first.c" -o "$work/first" "$@" || return
  check "the program runs, and its second registration is a hit ($kind)" says "again: hit" "$work/first"
  check "without leave_pinned its second registration is a miss ($kind)" \
    says "again: miss" env PINRAIL_MCA_mpool_grdma_leave_pinned=0 "$work/first"
  # shellcheck disable=SC2086
  check "the program compiles with a second buffer ($kind)" \
    ${CC:-cc} $flags $cflags "$work/other.c" -o "$work/other" "$@" || return
  check "the first registration of a second buffer is a miss ($kind)" says "again: miss" "$work/other"
}

listing first.c >"$work/first.c"
# The same program, but "again" is another buffer's: the one line that registers it is changed.
sed 's/register(pool, buffer, length, access, 0, &again)/register(pool, malloc(length), length, access, 0, \&again)/' \
  "$work/first.c" >"$work/other.c"
[ "$(diff "$work/first.c" "$work/other.c" | grep -c '^>')" = 1 ] ||
  { echo "FAIL: the program does not register its buffer again in one line"; failures=$((failures + 1)); }
tried=0
if [ -e "$libdir/libpinrail.so" ]; then
  tried=1
  # shellcheck disable=SC2046 # several words
  try_program shared $(pkg-config --define-variable=libdir="$libdir" --libs pinrail) "-Wl,-rpath,$libdir"
fi
if [ -e "$libdir/libpinrail.a" ]; then
  tried=1
  mkdir "$work/static"
  ln -s "$libdir/libpinrail.a" "$work/static"
  PINRAIL_MCA_mca_base_component_path=$components
  export PINRAIL_MCA_mca_base_component_path
  # shellcheck disable=SC2046 # several words
  try_program static $(pkg-config --define-variable=libdir="$work/static" --static --libs pinrail)
  unset PINRAIL_MCA_mca_base_component_path
  # shellcheck disable=SC2016 # for the shell in there
  check "the program needs no shared library of Pinrail" sh -c 'ldd "$1" && ! ldd "$1" | grep libpinrail' sh "$work/first"
fi
[ "$tried" = 1 ] || { echo "FAIL: there is no library in $libdir"; failures=$((failures + 1)); }

# The component is the very file that the page names, once for its readers and once, as installed, in its command.
component=$(grep -oE '`contrib/examples/[a-z_]*\.c' "$readme" | tr -d '`')
installed=$(sed -nE 's|^[$] cc -shared .*examplesdir.*/([a-z_]*\.c) -o .*|\1|p' "$readme")
if [ -z "$component" ] || [ "$(basename "$component")" != "$(basename "$installed")" ]; then
  echo "FAIL: $readme names not one component: '$component' '$installed'"
  failures=$((failures + 1))
fi
if [ -n "${PINRAIL_LIBDIR:-}" ]; then
  file=$PINRAIL_EXAMPLESDIR/$(basename "$component")
  check "the installed component is the file of the sources" cmp "$file" "$srcdir/$component"
else
  file=$srcdir/$component
fi
mkdir "$work/mine"
# shellcheck disable=SC2086
if check "the component compiles" ${CC:-cc} $flags $cflags -shared -fPIC "$file" \
  -o "$work/mine/registrar_nothing.so"; then
  PATH=$tools:$PATH
  export PATH
  path=$(pinrail_info --param mca base --parsable | sed -n 's/^mca:mca:base:param:mca_base_component_path:value://p' | tr -d '"')
  PINRAIL_MCA_mca_base_component_path=$work/mine:$path
  export PINRAIL_MCA_mca_base_component_path
  check "the component is listed, and open" says "nothing .*open" pinrail_info --param registrar nothing
  check "the component serves a pool" pinrail_perf --registrar nothing --size 64K --iterations 1000
  conform=$top/test/conform/pinrail_conform
  [ ! -x "$conform" ] || check "pinrail_conform finds nothing wrong with the component" \
    "$conform" registrar "$work/mine/registrar_nothing.so" --components "$components" --seconds 40
  unset PINRAIL_MCA_mca_base_component_path
fi

# The sample parameter file is read, and sets what it says.
sample=${PINRAIL_EXAMPLESDIR:-$srcdir/contrib/examples}/pinrail-mca-params.conf
check "the sample parameter file is read" says "size_limit.*8G.*pinrail-mca-params.conf" \
  env PATH="$tools:$PATH" PINRAIL_MCA_mca_base_param_files="$sample" pinrail_info --param mpool grdma

# The commands of the pages, with no file and no parameter of this user's.
PATH=$tools:$PATH
export PATH
for page in README.md contrib/doc/start.md contrib/doc/using.md contrib/doc/limits.md; do
  sed -n 's/^\$ \(\(PINRAIL_MCA_[a-z_]*=[^ $]* \)*pinrail_.*\)$/\1/p' "$srcdir/$page"
done | sort -u >"$work/commands"
while IFS= read -r command; do
  check "\$ $command" sh -c "$command" </dev/null
done <"$work/commands"
[ "$(wc -l <"$work/commands")" -ge 4 ] || { echo "FAIL: the pages have hardly any command"; failures=$((failures + 1)); }

echo "$checks checks, $failures failed"
[ "$failures" -eq 0 ]
