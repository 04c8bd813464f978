#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# documents_test.sh - what documents and comments say of the sources is so. A rule that a comment cites exists: one of R, E, C
# or F and a number stands in framework/RULES, and a local invariant (grdma/G4) at the head of the header of that name. No local
# invariant is defined twice, each is cited at another place, and each rule is cited by a test. HACKING agrees with the code: the
# drawing of the state word, the list of layers, and each decision is one line. Each path in README.md, HACKING, NEWS,
# CONTRIBUTING.md, SECURITY.md, MAINTAINERS, contrib/doc and all READMEs below exists, in the sources or as built: a path is a
# word that begins with one of the top folders and a slash; <placeholders> are none.
set -u
build=$(pwd)
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
cd "$srcdir" || exit 99

# Rules.
sources=$(find base framework components contrib test -name '*.h' -o -name '*.cc' -o -name '*.c')
sed -n 's/^\([RECF][0-9]*\)  .*/\1/p' framework/RULES | sort >"$work/rules"
[ "$(wc -l <"$work/rules")" -ge 28 ] || fail "framework/RULES has only $(wc -l <"$work/rules") rules: the check is blind"

# Definitions: "// grdma/G4  text", and the file's name is grdma.h (or .cc, .c).
# shellcheck disable=SC2086 # one word a file
grep -oE '^// [a-z_0-9]+/[A-Z][0-9]{1,2}  ' $sources | sed 's|:// | |; s| *$||' >"$work/definitions"
while read -r file name; do
  stem=$(basename "$file" | sed 's/\.[a-z]*$//')
  [ "${name%/*}" = "$stem" ] || fail "$file defines $name, whose name must begin with $stem/"
done <"$work/definitions"
cut -d' ' -f2 "$work/definitions" | sort >"$work/names"
for twice in $(uniq -d "$work/names"); do fail "$twice is defined twice"; done
[ "$(wc -l <"$work/names")" -ge 50 ] || fail "only $(wc -l <"$work/names") invariants were seen: the check is blind"

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
    */*) grep -qx "$name" "$work/names" || fail "$at cites $name, which no header defines" ;;
    *) grep -qx "$name" "$work/rules" || fail "$at cites $name, which is no rule of framework/RULES" ;;
  esac
done <"$work/citations"
[ "$(wc -l <"$work/citations")" -ge 150 ] || fail "only $(wc -l <"$work/citations") citations were seen: the check is blind"

# An invariant that no other place cites needs no name: its head says it as a sentence.
for name in $(cut -d' ' -f2 "$work/citations" | grep / | sort | uniq -u); do fail "nothing cites $name but its definition"; done

# Each rule is cited by a test.
while read -r rule; do
  grep -rqwE --include='*_test.cc' --include='*.sh' --include=list --include='*_conformance.*' "$rule" test ||
    fail "no test cites $rule"
done <"$work/rules"

# HACKING.
# constant NAME FILE: the digits of "NAME = 30000;" or "NAME = size_t{1} << 6;", the last number of the line.
constant() { sed -nE "s/.*\b$1 = ([^;]*[^0-9])?([0-9]+)[),]*;.*/\2/p;s/.*\b$1 = ([0-9]+) .*/\1/p" "$2" | head -n 1; }
# same WHAT HACKING CODE
same() { [[ -n $2 && $2 == "$3" ]] || fail "$1: HACKING has \"$2\", the code \"$3\""; }

# The flags of the state word: "bit  0      In  kIndexed ..." beside "constexpr uint64_t kIndexed = 1 << 0;".
header=base/registration/registration.h
same "flags of the state word" "$(sed -nE 's/^ +bit +([0-9]+) +[A-Za-z]+ +(k[A-Za-z]+) .*/\1 \2/p' HACKING | sort)" \
  "$(sed -nE 's/^constexpr uint64_t (k[A-Za-z]+) = 1 << ([0-9]+);.*/\2 \1/p' "$header" | sort)"
