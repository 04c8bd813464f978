#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# rules_test.sh - what a comment cites exists: a rule (R, E, C or F and a number) stands in framework/RULES, and a local
# invariant (grdma/G4) at the head of the header of that name. No local invariant is defined twice, each is cited at another
# place, and each rule is cited by a test.
set -eu
cd "${srcdir:-$(dirname "$0")/..}"
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
  echo "rules_test: $1" >&2
  failed=1
}

sources=$(find base framework components contrib test -name '*.h' -o -name '*.cc' -o -name '*.c')
sed -n 's/^\([RECF][0-9]*\)  .*/\1/p' framework/RULES | sort >"$work/rules"
[ "$(wc -l <"$work/rules")" -ge 28 ] || complain "framework/RULES has only $(wc -l <"$work/rules") rules: the check is blind"

# Definitions: "// grdma/G4  text", and the file's name is grdma.h (or .cc, .c).
# shellcheck disable=SC2086 # one word a file
grep -oE '^// [a-z_0-9]+/[A-Z][0-9]{1,2}  ' $sources | sed 's|:// | |; s| *$||' >"$work/definitions"
while read -r file name; do
  stem=$(basename "$file" | sed 's/\.[a-z]*$//')
  [ "${name%/*}" = "$stem" ] || complain "$file defines $name, whose name must begin with $stem/"
done <"$work/definitions"
cut -d' ' -f2 "$work/definitions" | sort >"$work/names"
for twice in $(uniq -d "$work/names"); do complain "$twice is defined twice"; done
[ "$(wc -l <"$work/names")" -ge 50 ] || complain "only $(wc -l <"$work/names") invariants were seen: the check is blind"

# Citations: what stands in comments, and is no version of the language.
# shellcheck disable=SC2086
awk '
  {
    at = match($0, /\/\/|\/\*|^ +\*/)
    if (!at || /SPDX/) next
    rest = substr($0, at)
    while (match(rest, /([a-z_0-9]+\/)?[A-Z][0-9][0-9]?/)) {
      word = substr(rest, RSTART, RLENGTH)
      before = RSTART == 1 ? " " : substr(rest, RSTART - 1, 1)
      after = substr(rest, RSTART + RLENGTH, 1)
      rest = substr(rest, RSTART + RLENGTH)
      if (before !~ /[A-Za-z0-9_.\/"-]/ && after !~ /[A-Za-z0-9_]/ && word !~ /^C(99|11|17)$/) print FILENAME ":" FNR, word
    }
  }' $sources >"$work/citations"
while read -r at name; do
  case $name in
    */*) grep -qx "$name" "$work/names" || complain "$at cites $name, which no header defines" ;;
    *) grep -qx "$name" "$work/rules" || complain "$at cites $name, which is no rule of framework/RULES" ;;
  esac
done <"$work/citations"
[ "$(wc -l <"$work/citations")" -ge 150 ] || complain "only $(wc -l <"$work/citations") citations were seen: the check is blind"

# An invariant that no other place cites needs no name: its head says it as a sentence.
for name in $(cut -d' ' -f2 "$work/citations" | grep / | sort | uniq -u); do complain "nothing cites $name but its definition"; done

# Each rule is cited by a test.
while read -r rule; do
  grep -rqwE --include='*_test.cc' --include='*.sh' --include=list --include='*_conformance.*' "$rule" test ||
    complain "no test cites $rule"
done <"$work/rules"
exit $failed
