#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# tools_perf_test.sh - pinrail_perf as its users run it: output, exit status, limits, wrong words.
# Runs in the build tree; PINRAIL_PERF names another binary. Exit status 77: no registrar works here.
set -u
tool=${PINRAIL_PERF:-./contrib/tools/pinrail_perf}
. "${srcdir:-.}/test/support/script.sh"

said() { grep -q -e "$1" "$work/out" "$work/err" || fail "nothing like '$1' was said"; }
is() { [ "$(figure "$1")" = "$2" ] || fail "$1 is $(figure "$1"), not $2"; }
positive() { [ -n "$(figure "$1")" ] && [ "$(figure "$1")" != 0 ] || fail "$1 is not above 0"; }

valid_json() {
  if command -v python3 >/dev/null 2>&1; then
    python3 -m json.tool <"$work/out" >/dev/null 2>&1 || fail "this is no JSON"
  else
    { [ "$(head -c 1 "$work/out")" = "{" ] && [ "$(tail -n 1 "$work/out")" = "}" ]; } || fail "this is no JSON"
  fi
}

# documented: each key of the JSON output stands in the manual page.
documented() {
  for key in $(grep -o '"[a-z_]*":' "$work/out" | tr -d '":' | sort -u); do
    grep -qw -e "$key" "${srcdir:-.}/contrib/man/pinrail_perf.1" || fail "the manual page does not name $key"
  done
}

"$tool" --size 4K --iterations 10 >"$work/out" 2>"$work/err"
if [ $? -ne 0 ] && grep -q NOT_AVAILABLE "$work/err"; then
  echo "SKIP: no registrar works here"
  exit 77
fi

echo "the table"
expect 0 --size 4K,64K --iterations 200
said 'without *with *speedup'
said '64 KiB'
said 'errors 0'

echo "the monitors are those of any program, and are named"
expect 0 --size 4K --iterations 100 --mca monitor external
said 'monitor external, leave_pinned 1'
expect 1 --size 4K --iterations 100 --mca monitor none
said 'monitor none, leave_pinned 0'
said '^nothing is kept registered on this machine: no monitor is selected$'
expect 1 --size 4K --iterations 100 --json --mca monitor none
valid_json
said '"why_not_kept": "no monitor is selected"'

# Where calls or bytes are counted, each buffer is registered by itself.
by_itself="--mca mpool_grdma_extent 0 --mca mpool_grdma_rights asked"

echo "the doctor names each part, and what is wrong with what follows and what to do"
"$tool" --doctor >"$work/out" 2>"$work/err"
doctor=$?
for part in 'locked memory' memory 'huge pages' events device; do said "^\(well\|costs\|WRONG\)  *$part: "; done
wrong=$(grep -c '^WRONG' "$work/out")
[ "$((wrong > 0))" = "$doctor" ] || fail "$wrong parts are wrong, and the exit status is $doctor"
expect 1 --doctor --mca monitor none
said '^WRONG  monitors: .*no monitor is selected'
said 'What follows: nothing stays registered'
said 'What to do: '
grep -q 'leave_pinned=yes' "$work/out" && fail "nobody asked for leave_pinned=yes"
said 'remove none from the parameter monitor'
expect 1 --doctor --mca mpool_grdma_leave_pinned maybe
said '^WRONG  start: Pinrail does not start: .*maybe'
[ "$(grep -c '^WRONG' "$work/out")" -eq 1 ] || fail "more is wrong than the start"
grep -q 'What happened' "$work/out" && fail "a finding has a whole message in it"
expect 1 --doctor --mca registrar none
said '^WRONG  device: '
expect 2 --doctor --trace x

echo "JSON"
# shellcheck disable=SC2086
expect 0 $by_itself --size 4K,2M --iterations 200 --regions 3 --json
valid_json
for key in pool registrar leave_pinned rows size uncached_ns cached_ns speedup hits misses evictions errors; do
  said "\"$key\":"
done
is leave_pinned 1
is hits 200
is misses 3
is errors 0
documented

echo "a pool that cannot keep nothing"
expect 0 --pool mrall --size 4K --iterations 100
said 'pool mrall on registrar'

