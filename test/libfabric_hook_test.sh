#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# libfabric_hook_test.sh - FI_HOOK=pinrail over providers that need no device; contrib/libfabric/run-guest --hook has one.
set -eu

[ -x test/libfabric/per_transfer ] || { echo "SKIP: no libfabric, or no shared libraries, or a sanitizer"; exit 77; }
exec "${srcdir:-..}/contrib/libfabric/hook-cases" "tcp;ofi_rxm" 127.0.0.1 basic
