#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# install_line_test.sh - the lines of contrib/doc/start.md for installing, for building its program and for building and using a
# component, as they stand there, in a root folder of their own: this machine's below a writable layer in memory, so that
# nothing is installed here. Runs in the build tree. Exit status 77: not by root, mounts are refused, or it was
# configured for another prefix.
set -u -o pipefail
srcdir=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd)
skip() {
  echo "SKIP: $1"
  exit 77
}
[[ -z ${PINRAIL_SANITIZE:-} ]] || skip "a library with a sanitizer in it wants a program with the same"
[[ -e .libs/libpinrail.so ]] || skip "the lines are about a shared library (readme_test.sh links a static one)"
((EUID == 0)) || skip "only root may install"
grep -q '^prefix = /usr/local$' Makefile || skip "the page is about the default prefix, and this was configured for another"

page=$srcdir/contrib/doc/start.md
# lines BEGIN: the commands of the page that begin so.
lines() { sed -n "s/^[$] \($1.*\)/\1/p" "$page"; }
install=$(lines 'make install') build=$(lines 'cc first\.c -o first ')
component=$(lines 'cc -shared') use=$(lines 'PINRAIL_MCA_mca_base_component_path=')
for line in "$install" "$build" "$component" "$use"; do
  [[ -n $line && $(wc -l <<<"$line") == 1 ]] ||
    { echo "FAIL: $page has not one line each for installing, the program, the component and its use"; exit 1; }
done
grep -q "^#define HAVE_TOOLS" config.h || use='echo built without pinrail_perf'

# In a chroot whose root is no mount point unshare itself fails, and without the right to mount, too.
refusal=$(unshare --mount --propagation private true 2>&1) ||
  skip "this machine permits no mount namespace here (${refusal:-unshare failed})"
layer=$(TMPDIR=/tmp mktemp -d) || exit 99 # not in what is bound below
trap 'rmdir "$layer"' EXIT
export srcdir page install build component use layer
# shellcheck disable=SC2016 # for the shell in there
unshare --mount --propagation private --pid --fork --kill-child=KILL bash -c '
  set -eu -o pipefail
  top=$PWD
  mount -t tmpfs tmpfs "$layer" || exit 77
  mkdir "$layer"/{upper,work,root}
  mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$layer/root" || exit 77
  for folder in "$top" "$srcdir" /dev; do
    mkdir -p "$layer/root$folder"
    mount --rbind "$folder" "$layer/root$folder"
  done
  mount -t proc proc "$layer/root/proc"
  awk "/^\/\* first.c/ { inside = 1 } inside && /^\`\`\`/ { exit } inside" "$page" >"$layer/root/root/first.c"
  clean="env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8"
  echo "\$ $install"
  chroot "$layer/root" $clean sh -c "cd \"$top\" && $install" >"$layer/log" 2>&1 || { tail -n 20 "$layer/log"; exit 1; }
  echo "\$ $build"
  chroot "$layer/root" $clean sh -c "cd /root && $build"
  echo "\$ $component"
  chroot "$layer/root" $clean sh -c "cd /root && $component"
  echo "\$ $use"
  chroot "$layer/root" $clean sh -c "cd /root && $use"
' | tee install_line.out
status=$?
((status != 77)) || skip "this machine permits no overlay mount here"
((status == 0)) || { echo "FAIL: exit status $status"; exit 1; }
grep -q 'again: hit$' install_line.out || { echo "FAIL: the program did not say that it hit"; exit 1; }
grep -qE 'on registrar nothing,|without pinrail_perf' install_line.out ||
  { echo "FAIL: pinrail_perf did not use the component"; exit 1; }
[[ ! -e /usr/local/lib/libpinrail.so || /usr/local/lib/libpinrail.so -ot Makefile ]] ||
  { echo "FAIL: it was installed on this machine"; exit 1; }
rm -f install_line.out
echo "passed"
