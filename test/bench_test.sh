#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# bench_test.sh - the benchmarks run and report: every row is there and its figures are above zero. It does not
# judge speed. Runs in the build tree. Exit status 77: Google Benchmark or python3 is missing, or a sanitizer is on.
set -u
srcdir=${srcdir:-$(dirname "$0")/..}
run=$srcdir/test/bench/run
command -v python3 >/dev/null 2>&1 || { echo "SKIP: python3 is not installed"; exit 77; }
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "SKIP: UCX and Open MPI patch code, which sanitizers do not survive"; exit 77; }
if [ ! -x test/bench/bench_pinrail ]; then
  make -n bench 2>&1 | grep -q 'needs Google Benchmark' || { echo "FAIL: bench_pinrail is not built"; exit 1; }
  make bench >/dev/null 2>&1 && { echo "FAIL: make bench succeeds without Google Benchmark"; exit 1; }
  echo "SKIP: Google Benchmark was not found by configure"
  exit 77
fi
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
export PINRAIL_MCA_mpool_grdma_count_limit=1 # must not reach the programs

"$run" --help | grep -q -e --smoke || { echo "FAIL: --help says nothing of --smoke"; exit 1; }
timeout 800 "$run" --smoke --output "$work" >"$work/table" 2>"$work/progress"
status=$?
if [ "$status" -ne 0 ]; then
  echo "FAIL: run --smoke: exit status $status"
  cat "$work/table" "$work/progress"
  exit 1
fi

compare=$srcdir/test/bench/compare
"$compare" "$work" . >"$work/out" 2>&1
if [ $? -ne 2 ] || ! grep -q "there is no $work/test/bench/bench_pinrail" "$work/out"; then
  echo "FAIL: compare takes a folder without a build"
  cat "$work/out"
  exit 1
fi
# A build beside itself, with figures that mean nothing: only the form is looked at.
timeout 300 "$compare" . . --plan smoke --only cycle,pairs >"$work/out" 2>&1
if ! grep -Eq '^miss insert evict, of 2,048 .*[0-9]%' "$work/out" || grep -q '^failed:' "$work/out"; then
  echo "FAIL: compare"
  cat "$work/out"
  exit 1
fi
timeout 60 python3 - "$compare" <<'END' || { echo "FAIL: compare judges wrongly"; exit 1; }
import runpy, sys

compare = runpy.run_path(sys.argv[1], run_name="compare")


def judged(old, new):
    """Whether a row of these samples is called slower, at 3 percent."""
    samples = {name: [{"name": "cycle", "real_time": time} for time in times]
               for name, times in (("old", old), ("new", new))}
    group = compare["run"].Group(2048, "cycle")
    row = {"samples": samples, "groups": {"old": group, "new": group}}
    return compare["compared"](("miss_insert_evict", 2048, 1, None, 65536), row, 3)["slower"]


assert judged([100, 100, 100], [104, 104, 105])
assert not judged([100, 100, 100], [102, 102, 103])
assert not judged([100, 100, 100], [90, 99, 104, 104, 104])  # a third of its samples are faster
assert not judged([104, 104, 105], [100, 100, 100])
END

# What recorded programs pay. The counts are Pinrail's own tests' matter; here each column has figures.
if [ -x contrib/tools/pinrail_perf ] && contrib/tools/pinrail_perf --help | grep -q -e --compare; then
  timeout 120 env -u PINRAIL_MCA_mpool_grdma_count_limit "$srcdir/test/bench/traces" "$srcdir"/test/traces/nwchem.r0.trace.xz >"$work/out" 2>"$work/err"
  if grep -q 'no liblzma' "$work/err"; then
    echo "not checked: traces, for this build has no liblzma"
  elif ! grep -Eq '^nwchem\.r0 +[0-9]+ +[0-9,]+ +[0-9.]+ +105 +926 +0\.90 ' "$work/out"; then
    echo "FAIL: traces"
    cat "$work/out" "$work/err"
    exit 1
  elif [ -x test/bench/trace_ucx ] && ! grep -Eq '^nwchem\.r0 .* [0-9]+\.[0-9]+ +[0-9.]+$' "$work/out"; then
    echo "FAIL: traces has no figures of UCX"
    cat "$work/out" "$work/err"
    exit 1
  fi
fi

timeout 60 python3 - "$work" <<'END'
import json, os, sys

folder = sys.argv[1]
with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
    report = json.load(file)
table = open(os.path.join(folder, "table"), encoding="utf-8").read()
failures = []


def check(holds, what):
    if not holds:
        failures.append(what)


