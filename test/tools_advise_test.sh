#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# tools_advise_test.sh - pinrail_advise as its users run it: what it predicts is what pinrail_perf measures; wrong files.
# Runs in the build tree; PINRAIL_ADVISE and PINRAIL_PERF name other binaries, PINRAIL_TRACES another folder of traces.
set -u
tool=${PINRAIL_ADVISE:-./contrib/tools/pinrail_advise}
perf=${PINRAIL_PERF:-./contrib/tools/pinrail_perf}
traces=${PINRAIL_TRACES:-${srcdir:-.}/test/traces}
. "${srcdir:-.}/test/support/script.sh"

said() { grep -q -e "$1" "$work/out" "$work/err" || fail "nothing like '$1' was said"; }

# measured NAME: the first number of that name in pinrail_perf's JSON.
measured() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" "$work/perf" | head -n 1; }

# Whether a replay with what is set makes the calls that the advice names.
agrees() {
  said_figures=$(sed -n 's/.*As it is set, \([0-9]*\) requests cause \([0-9]*\) register calls of \([0-9]*\) pages.*/\1 \2 \3/p' "$work/out")
  "$perf" --json --registrar none --trace "$1" >"$work/perf" 2>/dev/null
  [ "$said_figures" = "$(measured calls) $(measured registrar_calls) $(measured registrar_pages)" ]
}

checked=0
for trace in "$traces"/*.trace.xz; do
  "$tool" --html "$work/page" "$trace" >"$work/out" 2>"$work/err"
  status=$?
  if grep -q 'no liblzma' "$work/err"; then
    echo "SKIP: this build has no liblzma"
    exit 77
  fi
  [ "$status" -eq 0 ] || fail "$trace: exit status $status"
  checked=$((checked + 1))
  agrees "$trace" || fail "$trace: pinrail_advise says $said_figures, and pinrail_perf $(measured calls)" \
    "$(measured registrar_calls) $(measured registrar_pages)"
  "$perf" --json --registrar none --exact --trace "$trace" >"$work/perf" 2>"$work/err"
  said "exactly what is asked for: $(measured registrar_calls) calls, $(measured registrar_pages) pages"
  # The study by itself finds the same misses.
  said " of $(measured registrar_calls) misses "
  [ "$(head -n 1 "$work/page")" = '<!DOCTYPE html>' ] || fail "the page has no beginning"
  [ "$(tail -n 1 "$work/page")" = '</html>' ] || fail "the page is cut off"
  [ "$(grep -c '<svg' "$work/page")" -eq 4 ] || fail "the page has not four pictures"
  grep -Eq '(href|src)=|url\(|@import' "$work/page" && fail "the page loads something"
  grep -Eq '(nan|inf)[ ",<]' "$work/page" && fail "a picture has a number that is none"
  # A letter is at most 7 wide.
  cut=$(sed -n 's/.*<text x="\([0-9.]*\)".*anchor="end">\(.*\)<.text>.*/\1 \2/p' "$work/page" |
    awk '7 * (length($0) - length($1) - 1) > $1')
  [ -z "$cut" ] || fail "these words begin outside of their picture: $cut"
done
[ "$checked" -gt 0 ] || fail "there was no trace"
echo "$checked traces"

echo "a limit that a trial names is measured alike"
limit=$(sed -n 's/.*With \([0-9.]*\) KiB the calls are.*/\1/p' "$work/out")
if [ -n "$limit" ]; then
  calls=$(sed -n 's/.* KiB the calls are \([0-9]*\) instead.*/\1/p' "$work/out")
  "$perf" --json --registrar none --limit "${limit}K" --trace "$trace" >"$work/perf" 2>/dev/null
  [ "$(measured registrar_calls)" = "$calls" ] || fail "with $limit KiB: $(measured registrar_calls) calls, not $calls"
fi

