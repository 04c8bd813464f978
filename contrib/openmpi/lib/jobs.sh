# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # here and build are the caller's, who reads others
# jobs.sh - runs MPI programs with Pinrail's grdma and with Open MPI's own, and reads their statistics. Sourced.

job_seconds=1800 # the programs themselves end if they hang (test/openmpi/common.h); this is for mpirun
own=() # options without which a job by Open MPI's own grdma would lack something
# There are more ranks than processors, and other programs use these too: a rank that is bound to one would wait for that
# one. In many containers the tests are run by root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
common=(--bind-to none --mca mpi_yield_when_idle 1 --mca pml ob1 --mca rcache_grdma_print_stats 1)
mpi_major=$(ompi_info --version 2>/dev/null | sed -n 's/^Open MPI v\([0-9]*\).*/\1/p')
component=mca_rcache_grdma.so
shared_memory=vader
if ((${mpi_major:-0} >= 5)); then
  component=mca_rcache_pinrail.so shared_memory=sm
  common+=(--map-by ":OVERSUBSCRIBE")
else
  common+=(--oversubscribe)
fi

# prepare BUILD: programs and the options that select ours; without an MPI all is skipped.
prepare() {
  local tool
  build=$(readlink -f -- "$1")
  make_work
  for tool in mpirun ompi_info fi_info; do
    command -v "$tool" >/dev/null || { echo "skipped openmpi: $tool is not installed (Debian: openmpi-bin, libfabric-bin)" && exit 77; }
  done
  if [[ ! -e $build/contrib/openmpi/.libs/$component ]]; then
    echo "skipped openmpi: $build has no component for Open MPI (its headers, or the build, are missing)" && exit 77
  fi
  make -s -C "$build" test/openmpi/jobs >"$work/make.log" 2>&1 || {
    tail -n 20 "$work/make.log"
    echo "failed openmpi: its program could not be built" && exit 1
  }
  select_ours
}

make_work() {
  work=$(mktemp -d "${TMPDIR:-/tmp}/pinrail-openmpi.XXXXXX")
  trap 'rm -rf -- "$work"' EXIT
}