WORKS = {"hot": 1, "random": 4, "random_odd": 1, "random_odd_sizes": 1, "same_buffer": 2, "different_buffers": 2,
         "miss_insert_evict": 1, "miss_insert_evict_odd": 1, "miss_insert_evict_odd_sizes": 1, "invalidate_uncached": 1,
         "mixed": 24, "mixed_odd": 6, "mmap_munmap": 1, "fresh_mapping": 1, "memory": 2, "memory_odd": 2, "pause": 1,
         "tail_hit": 1, "tail_miss": 1}
found = {}
for row in report["rows"]:
    found[row["work"]] = found.get(row["work"], 0) + 1
for work, count in WORKS.items():
    check(found.get(work, 0) >= count, f"{work}: {found.get(work, 0)} rows, not {count}")
check(set(found) <= set(WORKS), f"rows of another name: {set(found) - set(WORKS)}")

present = [library for library in ("pinrail", "ucx", "ompi") if library not in report["absent"]]
broken = {error["library"] for error in report["errors"]}
check("pinrail" in present, "Pinrail itself was not measured")


def may_be_null(row, library):
    """A figure may be missing: samples of several threads on a busy machine, what a peer lacks, what failed in a peer."""
    if row["threads"] > 1 or library in broken:
        return True
    largest = max(row["regions"] for row in report["rows"])
    return library == "ompi" and row["regions"] == largest


for row in report["rows"]:
    name = f"{row['work']} of {row['regions']}, {row['threads']} threads, {row['percent']} %"
    unit = "bytes" if row["work"].startswith("memory") else "ns"
    for library in present:
        figure = row[f"{library}_{unit}"]
        if figure is None:
            check(may_be_null(row, library), f"{name}: {library} has no figure")
            check(row["threads"] == 1 or "why_null" in row or library != "pinrail", f"{name}: null without a reason")
        else:
            check(figure > 0, f"{name}: {library} {figure}")
            spread = row["samples"][library][unit]
            check(spread["n"] >= 1 and spread["min"] <= spread["median"] <= spread["max"], f"{name}: {library} {spread}")
    for peer in ("ucx", "ompi"):
        pair = row[f"{peer}_{unit}"], row[f"pinrail_{unit}"]
        check((row[f"ratio_{peer}"] is None) == (None in pair or 0 in pair), f"{name}: ratio of {pair}")
    check(row["rejected_samples"] >= 0, f"{name}: rejected samples")
    if row["threads"] > 1 and row["pinrail_ns"] is not None:
        check(row["throughput_ratio"] > 0, f"{name}: throughput ratio {row['throughput_ratio']}")
    if row["work"] in ("mmap_munmap", "fresh_mapping"):
        check(row.get("baseline_ns", 0) > 0, f"{name}: no baseline")
    if row["work"] == "pause":
        for figure in ("p9999_ns", "invalidate_ns", "quiet_max_ns", "quiet_p9999_ns", "hits"):
            check(row["samples"]["pinrail"].get(figure, 0) > 0, f"{name}: {figure}")
    if row["work"].startswith("tail_"):
        for library in present:
            of = row["samples"][library]
            rising = [row[f"{library}_ns"], of["p99_ns"], of["p999_ns"], of["longest_ns"]]
            check(of["of"] > 0 and rising == sorted(rising), f"{name}: {library} {rising} of {of['of']}")
            clock = [of["clock_p50_ns"], of["clock_p99_ns"], of["clock_p999_ns"], of["clock_longest_ns"]]
            # A hit may take one step of the clock; the row's figure is rounded.
            check(0 < clock[0] <= rising[0] + 0.01 and clock == sorted(clock), f"{name}: {library}: the clock's {clock}")
    if row["work"].startswith("miss_insert_evict"):
        for library in present:
            check(row["samples"][library]["registered_share"] == 1, f"{name}: {library} had hits")
    if row["work"].startswith("mixed") and row["percent"] and row["threads"] == 1:
        check(row["samples"]["pinrail"]["registered_share"] > 0, f"{name}: nothing was invalidated")

for key in ("cpu", "cores", "kernel"):
    check(report["machine"].get(key), f"machine: no {key}")
for library in present:
    check(report["versions"].get(library), f"no version of {library}")
check("hot" in table, "the table lacks rows")
# If other programs used the processors, all samples of two threads are rejected, and there is nothing to draw.
scaled = [row for row in report["rows"] if row["threads"] > 1 and row.get("throughput_ratio") is not None]
check(not scaled or "throughput / one thread" in table, "the table lacks the rows of two threads")
for picture in ("cost.svg", "threads.svg"):
    drawn = os.path.exists(os.path.join(folder, picture))
    check(drawn or "pictures left out" in table, f"there is no {picture}, and nothing says so")

for failure in failures:
    print(f"FAIL: {failure}")
peers = ", ".join(present[1:]) or "no peer"
print(f"{len(report['rows'])} rows, beside {peers}; {len(failures)} checks failed")
sys.exit(1 if failures else 0)
END
