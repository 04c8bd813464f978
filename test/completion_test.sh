#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# completion_test.sh - what bash and zsh offer behind pinrail_info, pinrail_perf, pinrail_advise, pinrail_top, pinrail_conform and pinrun. Runs in the
# build tree.
set -u
srcdir=${srcdir:-$(dirname "$0")/..}
grep -q "^#define HAVE_TOOLS" config.h || { echo "SKIP: built without CLI11 or nlohmann-json"; exit 77; }
# shellcheck disable=SC2046 # names, each one word
unset $(env | sed -n 's/^\(PINRAIL_MCA_[A-Za-z0-9_]*\)=.*/\1/p') 2>/dev/null
failures=0

# offers WORD LINE...: completing the last word of the line in bash offers the word.
offers() {
  local wanted=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  _pinrail
  [[ " ${COMPREPLY[*]} " == *" $wanted "* ]] && return
  echo "FAIL: bash: \"$*\" offers no $wanted but: ${COMPREPLY[*]}"
  failures=$((failures + 1))
}

# shellcheck source=contrib/completion/pinrail.bash
. "$srcdir/contrib/completion/pinrail.bash"
complete -p pinrail_info pinrail_perf pinrail_advise pinrail_top pinrail_conform pinrun >/dev/null || failures=1
info=./contrib/tools/pinrail_info perf=./contrib/tools/pinrail_perf
for option in --all --param --level --monitors --parsable --json --mca --help --version; do offers $option $info --; done
for option in --html --cost --mca; do offers $option ./contrib/tools/pinrail_advise --; done
for option in --pool --registrar --size --regions --threads --iterations --trace --cost --exact --compare --limit --touch --scenario --json --mca; do offers $option $perf --; done
offers --json $info --all --j
offers mpool $info --param ""
offers grdma $info --param mpool g
offers base $info --param all b
offers --json $info --param mpool grdma --j
offers mpool_grdma_size_limit $info --mca mpool_grdma_s
offers --all $info --mca mpool_grdma_size_limit 4K --a
offers mlock $perf --registrar m
offers grdma $perf --pool ""
offers 7 $info --level ""
offers "$srcdir/README.md" $perf --trace "$srcdir/READ"
conform=test/conform/pinrail_conform
if [[ -x $conform ]]; then
  offers --components $conform --c
  offers rcache $conform rc
fi
pinrun=contrib/pinrun/pinrun
if [[ -x $pinrun ]]; then
  offers --release $pinrun --r
  offers --record $pinrun --stats --rec
  offers "$srcdir/README.md" $pinrun --record "$srcdir/READ"
  offers bash $pinrun --stats --mca monitor external bas
fi
top=./contrib/tools/pinrail_top
if [[ -x $top ]]; then for option in --once --pid --listen --json; do offers $option $top --; done; fi
COMP_WORDS=(./contrib/tools/pinrail_advise --) COMP_CWORD=1
_pinrail
[[ " ${COMPREPLY[*]} " != *" --record "* ]] || { echo "FAIL: a word of its help is an option"; failures=$((failures + 1)); }
COMP_WORDS=("$info" --nonsense) COMP_CWORD=1
_pinrail
[[ ${#COMPREPLY[@]} -eq 0 ]] || { echo "FAIL: --nonsense is completed to ${COMPREPLY[*]}"; failures=$((failures + 1)); }

# zsh: the function with a compadd that prints what it is given.
zsh_offers() {
  local wanted=$1
  shift
  # shellcheck disable=SC2016 # zsh expands it
  zsh -f -c 'file=$1; shift; words=("$@"); CURRENT=$#; compadd() { print -r -- ${(P)2} }; . $file' \
    zsh "$srcdir/contrib/completion/_pinrail" "$@" 2>&1 | tr ' ' '\n' | grep -qx -e "$wanted" && return
  echo "FAIL: zsh: \"$*\" offers no $wanted"
  failures=$((failures + 1))
}
if command -v zsh >/dev/null; then
  zsh_offers --param $info --
  zsh_offers grdma $info --param mpool ""
  zsh_offers base $info --param mpool ""
  zsh_offers mpool_grdma_size_limit $info --mca ""
  zsh_offers mlock $perf --registrar ""
  zsh_offers --trace $perf ""
  [[ ! -x $conform ]] || zsh_offers registrar $conform ""
  [[ ! -x $pinrun ]] || zsh_offers --stats $pinrun --
else
  echo "  not checked: zsh is not installed"
fi
[[ $failures -eq 0 ]] || { echo "$failures failures"; exit 1; }
echo "all passed"
