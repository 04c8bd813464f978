#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# tools_info_test.sh - pinrail_info as its users run it: what it shows, exit status, wrong words.
# Runs in the build tree; PINRAIL_INFO names another binary.
set -u
tool=${PINRAIL_INFO:-./contrib/tools/pinrail_info}
. "${srcdir:-.}/test/support/script.sh"

shows() { grep -q -e "$1" "$work/out" || fail "nothing like '$1' is shown"; }
lacks() { ! grep -q -e "$1" "$work/out" || fail "'$1' is shown"; }
complains() { grep -q -e "$1" "$work/err" || fail "nothing like '$1' is said on stderr"; }
quiet() { [ ! -s "$work/err" ] || fail "something is said on stderr"; }

valid_json() {
  if command -v python3 >/dev/null 2>&1; then
    python3 -m json.tool <"$work/out" >/dev/null 2>&1 || fail "this is no JSON"
  else
    { [ "$(head -c 1 "$work/out")" = "{" ] && [ "$(tail -n 1 "$work/out")" = "}" ]; } || fail "this is no JSON"
  fi
}

echo "the overview"
expect 0
quiet
shows '^Pinrail [0-9]'
shows '^  sysconfdir '
shows '^Machine  (by '
shows '^  NUMA nodes  *[1-9]'
shows '^  components '
for framework in mpool rcache registrar monitor; do shows "^Framework $framework"; done
shows '^  grdma .*priority'
shows '^  level 1 '
lacks 'mpool_grdma_size_limit'

echo "what a newcomer types"
PINRAIL_MCA_size_limit=8M expect 0
complains 'did you mean .*mpool_grdma_size_limit'
PINRAIL_MCA_mpool_grdma_count_limit=-5 expect 1
complains 'give a whole number that is not negative, or unlimited'
expect 1 --mca rcache mine
complains 'mpool_grdma_rcache_name'
echo 'mpool_grdma_count_limit = 3' >"$work/params" && chmod 666 "$work/params"
if [ "$(id -u)" = 0 ]; then
  PINRAIL_MCA_mca_base_param_files=$work/params expect 1
  complains 'chmod go-w'
fi

echo "no tool records itself"
PINRAIL_MCA_mpool_base_record=$work/recorded expect 0
[ -z "$(find "$work" -name 'recorded*')" ] || fail "pinrail_info was recorded"

echo "where the kernel shows less"
real=${tool%/*}/.libs/${tool##*/} # libtool's wrapper needs descriptors of its own
[ -x "$real" ] || real=$tool
# shellcheck disable=SC3045
(exec >"$work/out" 2>"$work/err" && ulimit -n 4 && LD_LIBRARY_PATH=$PWD/.libs exec "$real" --monitors)
complains 'no pipe or process could be made'
# shellcheck disable=SC3045
if (ulimit -l 8192) 2>/dev/null && unshare -Ur true 2>/dev/null; then
  (ulimit -l 8192 && unshare -Ur "$tool" >"$work/out" 2>"$work/err")
  shows 'default limit  *8 MiB: the limit of locked memory'
fi
if unshare -rm sh -c 'mount -t tmpfs none /proc' 2>/dev/null; then
  # shellcheck disable=SC2016
  unshare -rm sh -c 'mount -t tmpfs none /proc && exec "$0"' "$tool" >"$work/out" 2>"$work/err"
  [ "$(grep -c 'What happened' "$work/err")" -le 2 ] || fail "without /proc there are many messages"
fi

echo "a folder whose name has a colon"
if mkdir "$work/a:b" && cp .libs/libpinrail.so "$work/a:b" 2>/dev/null &&
  python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1]).pinrail_init(None)' "$work/a:b/libpinrail.so" 2>"$work/err"; then
  complains 'its folder.s name has a colon'
fi