select_ours() {
  read -ra ours < <("$here/mpirun-args" --path --components "$build/contrib/openmpi/.libs")
  ((${#ours[@]})) || { echo "failed openmpi: mpirun-args printed nothing" && exit 1; }
}

# job LOG RANKS [MPIRUN_OPTION]... -- PROGRAM [ARGUMENT]...: its exit status, and the time in LOG.took. Without
# address randomisation, so that two runs of one program allocate at the same addresses. In the foreground, so that
# ending the tests ends the job.
job() {
  local log=$1 ranks=$2 options=()
  shift 2
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  local program=$2
  shift 2
  local start=$EPOCHREALTIME status=0
  timeout --foreground -k 10 "$job_seconds" mpirun -np "$ranks" "${common[@]}" "${options[@]}" \
    setarch -R "$build/test/openmpi/jobs" "$program" "$@" >"$log" 2>&1 </dev/null || status=$?
  awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f s\n", to - from }' >"$log.took"
  return "$status"
}

# total LOG FIELD: the sum over all ranks of one number that print_stats prints (hits 1, misses 2, evictions 5).
total() {
  sed -n 's/.*grdma: stats (hit.*): //p' "$1" | awk -F / -v field="$2" '{ sum += $field } END { print sum + 0 }'
}
# lines LOG TEXT
lines() { grep -c -e "$2" "$1" || true; }

# right LOG RANKS: succeeds if every rank's cache printed its statistics and the program found its data right.
right() {
  (($(lines "$1" '^ok ') == 1 && $(lines "$1" 'grdma: stats (hit') >= $2))
}

# serves NAME RANKS OPTION... -- PROGRAM...: runs a job with our grdma, log in $work/NAME; reports a failure, and fails.
serves() {
  local name=$1 ranks=$2
  shift 2
  job "$work/$name" "$ranks" "${ours[@]}" "$@" || { fail_case "$name" "the job ended with an error" "$work/$name" && return 1; }
  right "$work/$name" "$ranks" ||
    { fail_case "$name" "wrong data, or a rank whose cache said nothing" "$work/$name" && return 1; }
  (($(lines "$work/$name" 'grdma: Pinrail') >= ranks)) || { fail_case "$name" "it was not Pinrail" "$work/$name" && return 1; }
}

served() {
  wanted "$1" || return 0
  serves "$@" && pass "$1"
}

# evicting: as serves, and registrations must have been evicted.
evicting() {
  local name=$1
  wanted "$name" || return 0
  serves "$@" || return 0
  echo "         $name: misses $(total "$work/$name" 2), evictions $(total "$work/$name" 5)"
  if (($(total "$work/$name" 5) == 0)); then
    fail_case "$name" "nothing was evicted" "$work/$name"
  else
    pass "$name"
  fi
}

# both NAME RANKS OPTION... -- PROGRAM...: runs the job with both, logs in $work/NAME and $work/NAME.own; reports a
# failure, and fails.
both() {
  local name=$1 ranks=$2 which
  shift 2
  job "$work/$name" "$ranks" "${ours[@]}" "$@" || { fail_case "$name" "the job ended with an error" "$work/$name" && return 1; }
  job "$work/$name.own" "$ranks" "${own[@]}" "$@" ||
    { fail_case "$name" "with Open MPI's own grdma the job ended with an error" "$work/$name.own" && return 1; }
  for which in "$work/$name" "$work/$name.own"; do
    right "$which" "$ranks" || { fail_case "$name" "wrong data, or a rank whose cache said nothing" "$which" && return 1; }
  done
  (($(lines "$work/$name" 'grdma: Pinrail') >= ranks)) || { fail_case "$name" "it was not Pinrail" "$work/$name" && return 1; }
  (($(lines "$work/$name.own" 'grdma: Pinrail') == 0)) || { fail_case "$name" "both were Pinrail" "$work/$name.own" && return 1; }
}

# compare NAME: prints hits, misses and time of both. The time is that of a whole job, on a machine that others may use.
compare() {
  echo "         $1: hits $(total "$work/$1" 1), misses $(total "$work/$1" 2), $(<"$work/$1.took");" \
    "Open MPI's own: hits $(total "$work/$1.own" 1), misses $(total "$work/$1.own" 2), $(<"$work/$1.own.took")"
}

# beside_own NAME RANKS OPTION... -- PROGRAM...: there must be at least the hits of Open MPI's own, over all ranks.
beside_own() {
  local name=$1
  wanted "$name" || return 0
  both "$@" || return 0
  compare "$name"
  if (($(total "$work/$name" 1) < $(total "$work/$name.own" 1))); then
    fail_case "$name" "fewer hits than Open MPI's own grdma" "$work/$name"
  else
    pass "$name"
  fi
}

# any_hits_beside_own NAME RANKS OPTION... -- PROGRAM...: for threads. Their addresses, and the order of their requests,
# differ from run to run, so the two caches see different requests.
any_hits_beside_own() {
  local name=$1
  wanted "$name" || return 0
  both "$@" || return 0
  compare "$name"
  if (($(total "$work/$name" 1) == 0)); then
    fail_case "$name" "nothing was a hit" "$work/$name"
  else
    pass "$name"
  fi
}

# microseconds LOG: prints the time of one look-up.
microseconds() { sed -n 's/^many: .*, \([0-9.]*\) us again$/\1/p' "$1"; }

# many_beside_own NAME BUFFERS OPTION...: prints the times; all requests must have been hits.
many_beside_own() {
  local name=$1 buffers=$2 operations=2000
  shift 2
  wanted "$name" || return 0
  both "$name" 2 "$@" -- many "$buffers" "$operations" || return 0
  echo "         $name: $(microseconds "$work/$name") us, Open MPI's own $(microseconds "$work/$name.own") us, ratio" \
    "$(awk -v a="$(microseconds "$work/$name")" -v b="$(microseconds "$work/$name.own")" 'BEGIN { printf "%.0f", b / a }')"
  if (($(total "$work/$name" 1) < operations || $(total "$work/$name" 2) < buffers)); then
    fail_case "$name" "not all of $operations were hits on $buffers buffers" "$work/$name"
  else
    pass "$name"
  fi
}
