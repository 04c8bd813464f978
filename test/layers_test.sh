#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# layers_test.sh - contrib/workshop/layers/layers.svg shows the includes as they are.
set -eu
cd "${srcdir:-$(dirname "$0")/..}"
command -v python3 >/dev/null || { echo "layers_test: python3 is not installed" && exit 77; }
contrib/workshop/layers/draw --check