echo "a limit in force that is too small is named, and none is advised"
{
  echo '# program: under_a_limit'
  id=0
  for round in 1 2 3 4 5 6 7 8; do
    for buffer in 1 2 3 4; do
      id=$((id + 1))
      printf '%d 0 %s 7e%d000000000 1048576 5 0 %d\n' $round R $buffer $id $round D $buffer $id
    done
  done
} >"$work/limit.trace"
expect 0 --mca mpool_grdma_size_limit 2M "$work/limit.trace"
said 'The limit in force, 2 MiB, is in the way: [1-9][0-9]* registrations were evicted and 0 requests refused. Without a limit at most 4'
said '^mpool_grdma_size_limit = 0$'
expect 0 --mca mpool_grdma_size_limit 8M "$work/limit.trace"
grep -q 'is in the way' "$work/out" && fail "a limit that evicts nothing is in the way"

echo "what was set where a trace was recorded is set for its replays, as far as it is of the pool"
{
  printf '# setting: %s\n' 'mpool_grdma_size_limit 2M' 'mpool_grdma_size_limit' 'mca_base_component_path /nowhere'
  cat "$work/limit.trace"
} >"$work/set.trace"
expect 0 "$work/set.trace"
said 'It was recorded with mpool_grdma_size_limit = 2M, and so each replay here has it'
said 'The limit in force, 2 MiB, is in the way'
expect 0 --mca mpool_grdma_size_limit 8M "$work/set.trace"
grep -q 'is in the way' "$work/out" && fail "the limit of the command line is not in force"
sed 's/ 2M$/ two/' "$work/set.trace" >"$work/word.trace"
expect 1 "$work/word.trace"
said 'word.trace'

echo "where nothing is kept, that is said, and that it can be"
expect 0 --mca mpool_grdma_leave_pinned no "$work/limit.trace"
said 'nothing is kept registered: mpool_grdma_leave_pinned is no'
said '^mpool_grdma_leave_pinned = auto$'
expect 0 --mca monitor none "$work/limit.trace"
said 'nothing is kept registered: no monitor is selected'

echo "what the program asked to evict is not held against the limit"
printf '%s\n' '1 0 R 7e0001000000 4096 5 0 0' '2 0 D 7e0001000000 4096 5 0 0' '3 0 E 0 0 0 0 0' >"$work/asked.trace"
expect 0 --mca mpool_grdma_size_limit 8M "$work/asked.trace"
grep -q 'is in the way' "$work/out" && fail "an eviction that was asked for is in the way"

echo "a trace without requests, as of a process that was killed, is left out"
: >"$work/empty.trace"
echo '1 0 I 1000 1 0 0 0' >"$work/nothing.trace"
expect 1 "$work/empty.trace" "$work/limit.trace" "$work/nothing.trace" "$work/asked.trace"
for words in 'empty.trace: is empty' 'nothing.trace: has no R line' '^limit ' '^asked' '^For '; do said "$words"; done

echo "no tool records itself unless it is asked to"
mkdir "$work/records" || exit 99
PINRAIL_MCA_mpool_base_record=$work/records/run expect 0 "$work/limit.trace"
PINRAIL_MCA_mpool_base_record=$work/records/run "$perf" --trace "$work/limit.trace" >"$work/out" 2>&1
[ -z "$(ls "$work/records")" ] || fail "$(ls "$work/records") was recorded"
"$perf" --mca mpool_base_record "$work/records/run" --trace "$work/limit.trace" >"$work/out" 2>&1
[ -n "$(ls "$work/records")" ] || fail "nothing was recorded"

echo "what Pinrail says of settings is said once"
expect 1 --mca mpool_grdma_leave_pinned maybe "$work/limit.trace"
said '"maybe"'
expect 0 --mca mpool_grdma_leav_pinned no "$work/limit.trace"
said '[Dd]id you mean.*leave_pinned'
[ "$(grep -c '[Dd]id you mean' "$work/err")" -eq 1 ] || fail "it is said more than once"

echo "no advice of another pool than grdma"
expect 1 --mca mpool mrall "$work/limit.trace"
said mrall

