#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# conform_test.sh - pinrail_conform finds nothing wrong with the components of this build and with the skeletons of
# contrib/new-component, and names the rule of each component of test/conform/broken/list. Exit status 77: the tool was
# not built, or the components are built in, or everything is built with a sanitizer.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
conform=$(pwd)/test/conform/pinrail_conform
others=$(pwd)/components/.libs
[ -x "$conform" ] || { echo "SKIP: pinrail_conform is not built"; exit 77; }
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: components break rules in ways that a sanitizer ends"; exit 77; }
ls "$others"/*.so >/dev/null 2>&1 || { echo "SKIP: components are built in"; exit 77; }
count=0

keeps_the_rules() {
  count=$((count + 1))
  "$conform" "$1" "$2" --components "$others" --seconds 40 >"$work/out" 2>&1 ||
    fail "$2 breaks rules (status $?): $(grep -m 1 -E '^[A-Z][0-9]+ broken' "$work/out" || tail -n 1 "$work/out")"
}

for file in "$others"/*.so; do
  name=${file##*/}
  keeps_the_rules "${name%%_*}" "$file"
done

compile() { # SOURCE TARGET
  ${CC:-cc} -std=gnu11 -O0 -w -pthread -I"$srcdir/framework/include" -I"$srcdir/contrib/new-component.d" \
    -shared -fPIC "$1" -o "$2" >"$work/out" 2>&1 || { fail "$1 does not compile"; return 1; }
}

# The sources that are broken below keep the rules as they are.
mkdir "$work/whole"
for framework in mpool rcache registrar monitor; do
  source=$srcdir/contrib/new-component.d/$framework.c
  [ $framework = monitor ] && source=$srcdir/test/conform/broken/monitor_got.c
  sed 's/@NAME@/broken/g' "$source" >"$work/$framework.c"
  target=$work/whole/${framework}_broken.so
  if compile "$work/$framework.c" "$target"; then keeps_the_rules $framework "$target"; fi
done

# Writes each broken source to a file of its own, and a list "FRAMEWORK RULE NUMBER WORDS".
awk -v work="$work" '
  function finish(   i, file, text, line, at) {
    if (framework == "") return
    file = work "/" framework ".c"
    text = ""
    while ((getline line < file) > 0) text = text line "\n"
    close(file)
    for (i = 1; i <= pairs; i++) {
      at = index(text, old[i])
      if (old[i] == "" || at == 0) { print "not found: " framework " " rule " " words ": " old[i] > "/dev/stderr"; bad = 1; break }
      text = substr(text, 1, at - 1) new[i] substr(text, at + length(old[i]))
    }
    number++
    printf "%s", text > (work "/" number ".c")
    print framework, rule, number, words
    framework = ""
  }
  /^#/ || /^$/ { next }
  /^</ { if (last != "<") { pairs++; old[pairs] = new[pairs] = "" } else old[pairs] = old[pairs] "\n"; old[pairs] = old[pairs] substr($0, 3); last = "<"; next }
  /^>/ { if (last == ">") new[pairs] = new[pairs] "\n"; new[pairs] = new[pairs] substr($0, 3); last = ">"; next }
  { finish(); framework = $1; rule = $2; words = $0; pairs = 0; last = "" }
  END { finish(); exit bad }
' "$srcdir/test/conform/broken/list" >"$work/broken" || fail "a line of test/conform/broken/list is not in its source"

# Each rule that the suite of a framework can name has a component that breaks it.
for framework in mpool rcache registrar monitor; do
  grep -ohE '(KEEPS|CHECK_OF|breaks)\("[A-Z][0-9]+"|rule = "[A-Z][0-9]+"' "$srcdir/test/conform/suite/component_checks.cc" \
    "$srcdir/test/conform/suite/${framework}_checks.cc" | grep -oE '[A-Z][0-9]+' | sort -u >"$work/promises"
  [ "$(wc -l <"$work/promises")" -ge 10 ] || fail "only $(wc -l <"$work/promises") rules of $framework are seen"
  for rule in $(awk -v framework="$framework" '$1 == framework { print $2 }' "$work/broken" | sort -u |
    comm -13 - "$work/promises"); do
    fail "test/conform/broken/list has no $framework that breaks $rule"
  done
