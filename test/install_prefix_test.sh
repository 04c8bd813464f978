#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# install_prefix_test.sh - "make install" with other folders than configure's is refused before anything is installed.
# Runs in the build folder.
set -u
elsewhere=$(mktemp -d) || exit 99
trap 'rm -rf "$elsewhere"' EXIT
MAKEFLAGS=
export MAKEFLAGS
failures=0
fail() {
  echo "install_prefix_test: $*" >&2
  failures=$((failures + 1))
}

for folder in prefix exec_prefix libdir sysconfdir; do
  option=$(echo "$folder" | tr _ -)
  for goal in install install-data install-exec; do
    said=$("${MAKE:-make}" "$goal" "$folder=$elsewhere/$folder" 2>&1) && fail "make $goal $folder=DIR is not refused"
    case $said in
      *"What happened"*"$folder=$elsewhere/$folder"*"What follows"*"What to do"*"--$option=$elsewhere"*DESTDIR=*) ;;
      *) fail "make $goal $folder=DIR says: $said" ;;
    esac
    [ -z "$(ls -A "$elsewhere")" ] || fail "make $goal $folder=DIR has installed something"
  done
done
# Neither DESTDIR nor another folder for what has no path built in is refused. These goals copy a few files.
said=$("${MAKE:-make}" install-nodist_pkgconfigDATA DESTDIR="$elsewhere" 2>&1) || fail "DESTDIR is refused: $said"
said=$("${MAKE:-make}" install-nodist_pkgconfigDATA pkgconfigdir="$elsewhere/pkgconfig" 2>&1) ||
  fail "pkgconfigdir is refused: $said"
[ -s "$elsewhere/pkgconfig/pinrail.pc" ] || fail "nothing was installed where it may be"
[ $failures -eq 0 ]
