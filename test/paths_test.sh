#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# paths_test.sh - what a document names exists: each path in README, HACKING and the components' READMEs.
# A path is a word that begins with a room of the house and a slash; build folders and <placeholders> are none.
set -eu
cd "${srcdir:-$(dirname "$0")/..}"
failed=0
count=0
documents="README HACKING NEWS $(find components -name README | sort)"
for document in $documents; do
  words=$(grep -oE '(^|[^A-Za-z0-9_./<>-])(framework|base|components|test|contrib|\.ci)/[][A-Za-z0-9_.,{}*/<>-]*' "$document" |
    sed -e 's/^[^a-z.]//' -e 's/[.,]*$//' | sort -u)
  for word in $words; do
    case $word in
      *'<'* | *'>'*) continue ;;
      *[{}*]* | *'['*) echo "paths_test: $document: $word: write whole paths" >&2 && failed=1 && continue ;;
    esac
    count=$((count + 1))
    if [ ! -e "$word" ] && ! grep -qE "(SOURCES|PROGRAMS|LTLIBRARIES|TESTS).*$word|^[[:space:]].*$word( |\$)" ./*/local.mk; then
      echo "paths_test: $document names $word, which does not exist" >&2
      failed=1
    fi
  done
done
[ "$count" -ge 30 ] || { echo "paths_test: only $count paths were seen: the check is blind" >&2; failed=1; }

# The tree in the README stands in columns: its folders are checked as well, components with their framework.
room=
sed -n '/^THE TREE/,/^[A-Z][A-Z ]*$/p' README | grep -E '^  +[a-z.]' | while read -r first rest; do
  case $first in
    */) [ -d "$first" ] || [ -d "$room$first" ] || echo "paths_test: the tree names $first" ;;
  esac
  [ -d "$first" ] && room=${first%/}/
done >"${TMPDIR:-/tmp}/paths_test.$$"
if [ -s "${TMPDIR:-/tmp}/paths_test.$$" ]; then
  cat "${TMPDIR:-/tmp}/paths_test.$$" >&2
  failed=1
fi
rm -f "${TMPDIR:-/tmp}/paths_test.$$"
exit $failed
