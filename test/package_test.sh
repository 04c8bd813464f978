#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# package_test.sh - debian/, contrib/spack, contrib/rpm and contrib/doc/installing.md agree with the sources: versions, public
# functions, options of configure, commands; installed documents. Nothing is packaged; contrib/workshop/package does that.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"

# same WHAT GOT WANTED: two files of sorted lines.
same() {
  [ -s "$3" ] || fail "$1: nothing to compare with"
  diff "$2" "$3" >"$work/diff" || fail "$1: $(sed -n 's/^[<>]/&/p' "$work/diff" | tr '\n' ' ')"
}

version=$(cat "$srcdir/VERSION")
grep -q "^pinrail ($version-[0-9]*) " "$srcdir/debian/changelog" || fail "debian/changelog is not about version $version"
grep -q "version(\"$version\")" "$srcdir/contrib/spack/package.py" || fail "contrib/spack/package.py lacks version $version"

grep -q "^Version: *$version\$" "$srcdir/contrib/rpm/pinrail.spec" || fail "contrib/rpm/pinrail.spec is not about version $version"

# Documents name nothing in contrib/ as they are installed, unless as a part of the sources, and what else they name is
# among the documents or commands that are installed.
count=0
for file in README.md NEWS framework/RULES contrib/doc/*.md contrib/openmpi/README contrib/libfabric/README contrib/pinrun/README; do
  file=$srcdir/${file#"$srcdir/"}
  for each in $file; do
    sh "$srcdir/contrib/workshop/installed-text" "$each" >"$work/text" && [ -s "$work/text" ] || fail "installed-text fails for $each"
    ! grep -nE '(^|[^/A-Za-z])contrib/' "$work/text" >"$work/paths" || fail "installed, $each names: $(head -n 2 "$work/paths")"
    count=$((count + 1))
  done
done
[ "$count" -ge 12 ] || fail "only $count documents were seen"
! sh "$srcdir/contrib/workshop/installed-text" "$srcdir/README.md" | grep -q 'from the sources$' ||
  fail "the installed README has sections about the sources"

awk '/^internal/ { exit } /^PINRAIL_/ { version = $1 } /^  / { print $1 "@" version }' "$srcdir/framework/symbols" |
  sort >"$work/wanted"
sed -n 's/^ \(pinrail_[^ ]*\) .*/\1/p' "$srcdir/debian/libpinrail1.symbols" | sort >"$work/got"
same "debian/libpinrail1.symbols" "$work/got" "$work/wanted"
# libtool's current - age is the number in the library's name.
number=$(sed -n 's/^AC_SUBST(\[PINRAIL_SO_VERSION\], \[\([0-9]*\):[0-9]*:\([0-9]*\)\])$/\1 \2/p' "$srcdir/configure.ac" |
  awk '{ print $1 - $2 }')
grep -q "^libpinrail.so.$number libpinrail$number " "$srcdir/debian/libpinrail1.symbols" ||
  fail "debian/libpinrail1.symbols is not about libpinrail.so.$number"