echo "what was set is named with its source"
expect 0 --size 4K --iterations 100 --mca mpool_grdma_leave_pinned no
said 'leave_pinned is no, from the command line'

echo "threads"
# shellcheck disable=SC2086
expect 0 $by_itself --size 64K --iterations 500 --regions 4 --threads 2 --json
valid_json
is hits 1000
is misses 8
is errors 0

# A sanitizer's mlock() does nothing, which pinrail_perf rightly counts as errors.
registrars="iouring mlock"
if nm -D --undefined-only .libs/libpinrail.so 2>/dev/null | grep -q -e __asan_init -e __tsan_init; then
  registrars=iouring
  echo "  not checked: mlock, under a sanitizer"
fi

echo "scenarios"
expect 0 --scenario prepin --iterations 20000 --json
valid_json
for figure in "registrar calls of a prepin and 20000 sends" "registrar calls of 1265 tensors in one allocation" \
  "pages that query misjudges in 2000 random pins"; do
  said "$figure"
done
said '"reached": true'
documented
expect 0 --scenario chunks --size 16M
said '16 MiB .*not measured: a buffer has at least 16 pieces'
# Times are not judged here, because other tests may run; but the exit status and the figures agree.
"$tool" --scenario chunks --size 32M >"$work/out" 2>"$work/err"
status=$?
if grep -q 'NOT REACHED' "$work/out"; then want=1; else want=0; fi
[ "$status" -eq "$want" ] || fail "--scenario chunks: exit status $status, not $want"
grep -q 'not measured' "$work/out" && fail "something was left out"
for figure in 'bytes in pieces' 'registered at a time' 'registered after a stop half way'; do
  said "$figure.*: reached"
done
"$tool" --scenario terabyte --size 64M --json >"$work/out" 2>"$work/err"
status=$?
valid_json
said 'first chunk usable, 64 MiB'
if grep -q '^  "reached": true' "$work/out"; then want=0; else want=1; fi
[ "$status" -eq "$want" ] || fail "--scenario terabyte: exit status $status, not $want"
if [ "$registrars" = iouring ]; then
  echo "  not checked: mrall, which would pin all memory of the sanitizer"
else
  "$tool" --scenario mrall --json >"$work/out" 2>"$work/err"
  status=$?
  if [ "$status" -ne 0 ] && grep -q NOT_SUPPORTED "$work/err"; then
    echo "  not checked: mrall: no monitor works here"
  else
    [ "$status" -eq 0 ] || fail "--scenario mrall: exit status $status"
    valid_json
    said '"pool": "mrall"'
  fi
fi
# Its bounds are of times, which a busy machine does not keep.
"$tool" --scenario alloc --json >"$work/out" 2>"$work/err"
[ $? -le 1 ] || fail "--scenario alloc: exit status"
valid_json
said '"name": "alloc / malloc"'

expect 2 --scenario nothing
expect 2 --scenario prepin --regions 2

echo "each registrar"
for registrar in $registrars; do
  # shellcheck disable=SC2086
  "$tool" $by_itself --registrar "$registrar" --size 64K --iterations 100 --json >"$work/out" 2>"$work/err"
  status=$?
  if [ "$status" -ne 0 ] && grep -q -e NOT_AVAILABLE -e NOT_FOUND "$work/err"; then
    echo "  not here: $registrar"
    continue
  fi
  [ "$status" -eq 0 ] || fail "--registrar $registrar: exit status $status"
  said "\"registrar\": \"$registrar\""
  is errors 0
  case $registrar in
    iouring) is vmpin_growth 65536; said '"bytes_checked": "device"' ;;
    mlock) is vmlck_growth 65536; said '"bytes_checked": "[pu]' ;;
  esac
done

echo "a limit that forces evictions"
PINRAIL_MCA_mpool_grdma_size_limit=8M
export PINRAIL_MCA_mpool_grdma_size_limit
expect 0 --size 1M --regions 64 --iterations 1000 --json
valid_json
positive evictions
is errors 0
[ "$(figure registered_bytes)" -le 8388608 ] || fail "more than the limit is registered"
expect 0 --size 1M,16M --iterations 100
said 'mpool_grdma_size_limit is 8M, from the environment: less than one buffer'
unset PINRAIL_MCA_mpool_grdma_size_limit