echo "a library that was loaded by a relative path"
if [ -z "${PINRAIL_SANITIZE:-}" ] && [ -e .libs/libpinrail.so ] && command -v python3 >/dev/null; then
  mkdir "$work/elsewhere"
  env -u PINRAIL_MCA_mca_base_component_path python3 -c 'import ctypes, os, sys
library = ctypes.CDLL(".libs/libpinrail.so")
os.chdir(sys.argv[1])
library.pinrail_init(None)
sys.exit(library.pinrail_component_count() == 0)' "$work/elsewhere" || fail "no component is found beside the library"
fi

echo "what a program gets, and why nothing else"
expect 0 --parsable
shows '^program:pool:grdma$'
shows '^program:registrar:[a-z]'
shows '^program:not_used:monitor:external:.*only when parameter monitor names it'
shows '^program:not_used:mpool:rgpusm:.*registrar'
[ -d /sys/class/infiniband ] ||
  shows '^program:not_used:registrar:verbs:.*NOT_AVAILABLE (no RDMA device. /sys/class/infiniband is missing or empty)'
shows '^build:configure:'
shows '^program:not_used:mpool:gpusm:.*no registrar for GPU memory works here.*cuda_ipc'
shows '^build:third_parties:.*cli11 [0-9]'
expect 0 --mca registrar mlock --mca monitor external
shows '^  registrar  *mlock$'
shows '^  monitors  *external$'
shows '^  not registrar iouring: not selected'
expect 0 --mca registrar none
shows '^  pool  *none$'
shows 'No pool can be made: no registrar for any memory works here'
quiet
expect 0 --param mpool grdma
shows 'mpool_grdma_size_limit = '

echo "parameters of one component"
expect 0 --param mpool grdma --level 9
quiet
shows '^  mpool_grdma_size_limit = .*(default)'
shows '^  mpool_grdma_verbose = 0'
lacks 'rcache_vma_verbose'
shows 'old names:.* rcache_grdma_size_limit'
expect 0 --param mpool grdma --level 1
shows 'more at higher levels'
lacks 'mpool_grdma_verbose'

echo "parsable output"
expect 0 --param mpool grdma --level 9 --parsable --mca mpool_grdma_size_limit 5M
limit=$(sed -n 's/^mca:mpool:grdma:param:size_limit:default://p' "$work/out")
expect 0 --param mpool grdma --level 9 --parsable
# The default that was derived from the machine is listed as the default, whether it is used or not.
shows "^mca:mpool:grdma:param:size_limit:default:$limit\$"
shows "^mca:mpool:grdma:param:size_limit:value:$limit\$"
shows '^mca:mpool:grdma:param:size_limit:value:'
shows '^mca:mpool:grdma:param:size_limit:source:default$'
shows '^mca:mpool:grdma:param:size_limit:level:[1-9]$'
shows '^mca:mpool:grdma:param:size_limit:type:size$'
shows '^mca:mpool:grdma:param:size_limit:scope:'
shows '^mca:mpool:grdma:param:size_limit:help:.'
shows '^mca:mpool:grdma:param:leave_pinned:enumerator:value:-1:'
shows '^mca:mpool:grdma:status:SUCCESS$'
expect 0 --all --level 4 --parsable
lacks ':level:[5-9]$'
expect 0 --all --parsable
shows ':level:9$'
for key in $(sed -n 's/^\(machine\|program\):\([a-z_]*\):.*/\2/p' "$work/out" | sort -u); do
  grep -q -e "[^a-z_]\(fB\)\?$key" "${srcdir:-.}/contrib/man/pinrail_info.1" || fail "the manual page does not name $key"
done
shows '^machine:page_size:[0-9]'
shows '^machine:numa_nodes:[1-9]'
shows '^build:version:[0-9]'
shows '^mca:mca:base:param:leave_pinned:value:'
shows '^mca:mpool:base:param:mpool:value:$'
shows '^mca:mca:base:param:mca_base_component_path:value:'
shows '^pvar:hits:unit:calls$'

