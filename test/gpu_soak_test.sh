#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# soak over the driver double, shorter than by hand: the four modes, the kinds of memory, and frees that the monitor
# sees by itself.
set -eu
soak=test/gpu/soak
[ -x $soak ] || { echo "SKIP: $soak is not built: no cuda.h"; exit 77; }
check() {
  echo "soak --double $*"
  export CUDA_DOUBLE_GRANULARITY=16384 # rounds as short as with the other kinds
  line=$(timeout 120 $soak --double --rounds 1500 "$@" | tee /dev/stderr | tail -n 1)
  case $line in
    "soak: 1500 rounds, "*" bytes verified, 0 stale, 0 open handles left") ;;
    *) echo "gpu_soak_test: $* ends with: $line" >&2; exit 1 ;;
  esac
}
for mode in 1 2 3 4; do check --mode $mode; done
for kind in vmm pool; do
  for mode in 1 4; do check --mode $mode --kind $kind; done
done
if [ "$(uname -m)" = x86_64 ]; then
  for kind in ipc vmm pool; do check --mode 3 --monitor cuda --kind $kind; done
fi
for wrong in "--mode 5" "--rounds x" "--kind x" "--what"; do
  code=0
  # shellcheck disable=SC2086 # two words
  $soak $wrong >/dev/null 2>&1 || code=$?
  [ $code = 2 ] || { echo "gpu_soak_test: $wrong exits with $code" >&2; exit 1; }
done
