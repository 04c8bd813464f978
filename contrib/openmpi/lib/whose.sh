# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # the caller's
# whose.sh - Pinrail's messages when it does not serve, the output of ompi_info, and the effect of settings. Sourced.

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

# Memory events must arrive: 2 buffers per rank and round are unmapped.
hooks() {
  local monitor name events=30
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
  wanted mpirun_args || return 0
  mkdir -p "$work/empty"
  "$here/mpirun-args" --components "$work/empty" >"$work/args.out" 2>"$work/args" &&
    { fail_case mpirun_args "it succeeds without a component" "$work/args" && return; }
  [[ ! -s $work/args.out ]] || { fail_case mpirun_args "it printed options" "$work/args.out" && return; }
  cp "$build/contrib/openmpi/.libs/$component" "$work/empty" && truncate -s 2000 "$work/empty/$component"
  "$here/mpirun-args" --components "$work/empty" >"$work/args.out" 2>>"$work/args" &&
    { fail_case mpirun_args "it succeeds with half a component" "$work/args" && return; }
  mkdir -p "$work/bin"
  # As if this Open MPI had been built without the transports that ask for grdma.
  cat >"$work/bin/ompi_info" <<END
#!/bin/sh
$(command -v ompi_info) "\$@" | grep -v -E '^mca:(btl:(ofi|openib|uct|ugni|usnic)|smsc:knem):' || true
END
  chmod +x "$work/bin/ompi_info"
  PATH=$work/bin:$PATH "$here/mpirun-args" --components "$build/contrib/openmpi/.libs" >"$work/args.out" 2>>"$work/args" ||
    { fail_case mpirun_args "it fails where no transport asks for grdma" "$work/args" && return; }
  [[ -s $work/args.out ]] || { fail_case mpirun_args "no options where no transport asks for grdma" "$work/args" && return; }
  expect mpirun_args "$work/args" "there is no $component" "does not take" "Open MPI's own grdma" \
    "no transport that uses grdma"
}
