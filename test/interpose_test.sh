#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# interpose_test.sh - a short run of each combination of test/interpose/run: other allocators, other libraries' hooks.
set -eu
srcdir=${srcdir:-$(dirname "$0")/..}
[ -z "${PINRAIL_SANITIZE:-}" ] || { echo "skipped: a sanitizer has an allocator of its own"; exit 77; }
[ -e test/interpose/interpose ] || { echo "skipped: not built here (no io_uring, or another machine)"; exit 77; }
seconds=0.8
[ -z "${PINRAIL_TEST_LONG:-}" ] || seconds=1.5
output=$("$srcdir/test/interpose/run" --seconds $seconds --threads 4) || { echo "$output"; exit 1; }
echo "$output"
# A run in which every combination was skipped shows nothing.
echo "$output" | grep -q '^passed  libc ' || exit 77