done

# Elsewhere than on glibc allocations are not counted.
uncounted=$("$conform" rcache "$work/whole/rcache_broken.so" --all --components "$others" 2>&1 |
  grep -c 'allocations cannot be counted')
while read -r framework rule number words; do
  case $uncounted:$words in [1-9]*allocates*) echo "not tried: $words"; continue ;; esac
  mkdir "$work/$number"
  target=$work/$number/${framework}_broken.so
  compile "$work/$number.c" "$target" || continue
  count=$((count + 1))
  timeout 120 "$conform" "$framework" "$target" --components "$others" --seconds 5 >"$work/out" 2>&1
  status=$?
  if [ $status -ne 1 ]; then
    fail "status $status of pinrail_conform: $words ($(tail -n 1 "$work/out"))"
  elif ! grep -q "^$rule broken" "$work/out"; then
    fail "$rule is not named: $words"
  fi
done <"$work/broken"

# What it says where nothing is checked.
if "$conform" --help >/dev/full 2>"$work/out"; then fail "--help >/dev/full: all is well"; fi
"$conform" rcache "$(pwd)/components/.libs/mpool_grdma.so" >"$work/out" 2>&1 && fail "a pool is an index"
[ ! -e components/.libs/mpool_grdma.so ] || grep -q 'of framework "mpool", not "rcache"' "$work/out" ||
  fail "a component of another framework: $(cat "$work/out")"

# The code of contrib/doc/components.md: each block is in the sources as it stands there, and the last one is compiled.
awk -v work="$work" '
  /^```(c|cpp)$/ { file = work "/block" ++blocks; next }
  /^```/ { file = ""; next }
  file { print > file }
  END { print blocks + 0 }
' "$srcdir/contrib/doc/components.md" >"$work/blocks"
cat "$srcdir"/components/rcache/vma/*.cc >"$work/vma.txt"
sed 's/@NAME@/ledger/g' "$srcdir/contrib/new-component.d/registrar.c" >>"$work/vma.txt"
blocks=0
for block in "$work"/block[0-9]*; do
  blocks=$((blocks + 1))
  python3 -c 'import sys; sys.exit(open(sys.argv[1]).read() not in open(sys.argv[2]).read())' "$block" "$work/vma.txt" ||
    fail "code of contrib/doc/components.md is not in the sources: $(head -1 "$block")"
  grep -q '^#include <pinrail/component.h>' "$block" || continue
  cp "$block" "$work/guide.c"
  if compile "$work/guide.c" "$work/registrar_ledger.so"; then keeps_the_rules registrar "$work/registrar_ledger.so"; fi
done
if [ "$blocks" -lt 6 ] || [ ! -e "$work/registrar_ledger.so" ]; then fail "only $blocks blocks of code in contrib/doc/components.md"; fi

# As JSON, what is no component, and a wrong command line.
: >"$work/out"
"$conform" rcache "$others/rcache_vma.so" --json >"$work/json" 2>&1 || fail "--json fails"
grep -q '"broken": \[\]' "$work/json" || fail "--json of a whole component lists broken rules"
echo "no component" >"$work/mpool_text.so"
"$conform" mpool "$work/mpool_text.so" --json >"$work/json" 2>&1
grep -q '"C3"' "$work/json" || fail "a file that is no component does not break C3"
odd=$(printf 'mpool_\377.so')
echo "no component" >"$work/$odd"
"$conform" mpool "$work/$odd" --json >"$work/json" 2>&1
grep -q '"C3"' "$work/json" || fail "--json of a file whose name is not UTF-8: $(tail -n 1 "$work/json")"
"$conform" mpol "$others/mpool_grdma.so" >/dev/null 2>&1
[ $? -eq 2 ] || fail "an unknown framework is not refused"
"$conform" mpool >/dev/null 2>&1
[ $? -eq 2 ] || fail "a missing file name is not refused"

echo "$count components, $failures failures"
[ "$count" -ge 60 ] && [ "$failures" -eq 0 ]
