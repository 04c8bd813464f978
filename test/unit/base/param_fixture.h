// SPDX-License-Identifier: BSD-3-Clause
// param_fixture.h - a registry with sources of a test's own, and declarations to fill it with.
#ifndef PINRAIL_TEST_UNIT_BASE_PARAM_FIXTURE_H
#define PINRAIL_TEST_UNIT_BASE_PARAM_FIXTURE_H

#include <gtest/gtest.h>

#include <string>

#include "base/param/param.h"
#include "test/support/files.h"

namespace pinrail::param {

inline pinrail_param_t declaration(const char* name, pinrail_param_type_t type, const char* fallback,
                                   pinrail_param_scope_t scope = PINRAIL_SCOPE_READONLY) {
  pinrail_param_t it{};
  it.size = sizeof(it);
  it.name = name;
  it.fallback = fallback;
  it.help = "A parameter of a test.";
  it.type = type;
  it.scope = scope;
  it.level = 5;
  return it;
}

// Sources that are all empty files or lists until a test fills them.
class ParamTest : public testing::Test {
 protected:
  ParamTest() {
    sources_.site_file = folder_.path("site.conf");
    sources_.user_file = folder_.path("user.conf");
    sources_.override_file = folder_.path("override.conf");
    sources_.environment_prefixes = {"PINRAIL_MCA_", "FOO_MCA_"};
  }

  Status read() { return registry_.read_sources(sources_); }

  // Declares mpool_test_<name>.
  Status declare(const pinrail_param_t& it, const char* const* prefixes = nullptr) {
    return registry_.declare("mpool", "test", &it, 1, prefixes);
  }

  // Reads the sources and declares mpool_test_x, a STRING with the default "default".
  void start() {
    ASSERT_TRUE(read().ok());
    ASSERT_TRUE(declare(declaration("x", PINRAIL_TYPE_STRING, "default", PINRAIL_SCOPE_SETTABLE)).ok());
  }

  pinrail_param_info_t info(const char* name) {
    pinrail_param_info_t it{};
    EXPECT_TRUE(registry_.find(name, &it).ok()) << name;
    return it;
  }

  std::string value(const char* name = "mpool_test_x") { return info(name).value; }

  test::TempFolder folder_;
  Sources sources_;
  Registry registry_;
};

}  // namespace pinrail::param

#endif
