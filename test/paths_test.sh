#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# paths_test.sh - what a document names exists, in the sources or as built: each path in README.md, HACKING, NEWS,
# CONTRIBUTING.md, SECURITY.md, MAINTAINERS, contrib/doc and all READMEs below. A path is a word that begins with one of the top folders and a slash; <placeholders> are none.
set -eu
build=$(pwd)
cd "${srcdir:-$(dirname "$0")/..}"
failed=0
count=0
for document in README.md HACKING NEWS CONTRIBUTING.md SECURITY.md MAINTAINERS contrib/doc/*.md $(find components test contrib -name README -o -name README.md | sort); do
  words=$(grep -oE '(^|[^A-Za-z0-9_./<>=-])(framework|base|components|test|contrib|\.ci)/[][A-Za-z0-9_.,{}*/<>-]*' "$document" |
    sed -e 's/^[^a-z.]//' -e 's/[.,]*$//' | sort -u)
  for word in $words; do
    case $word in *'<'*) continue ;; esac
    count=$((count + 1))
    [ -e "$word" ] || [ -e "$build/$word" ] && continue
    grep -qE "(^|[[:space:]])$word([[:space:]]|\$)" test/local.mk contrib/local.mk && continue # a program among the tests
    echo "paths_test: $document names $word, which does not exist" >&2
    failed=1
  done
done
# Links and pictures of the pages are relative to the page.
for document in README.md contrib/doc/*.md; do
  targets=$(grep -oE '\]\([^)]*\)' "$document" | sed -e 's/^](//' -e 's/)$//' -e '/^https*:/d' -e 's/#.*//' -e '/^$/d' | sort -u)
  for target in $targets; do
    count=$((count + 1))
    [ -e "$(dirname "$document")/$target" ] && continue
    echo "paths_test: $document links to $target, which does not exist" >&2
    failed=1
  done
done
[ "$count" -ge 80 ] || { echo "paths_test: only $count paths were seen: the check is blind" >&2; failed=1; }
exit $failed