echo "what is in use may exceed a limit by default, which is this rank's share of the machine"
OMPI_COMM_WORLD_LOCAL_SIZE=1000000
export OMPI_COMM_WORLD_LOCAL_SIZE
expect 0 --size 4M --regions 8 --iterations 100 --json
is errors 0
[ "$(figure size_limit)" -lt 4194304 ] || echo "  not checked: a share is $(figure size_limit) bytes"
printf '1 0 R 7e0000000000 4194304 5 0 0\n2 0 D 7e0000000000 4194304 5 0 0\n' >"$work/large.trace"
expect 0 --trace "$work/large.trace" --json
is errors 0
unset OMPI_COMM_WORLD_LOCAL_SIZE

echo "a limit of the system"
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null 2>&1; then
  # shellcheck disable=SC3045 # dash has it
  (ulimit -l 1024 && setpriv --bounding-set=-ipc_lock --inh-caps=-all "$tool" --size 256K,4M --regions 8 \
    --iterations 500 --json) >"$work/out" 2>"$work/err"
  status=$?
  [ "$status" -eq 0 ] || fail "under ulimit -l: exit status $status"
  valid_json
  is errors 0
  said 'ulimit -l is 1 MiB'
else
  echo "  not checked: needs root and setpriv"
fi

echo "without caching"
expect 0 --mca mpool_grdma_leave_pinned 0 --size 64K --iterations 100
said 'Nothing was kept: leave_pinned is 0'
said 'errors 0'

echo "wrong words"
for words in "--size 4Q" "--size 0" "--threads 0" "--regions x" "--iterations -1" "--nonsense" "4K" "--mca monitor" \
  "--trace a --size 4K" "--exact" "--cost x"; do
  # shellcheck disable=SC2086
  expect 2 $words
  for word in $words; do last=$word; done
  case $words in --trace* | --mca*) said "${words%% *}" ;; *) said "$last" ;; esac
done
expect 1 --registrar nonsense --size 4K
said nonsense
expect 1 --pool nonsense --size 4K
said nonsense
for words in --help --version "--size 4K --iterations 10"; do
  # shellcheck disable=SC2086
  "$tool" $words >/dev/full 2>"$work/err"
  [ $? -eq 1 ] || fail "pinrail_perf $words >/dev/full: it says that all is well"
  said '^pinrail_perf: the output cannot be written'
done
expect 0 -V
expect 0 --help
said '--iterations'
expect 0 --version
said 'pinrail_perf [0-9]'

echo "wrong parameters"
PINRAIL_MCA_mpool_grdma_leave_pinned=maybe
export PINRAIL_MCA_mpool_grdma_leave_pinned
expect 1 --size 4K --iterations 10
said maybe
said mpool_grdma_leave_pinned
said environment
unset PINRAIL_MCA_mpool_grdma_leave_pinned
PINRAIL_MCA_mpool_grdma_leav_pinned=1
export PINRAIL_MCA_mpool_grdma_leav_pinned
expect 0 --size 4K --iterations 10
said '[Dd]id you mean.*leave_pinned'
unset PINRAIL_MCA_mpool_grdma_leav_pinned

