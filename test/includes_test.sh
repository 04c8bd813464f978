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

files=$(find base framework components -name '*.h' -o -name '*.cc' -o -name '*.c' | sort)
[ -n "$files" ] || complain "no sources found in $(pwd)"
# One awk for all of them: a process for each name would take a minute on a slow machine.
# shellcheck disable=SC2046,SC2086 # no name of ours has a blank
awk '
  BEGIN {
    # What a folder includes must be lower.
    height["framework/include"] = 0
    height["base/core"] = height["base/cuda"] = 1
    height["base/sync"] = 2
    height["base/registration"] = 4
    height["base/hit"] = 5
    height["base/report"] = height["base/patch"] = height["base/slots"] = 6
    height["base/param"] = height["base/descriptors"] = 7
    height["base/loader"] = 8
    height["framework/rcache"] = height["framework/registrar"] = height["framework/monitor"] = 9
    height["framework/mpool"] = 10
    height["framework/api"] = height["components"] = 12
    # What components may include, by their framework, and all of them.
    contract["mpool"] = "^(framework/(mpool|rcache|registrar|monitor)/|base/slots/|base/patch/maps[.]h$)"
    contract["rcache"] = "^framework/rcache/"
    contract["registrar"] = "^(framework/registrar|base/(cuda|slots|descriptors))/"
    contract["monitor"] = "^(framework/monitor|base/(cuda|patch))/"
    contract["all"] = "^(framework/include|base/(core|sync|registration|hit))/"
  }
  function complain(what) {
    print "includes_test: " what >"/dev/stderr"
    failed = 1
  }
  function room(file,   part) {
    split(file, part, "/")
    return part[1] "/" part[2] (part[1] == "components" ? "/" part[3] : "")
  }
  function height_of(file,   part, folder) {
    split(file, part, "/")
    folder = part[1] == "components" ? part[1] : part[1] "/" part[2]
    return folder in height ? height[folder] : 99
  }
  function exists(file,   line) {
    if (!(file in found)) found[file] = (getline line <file) >= 0
    close(file)
    return found[file]
  }
  function check(file, included,   part) {
    if (included == "config.h") return
    # Tools use public headers, and what the tools share.
    if (file ~ /^contrib[/]tools[/]/) {
      if (included !~ /^contrib[/]tools[/]/) complain(file " uses " included ": tools use public headers only")
      return
    }
    count++
    if (!exists(included)) complain(file " includes " included ", which does not exist")
    if (room(file) == room(included)) return
    split(file, part, "/")
    if (part[1] != "components") {
      if (included ~ /^components[/]/) complain(file " looks up, to " included)
    } else if (included ~ /^components[/]/) {
      complain(file " looks into another component: " included)
    } else if (included !~ contract["all"] && (!(part[2] in contract) || included !~ contract[part[2]])) {
      complain(file " uses " included ": no contract of its framework")
    }
    if (height_of(included) > height_of(file)) complain(file " looks up, to " included)
    if (height_of(included) == height_of(file)) complain(file " looks sideways, to " included)
  }
  /^#include "/ {
    split($0, quoted, "\"")
    check(FILENAME, quoted[2])
  }
  /^#include <pinrail[/]/ && FILENAME !~ /^contrib[/]/ {
    sub(/^[^<]*</, "")
    sub(/>.*/, "")
    check(FILENAME, "framework/include/" $0)
  }
  END {
    if (count < 100) complain("only " count + 0 " includes were seen: the check is blind")
    exit failed
  }
' $files $(find contrib/tools -name '*.cc' -o -name '*.h') || failed=1

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