# Options that configure does not know it ignores.
if [ -x "$srcdir/configure" ]; then
  # Debian passes the folder of the build in these options; pinrail_info shows the others.
  # shellcheck disable=SC2034 # configure's line reads it
  ac_configure_args=" 'CXXFLAGS=-ffile-prefix-map=/build/pinrail=. -g -fdebug-prefix-map=/build/pinrail=.' '--disable-pages'"
  pinrail_line=
  eval "$(grep '^pinrail_line=' "$srcdir/configure")"
  [ "$pinrail_line" = "'CXXFLAGS= -g' '--disable-pages'" ] || fail "the library would contain: $pinrail_line"

  "$srcdir/configure" --help >"$work/help"
  grep -hoE -- '--(with|without|enable|disable)-[a-z0-9-]+' "$srcdir/debian/rules" "$srcdir/contrib/workshop/package" |
    sort -u >"$work/options"
  sed -n 's/.*with_or_without("\([a-z0-9]*\)".*/--with-\1/p; s/.*enable_or_disable("\([a-z0-9]*\)").*/--enable-\1/p' \
    "$srcdir/contrib/spack/package.py" >>"$work/options"
  grep -oE '"--(with|without|enable|disable)-[a-z0-9-]+"' "$srcdir/contrib/spack/package.py" | tr -d '"' >>"$work/options"
  [ "$(wc -l <"$work/options")" -ge 15 ] || fail "only $(wc -l <"$work/options") options were seen: the check is blind"
  while read -r option; do
    name=${option#--}
    name=${name#*-}
    grep -qE -- "--(with|without|enable|disable)-$name([^a-z0-9-]|\$)" "$work/help" || fail "configure knows no $option"
  done <"$work/options"
fi
if command -v python3 >/dev/null; then
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$srcdir/contrib/spack/package.py" ||
    fail "contrib/spack/package.py is no Python"
fi

# What the first page tells to type is also in the document that contrib/workshop/package --install-test runs.
grep -cE '^[$] ' "$srcdir/contrib/doc/installing.md" >"$work/count"
[ "$(cat "$work/count")" -ge 12 ] || fail "contrib/doc/installing.md has only $(cat "$work/count") commands"
sed -nE 's/^[$] (cc .*|PINRAIL_MCA_mca_base_component_path=.*)$/\1/p' "$srcdir/contrib/doc/start.md" >"$work/lines"
[ "$(wc -l <"$work/lines")" -ge 4 ] || fail "contrib/doc/start.md has only $(wc -l <"$work/lines") lines that compile something"
while IFS= read -r line; do
  grep -qxF "\$ $line" "$srcdir/contrib/doc/installing.md" || fail "contrib/doc/installing.md lacks the line: $line"
done <"$work/lines"

# Each package has its list of files. dh_missing finds files that are in none.
sed -n 's/^Package: //p' "$srcdir/debian/control" >"$work/names"
while read -r name; do
  [ -s "$srcdir/debian/$name.install" ] || fail "debian/$name.install is missing"
done <"$work/names"
# Each command, and its page, is in one of them, and in a list of the spec.
count=0
for page in "$srcdir"/contrib/man/*.1; do
  name=$(basename "$page" .1)
  for line in "bin/$name" "share/man/man1/$name.1"; do
    grep -qxF "usr/$line" "$srcdir"/debian/*.install || fail "no debian/*.install has usr/$line"
  done
  for line in "%{_bindir}/$name" "%{_mandir}/man1/$name.1*"; do
    grep -qxF "$line" "$srcdir/contrib/rpm/pinrail.spec" || fail "contrib/rpm/pinrail.spec lacks the file $line"
  done
  count=$((count + 1))
done
[ "$count" -ge 8 ] || fail "only $count commands were seen"

# How other packages find Pinrail: in a folder with a blank, and by CMake where another Pinrail was found before.
if command -v pkg-config >/dev/null; then
  flags=$(pkg-config --define-variable=libdir='/a b/lib' --define-variable=includedir='/a b/include' --cflags --libs \
    contrib/pinrail.pc)
  case $flags in
    *'-I/a\ b/include'*'-L/a\ b/lib'*) ;;
    *) fail "pkg-config says of a folder with a blank: $flags" ;;
  esac
fi
if command -v cmake >/dev/null; then
  mkdir -p "$work/program"
  # shellcheck disable=SC2016 # CMake's variable
  echo 'cmake_minimum_required(VERSION 3.13)
project(program NONE)
find_package(Pinrail REQUIRED)
get_target_property(found Pinrail::pinrail IMPORTED_LOCATION)
message(STATUS "found ${found}")' >"$work/program/CMakeLists.txt"
  for prefix in "$work/first" "$work/second"; do
    mkdir -p "$prefix/lib/cmake/Pinrail"
    cp contrib/cmake/PinrailConfig.cmake "$prefix/lib/cmake/Pinrail"
    : >"$prefix/lib/libpinrail.so"
    cmake -S "$work/program" -B "$work/program/build" -DPinrail_DIR="$prefix/lib/cmake/Pinrail" >"$work/out" 2>"$work/err"
    grep -qF "found $prefix/lib/libpinrail.so" "$work/out" || fail "CMake does not find what is in $prefix"
  done
fi
echo "$failures failures"
[ "$failures" -eq 0 ]
