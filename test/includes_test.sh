#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# includes_test.sh - a folder includes only lower folders, a component includes no other component, and hook files contain
# no call that hooks must not make. The name of a function tells whether it requires a lock, and
# contrib/workshop/layers/layers.svg shows the includes as they are. The order:
#   include < base/{core,cuda} < base/sync < base/registration < base/hit < base/{report,patch,slots}
#           < base/{param,descriptors} < base/loader < framework/{rcache,registrar,monitor} < framework/mpool
#           < components | framework/api < contrib/tools (public headers only)
set -eu
cd "${srcdir:-$(dirname "$0")/..}"
failed=0
complain() {
  echo "includes_test: $1" >&2
  failed=1
}

# The height of a folder; what it includes must be lower.
height() {
  case $1 in
    framework/include/*) echo 0 ;;
    base/core/* | base/cuda/*) echo 1 ;;
    base/sync/*) echo 2 ;;
    base/registration/*) echo 4 ;;
    base/hit/*) echo 5 ;;
    base/report/* | base/patch/* | base/slots/*) echo 6 ;;
    base/param/* | base/descriptors/*) echo 7 ;;
    base/loader/*) echo 8 ;;
    framework/rcache/* | framework/registrar/* | framework/monitor/*) echo 9 ;;
    framework/mpool/*) echo 10 ;;
    framework/api/* | components/*) echo 12 ;;
    *) echo 99 ;;
  esac
}
room() {
  case $1 in
    components/*) echo "$1" | cut -d/ -f1-3 ;;
    *) echo "$1" | cut -d/ -f1-2 ;;
  esac
}

files=$(find base framework components -name '*.h' -o -name '*.cc' -o -name '*.c' | sort)
[ -n "$files" ] || complain "no sources found in $(pwd)"
count=0
for file in $files; do
  for included in $(sed -n -e 's/^#include "\(.*\)"/\1/p' -e 's/^#include <\(pinrail\/.*\)>/framework\/include\/\1/p' "$file"); do
    [ "$included" = config.h ] && continue
    count=$((count + 1))
    [ -e "$included" ] || complain "$file includes $included, which does not exist"
    mine=$(room "$file")
    theirs=$(room "$included")
    [ "$mine" = "$theirs" ] && continue
    case $file:$included in
      base/*:components/* | framework/*:components/*) complain "$file looks up, to $included" ;;
      components/*:components/*) complain "$file looks into another component: $included" ;;
      components/*:framework/include/* | components/*:base/core/* | components/*:base/sync/*) ;;
      components/*:base/registration/* | components/*:base/hit/*) ;;
      components/registrar/*:base/cuda/* | components/monitor/*:base/cuda/*) ;;
      components/mpool/*:framework/mpool/* | components/mpool/*:framework/rcache/*) ;;
      components/mpool/*:framework/registrar/* | components/mpool/*:framework/monitor/*) ;;
      components/mpool/*:base/slots/* | components/registrar/*:base/slots/* | components/registrar/*:base/descriptors/*) ;;
      components/rcache/*:framework/rcache/* | components/registrar/*:framework/registrar/*) ;;
      components/monitor/*:framework/monitor/* | components/monitor/*:base/patch/* | components/mpool/*:base/patch/maps.h) ;;
      components/*) complain "$file uses $included: no contract of its framework" ;;
    esac
    [ "$(height "$included")" -le "$(height "$file")" ] || complain "$file looks up, to $included"
    if [ "$(height "$included")" = "$(height "$file")" ]; then
      complain "$file looks sideways, to $included"
    fi
  done
done
[ "$count" -gt 100 ] || complain "only $count includes were seen: the check is blind"

# Tools use public headers, and what the tools share.
# shellcheck disable=SC2044 # no name of ours has a blank
for file in $(find contrib/tools -name '*.cc' -o -name '*.h'); do
  for included in $(sed -n 's/^#include "\(.*\)"/\1/p' "$file"); do
    case $included in
      contrib/tools/* | config.h) ;;
      *) complain "$file uses $included: tools use public headers only" ;;
    esac
  done
done

# Files of hook code neither allocate, free nor log (E3).
# shellcheck disable=SC2044 # no name of ours has a blank
for file in $(find base framework components -name '*_hook.cc' -o -name '*_hook.h'); do
  if sed 's|//.*||' "$file" | grep -nE '\b(new|delete|malloc|calloc|realloc|free|fprintf|printf|std::string|std::vector|report::|->log|->help|registrar_(de)?register)\b' >&2; then
    complain "$file does in a hook what no hook may do"
  fi
done

# A function has the suffix _locked (or _locked_hook) if and only if it is declared REQUIRES(lock). Exempt are Condition,
# which has the standard library's names, and the two macros' own header.
# shellcheck disable=SC2046 # no name of ours has a blank
awk '
  function statement(text,   head) {
    while (match(text, /[A-Za-z_0-9]+_locked(_hook)?[^A-Za-z_0-9]/)) {
      head = substr(text, RSTART, RLENGTH - 1)
      used[head] = FILENAME
      text = substr(text, RSTART + RLENGTH - 1)
    }
  }
  function declaration(text,   name) {
    if (text !~ /[^A-Z_]REQUIRES *\(/) return
    name = text
    gsub(/__attribute__ *\(\([^)]*\)*/, "", name)
    match(name, /[A-Za-z_0-9]+ *\(/)
    name = substr(name, RSTART, RLENGTH - 1)
    required[name] = 1
    count++
    if (name !~ /_locked(_hook)?$/) print FILENAME ": " name "() requires a lock, and its name does not end in _locked"
  }
  FNR == 1 { all = "" }
  /^ *#/ { next }
  {
    sub(/\/\/.*/, "")
    gsub(/"([^"\\]|\\.)*"/, "\"\"")
    all = all " " $0
    while (match(all, /[;{}]/)) {
      part = substr(all, 1, RSTART)
      all = substr(all, RSTART + 1)
      statement(part)
      declaration(part)
    }
  }
  END {
    for (name in used) {
      if (!(name in required)) print used[name] ": the name of " name "() ends in _locked, and it requires no lock"
    }
    if (count < 60) print "only " count + 0 " functions that require a lock were seen: the check is blind"
  }
' $(echo "$files" | grep -vE '\.c$|base/sync/lock\.h$|framework/include/') >"${TMPDIR:-/tmp}/includes_test.$$"
while read -r line; do complain "$line"; done <"${TMPDIR:-/tmp}/includes_test.$$"
rm -f "${TMPDIR:-/tmp}/includes_test.$$"
if command -v python3 >/dev/null; then
  contrib/workshop/layers/draw --check || failed=1
else
  echo "includes_test: the picture was not compared, for python3 is not installed"
fi
exit $failed