# The drawing has their short names, the highest bit first.
same "short names in the drawing" \
  "$(sed -nE 's/^ +\|  +references  +\|  +generation  +\|(.*)\|$/\1/p' HACKING | tr -d ' ')" \
  "|$(sed -nE 's/^ +bit +([0-9]+) +([A-Za-z]+) +k[A-Za-z]+ .*/\1 \2/p' HACKING | sort -rn | cut -d' ' -f2 | paste -sd'|')"
# The fields above the flags.
generation=$(constant kGenerationShift "$header")
references=$(constant kReferenceShift "$header")
bits=$(sed -nE 's/.*kGenerations = \(uint64_t\{1\} << ([0-9]+)\) - 1;.*/\1/p' "$header")
same "bits of the generation" "$(sed -nE 's/^ +bits ([0-9]+)-([0-9]+) +generation .*/\1 \2/p' HACKING)" \
  "$generation $((generation + bits - 1))"
same "bits of the references" "$(sed -nE 's/^ +bits ([0-9]+)-63 +references .*/\1/p' HACKING)" "$references"
same "numbers above the drawing" "$(grep -B 2 -E '^ +\|  +references  +\|' HACKING | head -n 1 | xargs)" \
  "63 $references $((references - 1)) $generation $(seq -s ' ' $((generation - 1)) -1 0)"

# Functions, types and flags that the text names occur in the code.
named=$(grep -oE '\b[a-z_]+\(\)|\bk[A-Z][A-Za-z]+\b|\b[A-Z][a-z]+[A-Z][A-Za-z]+\b' HACKING | tr -d '()' | sort -u |
  grep -vxE 'ThreadSanitizer|GoogleTest|CXXFLAGS')
[[ $(wc -w <<<"$named") -ge 12 ]] || fail "only $(wc -w <<<"$named") names were seen: the check is blind"
for name in $named; do
  grep -rqw --include='*.h' --include='*.cc' "${name%es}" base framework components || fail "the code has no $name"
done

# Each folder with code is in the list of layers.
for folder in base/*/ framework/*/; do
  grep -qE "^    .*\b$folder" HACKING || fail "the list of layers lacks $folder"
done

# Decisions.
decisions=$(sed -n '/^10\. DECISIONS/,$p' HACKING | tail -n +4)
[[ $(grep -c '^  - ' <<<"$decisions") -ge 40 ]] || fail "only $(grep -c '^  - ' <<<"$decisions") decisions were seen: the check is blind"
long=$(grep -vE '^  - |^[A-Z][A-Za-z ,]+( \([a-z/, ]+\))?$|^$' <<<"$decisions")
[[ -z $long ]] || fail "a decision is one line, and these are not: $long"
# Both are read in a terminal.
long=$(awk 'length > 122 {print FILENAME ":" FNR}' HACKING framework/RULES | xargs)
[[ -z $long ]] || fail "lines of more than 122 characters: $long"

# Paths.
count=0
for document in README.md HACKING NEWS CONTRIBUTING.md SECURITY.md MAINTAINERS contrib/doc/*.md $(find components test contrib -name README -o -name README.md | sort); do
  words=$(grep -oE '(^|[^A-Za-z0-9_./<>=-])(framework|base|components|test|contrib|\.ci)/[][A-Za-z0-9_.,{}*/<>-]*' "$document" |
    sed -e 's/^[^a-z.]//' -e 's/[.,]*$//' | sort -u)
  for word in $words; do
    case $word in *'<'*) continue ;; esac
    count=$((count + 1))
    [ -e "$word" ] || [ -e "$build/$word" ] && continue
    grep -qE "(^|[[:space:]])$word([[:space:]]|\$)" test/local.mk contrib/local.mk && continue # a program among the tests
    fail "$document names $word, which does not exist"
  done
done
# Links and pictures of the pages are relative to the page.
for document in README.md contrib/doc/*.md; do
  targets=$(grep -oE '\]\([^)]*\)' "$document" | sed -e 's/^](//' -e 's/)$//' -e '/^https*:/d' -e 's/#.*//' -e '/^$/d' | sort -u)
  for target in $targets; do
    count=$((count + 1))
    [ -e "$(dirname "$document")/$target" ] && continue
    fail "$document links to $target, which does not exist"
  done
done
[ "$count" -ge 80 ] || fail "only $count paths were seen: the check is blind"
exit $((failures != 0))
