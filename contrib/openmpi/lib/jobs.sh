# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # here, build, pattern and work are the caller's, who reads others
# jobs.sh - runs MPI programs with Pinrail's grdma and with Open MPI's own, and reads their statistics, Pinrail's messages when
# it does not serve, the output of ompi_info, and the effect of settings; and prints the result of each case, with the log of
# one that failed. Sourced.

passed=0 failed=0 skipped=0

# wanted NAME
# shellcheck disable=SC2053 # a pattern
wanted() { [[ $1 == $pattern ]]; }

pass() { passed=$((passed + 1)) && echo "passed $1"; }
skip() { skipped=$((skipped + 1)) && echo "skipped $1: $2"; }

# fail_case NAME WHY LOG: in the log the program's output stands above mpirun's report of its end.
fail_case() {
  failed=$((failed + 1))
  echo "failed $1: $2"
  tail -n 40 -- "$3" | sed 's/^/  | /'
}

summary() {
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0 && passed > 0))
}

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

# ran NAME STATUS LOG: if the job failed, reports it and fails.
ran() { (($2 == 0)) || { fail_case "$1" "the job ended with an error ($2)" "$3" && return 1; }; }

# expect NAME LOG TEXT...: passes if the log has each of the texts.
expect() {
  local name=$1 log=$2 text
  shift 2
  for text; do
    grep -q -F -e "$text" "$log" || { fail_case "$name" "it does not say \"$text\"" "$log" && return; }
  done
  pass "$name"
}

# invalidated LOG: prints the number of registrations that events ended, over all ranks.
invalidated() { sed -n 's/.*grdma: Pinrail.*: \([0-9]*\) invalidated.*/\1/p' "$1" | awk '{ sum += $1 } END { print sum + 0 }'; }

# Memory events must arrive: each round unmaps two buffers of each rank, which lie in one registration or in two. Those of
# the last round may end with the job.
hooks() {
  local monitor name events=18
  for monitor in openmpi patcher; do
    name=hooks_$monitor
    wanted "$name" || continue
    job "$work/$name" 2 "${ours[@]}" "${one_sided[@]}" --mca rcache_grdma_monitor "$monitor" -- remap 10
    ran "$name" $? "$work/$name" || continue
    echo "         $name: $(invalidated "$work/$name") invalidated"
    if (($(invalidated "$work/$name") < events)); then
      fail_case "$name" "fewer than $events registrations were invalidated" "$work/$name"
    else
      pass "$name"
    fi
  done
  # Pinrail's own parameter is above what the component says of Open MPI's hooks.
  wanted monitor_named || return 0
  PINRAIL_MCA_monitor=patcher job "$work/named" 2 "${ours[@]}" "${one_sided[@]}" -- rma 1
  ran monitor_named $? "$work/named" || return 0
  expect monitor_named "$work/named" "serves this job" "memory events from patcher"
}

# setting NAME CHECK OPTION...: runs rma with the options; CHECK is a condition on hits, misses, evictions.
setting() {
  local name=$1 condition=$2 hits misses evictions
  shift 2
  wanted "$name" || return 0
  job "$work/$name" 2 "${ours[@]}" "${one_sided[@]}" "$@" -- rma 2
  ran "$name" $? "$work/$name" || return 0
  right "$work/$name" 2 || { fail_case "$name" "wrong data" "$work/$name" && return; }
  hits=$(total "$work/$name" 1) misses=$(total "$work/$name" 2) evictions=$(total "$work/$name" 5)
  echo "         $name: hits $hits, misses $misses, evictions $evictions"
  if ((condition)); then pass "$name"; else fail_case "$name" "not: $condition" "$work/$name"; fi
}

# The options of README, as far as other cases have none of them.
readme_options() {
  setting passed_on_by_x 'evictions > 0' -x PINRAIL_MCA_mpool_grdma_count_limit=3
  # Open MPI 5 lets no component outside of its library serve MPI_Alloc_mem in this way.
  ((mpi_major >= 5)) ||
    setting mpool_base_default_hints 'hits > 0' --mca mpool_base_default_hints mpool=pinrail
}

