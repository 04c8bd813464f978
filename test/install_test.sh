#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# install_test.sh - what "make install" left behind works by itself: tools, components, headers, pkg-config, manual.
# Run by "make installcheck", which sets PINRAIL_BINDIR, PINRAIL_LIBDIR, PINRAIL_INCLUDEDIR, PINRAIL_MANDIR and
# PINRAIL_EXAMPLESDIR.
set -u
srcdir=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd) || exit 99
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
HOME=$work
export HOME
unset LD_LIBRARY_PATH
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PINRAIL_MCA_[A-Za-z0-9_]*\)=.*/\1/p') 2>/dev/null
cd "$work" || exit 99
failures=0

fail() {
  echo "install_test: $*" >&2
  failures=$((failures + 1))
}

[ -x "$PINRAIL_BINDIR/pinrail_info" ] ||
  { echo "install_test: not tried: built without the tools"; exit 0; }
"$PINRAIL_BINDIR/pinrail_info" --all --parsable >info 2>err || fail "pinrail_info: $(cat err)"
[ ! -s err ] || fail "pinrail_info says: $(cat err)"
for component in mpool:grdma rcache:vma; do
  grep -q "^mca:$component:status:SUCCESS" info || fail "$component is not open"
done
if [ -d "$PINRAIL_LIBDIR/pinrail" ]; then
  for file in "$PINRAIL_LIBDIR"/pinrail/*.so; do
    grep -q ":path:$file\$" info || fail "$file is not what pinrail_info found"
  done
else
  grep -q ':path:built in$' info || fail "no component is installed, and none is built in"
fi

if "$PINRAIL_BINDIR/pinrail_perf" --size 4K,64K --iterations 1000 >perf 2>err; then
  grep -q 'errors 0' perf || fail "pinrail_perf: $(cat perf)"
elif grep -q NOT_AVAILABLE err; then
  echo "install_test: pinrail_perf was not tried: no registrar works here"
else
  fail "pinrail_perf: $(cat err)"
fi

for header in "$srcdir"/framework/include/pinrail/*.h; do
  cmp -s "$header" "$PINRAIL_INCLUDEDIR/pinrail/${header##*/}" || fail "${header##*/} is not installed"
done
for page in "$srcdir"/contrib/man/*.[0-9]; do
  case $page in *mpirun-args.1) [ -d "$PINRAIL_LIBDIR/pinrail/openmpi" ] || continue ;; esac  # with Open MPI's components
  [ -s "$PINRAIL_MANDIR/man${page##*.}/${page##*/}" ] || fail "${page##*/} is not installed"
done

data=${PINRAIL_MANDIR%/man}
for file in zsh/site-functions/_pinrail bash-completion/completions/pinrail_info bash-completion/completions/pinrail_perf \
  bash-completion/completions/pinrail_conform bash-completion/completions/pinrun; do
  [ -s "$data/$file" ] || fail "$file is not installed"
done

documents=${PINRAIL_EXAMPLESDIR%/examples}
for file in "$srcdir"/README.md "$srcdir"/NEWS "$srcdir"/LICENSE "$srcdir"/framework/RULES "$srcdir"/contrib/doc/*.md; do
  sh "$srcdir/contrib/workshop/installed-text" "$file" | cmp -s - "$documents/${file##*/}" || fail "$file is not installed"
done
for file in "$srcdir"/contrib/doc/pictures/*.svg; do
  cmp -s "$file" "$documents/pictures/${file##*/}" || fail "${file##*/} is not installed"
done
# What installed texts name is installed, or is said to be among the sources.
! grep -nE '(^|[^/A-Za-z])contrib/' "$documents"/* "$PINRAIL_MANDIR"/man[17]/pin* "$PINRAIL_EXAMPLESDIR"/*.c >out 2>/dev/null ||
  fail "installed texts name what is not installed: $(head -n 3 out)"
for name in openmpi libfabric pinrun; do
  [ -s "$documents/README.$name" ] || fail "README.$name is not installed"
done
[ -x "$PINRAIL_BINDIR/pinrail-new-component" ] && "$PINRAIL_BINDIR/pinrail-new-component" monitor mine >out &&
  [ -s monitor_mine/monitor_mine.c ] || fail "pinrail-new-component does not work"
[ ! -d "$PINRAIL_LIBDIR/pinrail/openmpi" ] || "$PINRAIL_BINDIR/pinrail-mpirun-args" --help >out ||
  fail "pinrail-mpirun-args does not work"
for file in "$srcdir"/contrib/examples/*; do
  [ -f "$file" ] || continue
  cmp -s "$file" "$PINRAIL_EXAMPLESDIR/${file##*/}" || fail "${file##*/} is not installed"
done

# The examples of programs that find the library by pkg-config and by CMake.
LD_LIBRARY_PATH=$PINRAIL_LIBDIR
export LD_LIBRARY_PATH
cp -R "$PINRAIL_EXAMPLESDIR/consumer" consumer
for way in make cmake; do
  command -v $way >/dev/null || { echo "install_test: not tried: no $way"; continue; }
  if [ $way = make ]; then
    (cd consumer && PKG_CONFIG_PATH=$PINRAIL_LIBDIR/pkgconfig make -f consumer.mk CFLAGS="${PINRAIL_SANITIZE:-}") >out 2>&1
    program=consumer/consumer
  else
    (cd consumer && cmake -S . -B build -DCMAKE_PREFIX_PATH="${PINRAIL_LIBDIR%/lib*}" \
      -DPinrail_DIR="$PINRAIL_LIBDIR/cmake/Pinrail" -DCMAKE_C_FLAGS="${PINRAIL_SANITIZE:-}" && cmake --build build) >out 2>&1
    program=consumer/build/consumer
  fi
  if [ ! -x $program ]; then fail "the example consumer is not built by $way: $(tail -5 out)"; continue; fi
  ./$program >out 2>&1 || fail "the consumer that $way built fails: $(cat out)"
  grep -q '^  rcache vma: SUCCESS' out || fail "the consumer that $way built does not list rcache vma: $(cat out)"
done
unset LD_LIBRARY_PATH

export srcdir
sh "$srcdir/test/readme_test.sh" || fail "the README's program or commands fail"
[ "$failures" -eq 0 ] && echo "install_test: the installation works"
exit "$failures"