echo "JSON"
expect 0 --param mpool grdma --json --param all base
valid_json
shows '"mpool_grdma_size_limit"'
shows '"leave_pinned"'
expect 0 --all --json
valid_json
for key in version build components parameters performance_variables name value source level; do shows "\"$key\":"; done
expect 0 --json
valid_json
shows '"hugepage_sizes": '

echo "where a value comes from"
mkdir "$work/.pinrail" || exit 99
printf '# mine\nmpool_grdma_size_limit = 8M\n' >"$work/.pinrail/mca-params.conf"
expect 0 --param mpool grdma --level 9 --parsable
shows '^mca:mpool:grdma:param:size_limit:value:8M$'
shows '^mca:mpool:grdma:param:size_limit:source:file$'
shows "^mca:mpool:grdma:param:size_limit:source_file:$work/.pinrail/mca-params.conf$"
shows '^mca:mpool:grdma:param:size_limit:source_line:2$'
PINRAIL_MCA_mpool_grdma_size_limit=16M
export PINRAIL_MCA_mpool_grdma_size_limit
expect 0 --param mpool grdma --level 9
shows 'mpool_grdma_size_limit = 16M  (environment)'
expect 0 --mca mpool_grdma_size_limit 32M --param mpool grdma --level 9
shows 'mpool_grdma_size_limit = 32M  (command line)'
unset PINRAIL_MCA_mpool_grdma_size_limit
rm "$work/.pinrail/mca-params.conf"

echo "what is not used, and why"
expect 0 --mca mpool '^grdma'
shows 'grdma .*not selected: mpool = ^grdma, from the command line'

echo "old names and slips of the fingers"
expect 0 --mca rcache_grdma_size_limit 4M --param mpool grdma --level 9
shows 'mpool_grdma_size_limit = 4M'
complains 'rcache_grdma_size_limit.*is an old name of mpool_grdma_size_limit'
expect 0 --mca mpool_grdma_size_limt 4M
complains 'did you mean mpool_grdma_size_limit?$'

echo "what does not start"
expect 1 --mca mpool_grdma_size_limit lots
complains '"lots" for parameter mpool_grdma_size_limit, from the command line'
expect 1 --mca mpool grmda
complains 'did you mean grdma?'

echo "what is kept"
expect 0
shows '^Memory that is kept registered  (monitors: '
shows '^  anonymous '
expect 0 --parsable --mca monitor external
shows '^monitors:at_work:external$'
for kind in anonymous heap stack 'shared anonymous' 'System V' 'private file' 'shared file'; do
  shows "^memory:$kind:kept:yes$"
done
expect 0 --parsable --mca monitor none
shows '^monitors:at_work:$'
shows '^memory:heap:kept:no$'
shows '^memory:heap:why_not:no monitor is selected$'
expect 0 --json --mca monitor external --mca monitor_strict yes
valid_json
shows '"why_not": "another process may cut it, and monitor_strict is set"'

echo "what monitors see"
expect 0 --monitors --parsable
quiet
shows '^monitors:at_work:'
shows '^memory:anonymous:kept:'
# What the component says of itself (its README), where it runs at all; elsewhere the reason is shown.
if grep -q '^monitor:patcher:event:' "$work/out"; then
  for event in munmap mmap-over mremap-move mremap-onto madvise-dontneed fallocate-punch-hole ftruncate dlclose free brk; do
    shows "^monitor:patcher:event:$event:before$"
  done
  for event in mprotect fork madvise-cold; do shows "^monitor:patcher:event:$event:kept$"; done
  for event in madvise-dontneed-raw open-truncate-raw; do shows "^monitor:patcher:event:$event:not seen$"; done
  for event in ring-madvise ring-fallocate ring-ftruncate ring-open-truncate; do
    grep -Eq "^monitor:patcher:event:$event:(not seen|-)$" "$work/out" || fail "$event: neither unseen nor impossible"
  done
  lacks '^monitor:patcher:event:.*:broken$'
  # A table that cannot show a hole shows nothing.
  expect 0 --monitors --json --mca monitor_patcher_leave_out madvise,munmap
  valid_json
  awk '/"name"/ { name = $2 } /"patcher": "/ { print name $2 $3 }' "$work/out" >"$work/table"
  grep -q '^"madvise-dontneed","notseen"' "$work/table" || fail "madvise is left out, but shown as seen"
  grep -q '^"munmap","after"' "$work/table" || fail "munmap is left out, so only the next mmap should tell"
  grep -q '^"mremap-move","before"' "$work/table" || fail "mremap is not left out"
