#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# help_test.sh - each command of the sources prints its help. Where that cannot be written, it fails, and does not say that
# something is wrong with the command line.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
cd "$srcdir" || exit 99

commands=$(grep -rlE '^ *(-h \| )?--help\)|!= --help ' contrib --include='*' | grep -v -e '\.d/' -e pinrun.in -e build-aux)
[ "$(wc -l <<<"$commands")" -ge 13 ] || fail "only $(wc -l <<<"$commands") commands were found: $commands"
for command in $commands; do
  "$command" --help </dev/null >"$work/out" 2>&1 || fail "$command --help ends with $?"
  grep -q '^Usage: ' "$work/out" || fail "$command --help shows no usage"
  if "$command" --help </dev/null >/dev/full 2>"$work/out"; then fail "$command --help >/dev/full: all is well"; fi
  grep -q -e '^\[' -e '^Usage' -e 'unbound' "$work/out" && fail "$command --help >/dev/full: another complaint"
done

contrib/quickstart --no-install --no-run --build '' </dev/null >"$work/out" 2>&1 && fail "quickstart takes a folder without name"
grep -q 'lacks its folder' "$work/out" || fail "quickstart: what is wrong with the folder is not said"

# What is wrong is said, and nothing is made.
for name in "" Ledger 1a base none a-b abcdefghijklmnopqrstuvwxyzabcdef; do
  (cd "$work" && "$OLDPWD/contrib/new-component" registrar "$name") >"$work/out" 2>&1 && fail "new-component takes \"$name\""
  grep -q '^new-component: .*name' "$work/out" || fail "new-component does not say what is wrong with \"$name\""
done
exit $((failures != 0))
