// SPDX-License-Identifier: BSD-3-Clause
// gtest.h - GoogleTest's header, which test/local.mk precompiles. Sources include <gtest/gtest.h> themselves, so that
// they compile without this file.
#ifndef PINRAIL_TEST_SUPPORT_GTEST_H
#define PINRAIL_TEST_SUPPORT_GTEST_H

#include <gtest/gtest.h>

#endif