echo "calls that a recording had no room for are told"
printf '%s\n' '# records: 2 dropped 7' '1 0 R 7e0001000000 4096 5 0 0' '2 0 D 7e0001000000 4096 5 0 0' >"$work/full.trace"
expect 0 "$work/full.trace"
said 'The recording ended early: 7 calls are missing'
"$perf" --registrar none --trace "$work/full.trace" >"$work/out" 2>"$work/err" || fail "full.trace: pinrail_perf's exit status"
said 'full.trace: The recording ended early: 7 calls are missing'

echo "one page of several, with a program's name that is markup"
cat >"$work/evil.trace" <<'END'
# program: <script>alert(1)</script>
1 0 R 7e0000001000 4096 5 0 0
2 0 D 7e0000001000 4096 5 0 0
END
expect 0 --html "$work/page" "$work/evil.trace" "$work/evil.trace" --cost 1000000,0
said 'mca-params.conf'
said '1.00 ms'
grep -q '<script>' "$work/page" && fail "a program's name is markup in the page"

echo "wrong files and words"
printf '1 0 R 7e0000001000 4096 5 0 0\n2 0 D' >"$work/cut.trace"
: >"$work/empty.trace"
echo '1 0 R 1000 9000000000000000000 5 0 0' >"$work/huge.trace"
printf '\3757zXZ\0and no more' >"$work/bad.xz"
head -c 2000 /dev/urandom >"$work/random.trace"
for name in cut.trace empty.trace huge.trace bad.xz random.trace missing.trace; do
  expect 1 "$work/$name"
  said "$name"
done
if command -v xz >/dev/null 2>&1; then
  for at in 40 400 3000; do # bytes that differ
    cp "$trace" "$work/flip.trace.xz" && chmod u+w "$work/flip.trace.xz"
    printf '\125\252\125' | dd of="$work/flip.trace.xz" bs=1 seek=$at conv=notrunc 2>/dev/null
    expect 1 "$work/flip.trace.xz"
    said flip.trace
  done
  head -c 200000000 /dev/zero | tr '\0' '\n' | xz -1 >"$work/bomb.xz"
  expect 1 "$work/bomb.xz"
  said 'expands more than'
fi
if command -v xz >/dev/null 2>&1; then
  echo "one byte that differs, or the rest cut off, anywhere in a small trace"
  xz -dc "$trace" | head -n 80 | grep -v '^# records:' >"$work/small.trace"
  size=$(wc -c <"$work/small.trace") tries=0 refused=0
  for at in $(seq 3 61 "$size"); do
    cp "$work/small.trace" "$work/hostile.trace"
    printf '\325' | dd of="$work/hostile.trace" bs=1 seek="$at" conv=notrunc 2>/dev/null
    head -c "$at" "$work/small.trace" >"$work/short.trace"
    for name in hostile.trace short.trace; do
      "$tool" "$work/$name" >"$work/out" 2>"$work/err"
      status=$?
      tries=$((tries + 1)) refused=$((refused + status))
      [ "$status" -le 1 ] || fail "$name, changed at byte $at: exit status $status"
      if [ "$status" -eq 1 ]; then
        [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$name, changed at byte $at: not one line, but $(cat "$work/err")"
        said "$name"
      fi
    done
  done
  echo "$tries tries, $refused refused"
  [ "$refused" -gt $((tries / 4)) ] || fail "only $refused of $tries were refused"
fi
expect 1 --html /nonexistent/page "$work/evil.trace"
said '/nonexistent/page cannot be written: No such file'

echo "a recording is not overwritten where the page's name was left out, and a page is"
cp "$work/evil.trace" "$work/kept.trace"
expect 2 --html "$work/kept.trace" "$work/evil.trace"
said 'kept.trace exists and is no page'
cmp -s "$work/evil.trace" "$work/kept.trace" || fail "the recording has other contents"
expect 0 --html "$work/page" "$work/evil.trace"
: >"$work/empty"
expect 0 --html "$work/empty" "$work/evil.trace"
expect 2
expect 2 --nonsense
expect 0 --help
said '--html'
[ "$failures" -eq 0 ] || { echo "$failures checks failed"; exit 1; }