echo "a trace"
cat >"$work/good.trace" <<'END'
# program: a test
# records: 9 dropped 0 threads 1
1 0 R 7e0000001010 5000 5 0 0
2 0 R 7e0000001010 100 1 0 1
3 0 D 7e0000001000 8192 5 0 0
4 0 D 7e0000001000 8192 5 0 1
5 0 I 7e0000002000 48 0 0 0
6 0 R 7e0000001010 5000 5 0 2
7 0 F 7e0000001010 5000 5 0 3
8 0 E 0 0 0 0 0
9 0 D 7e0000001000 8192 5 0 2
END
# What died waits for the gc thread, if there is one: without, the next miss gives it back, and the peak is known.
PINRAIL_MCA_mpool_grdma_gc_thread=never expect 0 --trace "$work/good.trace" --json
documented
valid_json
for key in trace calls hits misses evictions invalidations peak_bytes errors seconds; do said "\"$key\":"; done
is calls 3
is misses 2
is invalidations 1
is peak_bytes 8192
is errors 0
for key in registrar_calls registrar_pages registrar_refused register_ms deregister_ms cost_ms; do said "\"$key\":"; done
is registrar_calls 2
is registrar_pages 4
expect 0 --trace "$work/good.trace" --cost 8000,69.5 --registrar none --json
is cost_ms 0.016278
is registrar_calls 2
expect 0 --trace "$work/good.trace"
said 'calls  *3'
said 'registrar  *2 register calls, 4 pages'

echo "several traces, and each beside its exact replay"
expect 0 --trace "$work/good.trace" "$work/good.trace" --compare --cost 1000000,0
said '^good .* 2 *4 .* 2\.000 .* 1\.00$'
said '^geometric mean .* 2\.000 .* 1\.00$'
expect 0 --trace "$work/good.trace" "$work/good.trace" --exact --touch asked --cost 1000000,0
said '^geometric mean .* 2\.000$'
expect 0 --trace "$work/good.trace" "$work/good.trace" --compare --json
documented
valid_json
is mean_cost_ratio 1.0

echo "the second thread of two is one too many"
# shellcheck disable=SC3045
few() { (ulimit -s 1048576 && ulimit -v 1700000 && exec "$tool" "$@" >"$work/out" 2>"$work/err"); }
if few --help 2>/dev/null; then  # not with a sanitizer
  few --scenario alloc --mca monitor external --mca mpool_grdma_gc_thread never --registrar mlock
  status=$?
  [ "$status" -eq 1 ] || fail "without a thread: exit status $status"
  said 'the system gives no further thread'
fi

echo "a trace that cannot be replayed is left out"
: >"$work/empty.trace"
expect 1 --trace "$work/good.trace" "$work/empty.trace"
for words in 'empty.trace: is empty' '^good ' '^geometric mean'; do said "$words"; done

echo "a replay under a limit"
cat >"$work/turns.trace" <<'END'
1 0 R 7e0000001000 4096 5 0 0
2 0 D 7e0000001000 4096 5 0 0
3 0 R 7e0000004000 4096 5 0 1
4 0 D 7e0000004000 4096 5 0 1
5 0 R 7e0000001000 4096 5 0 2
6 0 D 7e0000001000 4096 5 0 2
END
expect 0 --trace "$work/turns.trace" --exact --json
is registrar_calls 2
expect 0 --trace "$work/turns.trace" --exact --limit 4K --json
is registrar_calls 3
is evictions 2
is errors 0

echo "what is refused before anything is replayed"
expect 1 --trace "$work/good.trace" "$work/missing.trace"
grep -q . "$work/out" && fail "something was printed"
expect 1 --trace "$work/good.trace" --pool mrall
said mrall
(echo '# rcache-trace 2' && cat "$work/good.trace") >"$work/new.trace"
expect 1 --trace "$work/new.trace"
said 'line 1: is the header of a newer kind'

echo "traces that are none"
head -n 5 "$work/good.trace" >"$work/short.trace"
head -c 100 "$work/good.trace" >"$work/cut.trace"
: >"$work/empty.trace"
echo '1 0 I 1000 1 0 0 0' >"$work/nothing.trace"
echo 'what is this' >"$work/garbage.trace"
head -c 2000 /dev/urandom >"$work/random.trace"
printf '\3757zXZ\0and no more' >"$work/bad.xz"
for name in short.trace cut.trace garbage.trace; do
  expect 1 --trace "$work/$name"
  said "$name: line [0-9]"
done
for name in empty.trace nothing.trace random.trace bad.xz missing.trace; do
  expect 1 --trace "$work/$name"
  said "$name"
done
expect 1 --trace /
said directory

[ "$failures" -eq 0 ] || { echo "$failures checks failed"; exit 1; }