else
  shows '^monitor:patcher:why_not:'
fi
PINRAIL_MCA_size_limit=8M expect 0 --monitors --parsable
lacks '^monitor:.*:why_not:.*size_limit' # a warning, which comes before the reason
if grep -q '^monitor:uffd:event:' "$work/out"; then
  for event in munmap mremap-onto madvise-dontneed munmap-raw; do shows "^monitor:uffd:event:$event:after$"; done
  grep -Eq '^monitor:uffd:event:ring-madvise:(after|-)$' "$work/out" || fail "uffd sees what io_uring's madvise drops"
  for event in ftruncate madvise-free mprotect; do lacks "^monitor:uffd:event:$event:after$"; done
else
  shows '^monitor:uffd:why_not:'
fi
expect 2 --monitors --all
complains '^pinrail_info: --all excludes --monitors$'
expect 1 --monitors --mca monitor_patcher_check_interval often

echo "wrong words"
for words in --nonsense -x word '--level 0' '--level ten' --level --param '--param mpool' --mca '--mca name' \
  '--json --parsable' '--param nonsense all' '--param mpool nonsense'; do
  # shellcheck disable=SC2086 # they are several words
  expect 2 $words
  complains '^pinrail_info: '
  [ ! -s "$work/out" ] || fail "pinrail_info $words: something is shown"
done

echo "the folder beside the library cannot be opened: its name leads in a circle"
library=$(ls .libs/libpinrail.so.[0-9] 2>/dev/null)
if [ -n "$library" ] && [ -x contrib/tools/.libs/pinrail_info ]; then
  mkdir "$work/lib" && cp "$library" "$work/lib" && ln -s pinrail "$work/lib/pinrail"
  LD_LIBRARY_PATH="$work/lib" contrib/tools/.libs/pinrail_info >"$work/out" 2>"$work/err"
  complains "no components in $work/lib/pinrail (mca_base_component_path): "
  rm "$work/lib/pinrail"
  LD_LIBRARY_PATH="$work/lib" contrib/tools/.libs/pinrail_info >"$work/out" 2>"$work/err"
  quiet
fi

echo "an output that cannot be written"
for words in "" --all --json --help --version; do
  # shellcheck disable=SC2086 # none or one
  "$tool" $words >/dev/full 2>"$work/err"
  [ $? -eq 1 ] || fail "pinrail_info $words >/dev/full: it says that all is well"
  complains '^pinrail_info: the output cannot be written'
done

echo "the reader's window"
COLUMNS=60 expect 0 --help
awk 'length > 60 { exit 1 }' "$work/out" || fail "--help is wider than COLUMNS"
COLUMNS=60 expect 0 --param mpool grdma --level 9
awk 'length > 60 && /^    [A-Z]/ { exit 1 }' "$work/out" || fail "the help of parameters is wider than COLUMNS"

COLUMNS=60 expect 0 --mca registrar_cuda_ipc_library /no/such/driver.so
awk 'length > 60 && !/\// { exit 1 }' "$work/out" || fail "the overview is wider than COLUMNS, beside its paths"

echo "help and version"
expect 0 -V
shows '^pinrail_info [0-9]'
expect 0 --help
for option in --all --param --level --monitors --parsable --json --mca --help --version; do shows "$option"; done
head -n 1 "$work/out" | grep -q '^Usage' || fail "--help does not begin with the usage"
expect 0 --version
shows '^pinrail_info [0-9]'

[ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
echo "all passed"
