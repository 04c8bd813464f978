#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Makes configure and the Makefile.in files. Needs autoconf, automake, libtool and pkg-config.
set -eu
cd "$(dirname "$0")"
for tool in autoconf automake libtoolize pkg-config; do
  if ! command -v "$tool" >/dev/null 2>&1; then
    echo "autogen.sh: $tool is missing; on Debian: apt-get install autoconf automake libtool pkg-config" >&2
    exit 1
  fi
done
mkdir -p contrib/m4 contrib/build-aux
exec autoreconf --force --install --verbose
