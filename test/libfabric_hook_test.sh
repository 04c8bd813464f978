#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# libfabric_hook_test.sh - FI_HOOK=pinrail over providers that need no device; contrib/libfabric/run-guest --hook has one.
set -eu

[ -x test/libfabric/per_transfer ] || { echo "SKIP: no libfabric, or no shared libraries, or a sanitizer"; exit 77; }
status=0 cases=0
out=$(mktemp) && trap 'rm -f "$out"' EXIT
# calls HOOK [VARIABLE=VALUE]...: what a program sees beside a double of a provider.
calls() {
  hook=$1
  shift
  env "FI_PROVIDER_PATH=$PWD/contrib/libfabric/.libs:$PWD/test/libfabric/.libs" "FI_HOOK=$hook" FI_PINRAIL_STATS=1 \
    "PINRAIL_MCA_mca_base_component_path=$PWD/components/.libs" "$@" timeout 300 test/libfabric/hook_calls >"$out" 2>&1 || status=1
  cat "$out"
  ! grep -q 'What happened' "$out" || { echo "FAIL: a program of libfabric is told about pools" && status=1; }
}
if [ -x test/libfabric/hook_calls ]; then
  calls pinrail
  calls pinrail FI_PINRAIL_SHARE=1
  calls "pinrail;pinrail"
fi
test/libfabric/import --kinds || status=1
"${srcdir:-..}/contrib/libfabric/hook-cases" "tcp;ofi_rxm" 127.0.0.1 basic || cases=$?
[ $status -ne 0 ] || status=$cases
exit $status
