// SPDX-License-Identifier: BSD-3-Clause
// need_glibc.h - skips a case of a test that needs what glibc has and musl has not.
#ifndef PINRAIL_TEST_SUPPORT_NEED_GLIBC_H
#define PINRAIL_TEST_SUPPORT_NEED_GLIBC_H

#include <gtest/gtest.h>

#ifdef __GLIBC__
#define NEED_GLIBC(why) static_cast<void>(0)
#else
#define NEED_GLIBC(why) GTEST_SKIP() << "not with musl: " why
#endif

#endif
