// SPDX-License-Identifier: BSD-3-Clause
// gtest.h - GoogleTest's header and those of the system that many tests read; used as base/core/precompiled.h is.
#ifndef PINRAIL_TEST_SUPPORT_GTEST_H
#define PINRAIL_TEST_SUPPORT_GTEST_H

#ifdef PINRAIL_WITHOUT_GTEST
#error "a program that is built without GoogleTest begins with its header: see gtest_objects in Makefile.am"
#endif

#include <gtest/gtest.h>

#include "base/core/precompiled.h"

#endif
