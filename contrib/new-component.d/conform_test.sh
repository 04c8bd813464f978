#!/bin/sh
# conform_test.sh - @FRAMEWORK@/@NAME@ keeps the rules of its framework. The output names each rule that is broken by its
# number in Pinrail's file RULES (share/doc/pinrail/RULES).
# shellcheck disable=SC2086 # PINRAIL_CONFORM may have options, such as --components
exec ${PINRAIL_CONFORM:-pinrail_conform} @FRAMEWORK@ "./@FRAMEWORK@_@NAME@.so" "$@"
