#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# hacking_test.sh - HACKING agrees with the code: the drawing of the state word, the list of layers. Each decision is one line.
set -u
cd "${srcdir:-$(dirname "$0")/..}" || exit 99
failed=0
complain() {
  echo "hacking_test: $1" >&2
  failed=1
}
# constant NAME FILE: the digits of "NAME = 30000;" or "NAME = size_t{1} << 6;", the last number of the line.
constant() { sed -nE "s/.*\b$1 = ([^;]*[^0-9])?([0-9]+)[),]*;.*/\2/p;s/.*\b$1 = ([0-9]+) .*/\1/p" "$2" | head -n 1; }
# same WHAT HACKING CODE
same() { [[ -n $2 && $2 == "$3" ]] || complain "$1: HACKING has \"$2\", the code \"$3\""; }

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
[[ $(wc -w <<<"$named") -ge 12 ]] || complain "only $(wc -w <<<"$named") names were seen: the check is blind"
for name in $named; do
  grep -rqw --include='*.h' --include='*.cc' "${name%es}" base framework components || complain "the code has no $name"
done

# Each folder with code is in the list of layers.
for folder in base/*/ framework/*/; do
  grep -qE "^    .*\b$folder" HACKING || complain "the list of layers lacks $folder"
done

# Decisions.
decisions=$(sed -n '/^10\. DECISIONS/,$p' HACKING | tail -n +4)
[[ $(grep -c '^  - ' <<<"$decisions") -ge 40 ]] || complain "only $(grep -c '^  - ' <<<"$decisions") decisions were seen: the check is blind"
long=$(grep -vE '^  - |^[A-Z][A-Za-z ,]+( \([a-z/, ]+\))?$|^$' <<<"$decisions")
[[ -z $long ]] || complain "a decision is one line, and these are not: $long"
# Both are read in a terminal.
long=$(awk 'length > 122 {print FILENAME ":" FNR}' HACKING framework/RULES | xargs)
[[ -z $long ]] || complain "lines of more than 122 characters: $long"
exit $failed