# Lines that begin with mpirun in a README, as they stand there, with a program of the tests. They must be served, say so
# once, and print no complaint of PMIx's.
readme_lines() {
  local line count=0 name
  while IFS= read -r line; do
    count=$((count + 1)) name=readme_line_$count
    wanted "$name" || continue
    readme_line "$name" "${line/pinrail-mpirun-args/contrib/openmpi/mpirun-args}"  # its name once it is installed
  done < <(sed -nE 's/^(    )?(\$ )?(mpirun \$\([^)]*mpirun-args.* \.\/program).*/\3/p' "$here/README" "$here/../doc/using.md")
  ((count >= 4)) || fail_case readme_lines "only $count lines were found" /dev/null
}

# readme_line NAME LINE: the folder of the component and the program are put in, and the ranks share the processors.
readme_line() {
  local name=$1 line=$2 log=$work/$1 status=0
  line=${line//contrib\/openmpi\/mpirun-args/"$here/mpirun-args" --components "$build/contrib/openmpi/.libs"}
  line=${line/.\/program/"$build/test/openmpi/jobs" rma 2}
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
    timeout --foreground -k 10 300 bash -c "$line" >"$log" 2>&1 </dev/null || status=$?
  ran "$name" "$status" "$log" || return 0
  (($(lines "$log" '^ok ') == 1)) || { fail_case "$name" "wrong data" "$log" && return; }
  (($(lines "$log" 'Pinrail .* serves this job: registrations of the transport ofi; memory events from openmpi') == 1)) ||
    { fail_case "$name" "not said once that Pinrail serves" "$log" && return; }
  (($(lines "$log" 'bad prefix\|search for PMIx components') == 0)) || { fail_case "$name" "PMIx complains" "$log" && return; }
  [[ $line != *print_stats* ]] || (($(total "$log" 1) > 0)) || { fail_case "$name" "no hits" "$log" && return; }
  pass "$name"
}

settings() {
  setting leave_pinned_0 'hits == 0 && misses > 24 && evictions == 0' --mca mpi_leave_pinned 0
  setting leave_pinned_1 'hits > 0 && misses <= 24' --mca mpi_leave_pinned 1
  setting count_limit 'evictions > 0' --mca rcache_grdma_count_limit 3
  setting size_limit 'evictions > 0' --mca rcache_grdma_size_limit 6M
  setting pinrail_settings 'evictions > 0' --mca rcache_grdma_settings mpool_grdma_count_limit=3
  bad_setting
  shown
}

bad_setting() {
  wanted bad_setting || return 0
  job "$work/bad" 2 "${ours[@]}" "${one_sided[@]}" --mca rcache_grdma_size_limit lots -- rma 1 &&
    { fail_case bad_setting "the job ran all the same" "$work/bad" && return; }
  expect bad_setting "$work/bad" "mpool_grdma_size_limit" "lots" "no grdma serves this process"
}

shown() {
  wanted ompi_info || return 0
  OMPI_MCA_mca_base_component_path=${ours[2]} ompi_info --param rcache grdma --level 9 >"$work/info" 2>&1
  expect ompi_info "$work/info" rcache_grdma_served_by rcache_grdma_monitor rcache_grdma_size_limit \
    rcache_grdma_count_limit rcache_grdma_settings rcache_grdma_print_stats
}

# A folder with the component that stands first in the path, and Open MPI's own after or before it.
own_folder() { ompi_info --path pkglibdir --parsable | sed -n 's/^path:pkglibdir://p'; }

whose() {
  local libs=$build/contrib/openmpi/.libs
  if ((mpi_major < 5)); then
    whose_missing "$libs"
    whose_behind "$libs"
  fi
  whose_other_version
  whose_unused
  whose_args
}

# Only the component that checks is in the folder.
whose_missing() {
  wanted whose_missing || return 0
  mkdir -p "$work/without"
  cp "$1/mca_rcache_pinrail.so" "$work/without"
  job "$work/missing" 2 --mca mca_base_component_path "$work/without:$(own_folder)" "${one_sided[@]}" -- rma 1
  ran whose_missing $? "$work/missing" || return 0
  expect whose_missing "$work/missing" "served by the rcache grdma of $(own_folder)/mca_rcache_grdma.so"
}

whose_behind() {
  wanted whose_behind || return 0
  job "$work/behind" 2 --mca mca_base_component_path "$(own_folder):$1" "${one_sided[@]}" -- rma 1
  ran whose_behind $? "$work/behind" || return 0
  (($(lines "$work/behind" 'What happened') == 1)) ||
    { fail_case whose_behind "not said once for the node" "$work/behind" && return; }
  expect whose_behind "$work/behind" "served by the rcache grdma of $(own_folder)/mca_rcache_grdma.so" "name Pinrail's folder first"
}

# An Open MPI that reports another version.
whose_other_version() {
  wanted whose_other_version || return 0
  echo 'const char opal_version_string[] = "9.8.7";' >"$work/other.c"
  "${CC:-cc}" -shared -fPIC -o "$work/other.so" "$work/other.c" || { skip whose_other_version "no C compiler" && return; }
  job "$work/other" 2 "${ours[@]}" "${one_sided[@]}" -x "LD_PRELOAD=$work/other.so${LD_PRELOAD:+:$LD_PRELOAD}" -- rma 1 || true
  local follows="no grdma serves this process"
  ((mpi_major < 5)) || follows="everything works; Pinrail caches nothing"
  expect whose_other_version "$work/other" "this is Open MPI 9.8.7" "$follows"
}

# No transport of the job asks for grdma: one line for the node.
whose_unused() {
  wanted whose_unused || return 0
  job "$work/unused" 2 "${ours[@]}" --mca btl "self,$shared_memory" -- two_sided 1
  ran whose_unused $? "$work/unused" || return 0
  (($(lines "$work/unused" "Pinrail's grdma served nothing") == 1)) ||
    { fail_case whose_unused "not said once for the node" "$work/unused" && return; }
  expect whose_unused "$work/unused" "no transport that asks for it"
}

whose_args() {
  local at which
  wanted mpirun_args || return 0
  mkdir -p "$work/empty"
  "$here/mpirun-args" --components "$work/empty" >"$work/args.out" 2>"$work/args" &&
    { fail_case mpirun_args "it succeeds without a component" "$work/args" && return; }
  [[ ! -s $work/args.out ]] || { fail_case mpirun_args "it printed options" "$work/args.out" && return; }
  cp "$build/contrib/openmpi/.libs/$component" "$work/empty" && truncate -s 2000 "$work/empty/$component"
  "$here/mpirun-args" --components "$work/empty" >"$work/args.out" 2>>"$work/args" &&
    { fail_case mpirun_args "it succeeds with half a component" "$work/args" && return; }
  # mpirun gets its options as words, and splits the path at colons.
  for at in "a blank" a:colon; do
    mkdir -p "$work/$at" && cp "$build/contrib/openmpi/.libs/$component" "$work/$at"
    "$here/mpirun-args" --no-check --components "$work/$at" >"$work/args.out" 2>>"$work/args" &&
      { fail_case mpirun_args "it succeeds for the folder \"$at\"" "$work/args" && return; }
  done
  (unset OMPI_MCA_mca_base_component_path && "$here/mpirun-args" --components "$build/contrib/openmpi/.libs") >"$work/args.out" 2>>"$work/args"
  OMPI_MCA_mca_base_component_path=SYS_DEFAULT:USR_DEFAULT "$here/mpirun-args" --components "$build/contrib/openmpi/.libs" \
    2>>"$work/args" | cmp - "$work/args.out" >>"$work/args" 2>&1 ||
    { fail_case mpirun_args "other folders by Open MPI's names for its own" "$work/args" && return; }
  mkdir -p "$work/bin"
  # As if this Open MPI had been built without the transports that ask for grdma.
  cat >"$work/bin/ompi_info" <<END
#!/bin/sh
$(command -v ompi_info) "\$@" | grep -v -E '^mca:(btl:(ofi|openib|uct|ugni|usnic)|smsc:knem):' || true
END
  chmod +x "$work/bin/ompi_info"
  for which in --path --; do
    PATH=$work/bin:$PATH "$here/mpirun-args" ${which%--} --components "$build/contrib/openmpi/.libs" >"$work/args.out" 2>>"$work/args" ||
      { fail_case mpirun_args "it fails where no transport asks for grdma" "$work/args" && return; }
  done
  [[ -s $work/args.out ]] || { fail_case mpirun_args "no options where no transport asks for grdma" "$work/args" && return; }
  expect mpirun_args "$work/args" "there is no $component" "does not take" "Open MPI's own grdma" \
    "no transport that uses grdma" "without the transport ofi" "a blank or a colon"
}
