// SPDX-License-Identifier: BSD-3-Clause
// trust_test.cc - files and folders that others may change are neither read nor loaded from by root. trust/X2.
#include "base/core/trust.h"

#include <unistd.h>

#include "test/unit/base/loader_fixture.h"
#include "test/unit/base/param_fixture.h"

namespace pinrail {
namespace {

constexpr uid_t kOther = 12345;

TEST(Trust, only_root_the_user_and_the_owner_of_pinrail_may_change_a_file) {
  const trust::Owners owners{1000, 2000};
  const auto why = [&](uid_t user, gid_t group, mode_t mode) {
    struct stat about {};
    about.st_uid = user;
    about.st_gid = group;
    about.st_mode = S_IFREG | mode;
    return trust::why_untrusted(about, owners);
  };
  for (const uid_t user : {0u, 1000u, 2000u}) EXPECT_EQ(why(user, 50, 0755), "");
  EXPECT_EQ(why(3000, 0, 0755), "belongs to user 3000");
  EXPECT_EQ(why(0, 0, 0757), "may be written by all users (chmod go-w)");
  EXPECT_EQ(why(0, 50, 0775), "may be written by group 50 (chmod go-w)");
  EXPECT_EQ(why(0, 0, 0775), "") << "root's own";
}

TEST(Trust, the_file_that_this_is_in_is_known) { EXPECT_NE(trust::own_file().find("base_test"), std::string::npos); }

// These change owners and modes.
#define NEEDS_ROOT \
  if (geteuid() != 0) GTEST_SKIP() << "only root has to care"

class TrustOfComponents : public loader::LoaderTest {
 protected:
  void expect_refused(const std::string& why) {
    EXPECT_TRUE(discover().ok());
    EXPECT_EQ(said(why), true) << said_;
    loader_->open("mpool").ignore();
    EXPECT_EQ(opened(), "");
  }
};

TEST_F(TrustOfComponents, a_folder_that_others_may_write_is_passed_over_with_one_message) {
  NEEDS_ROOT;
  write("mpool_tiny", loader::Image());
  ASSERT_EQ(chmod(folder_.path().c_str(), 01777), 0);
  expect_refused("no component is loaded from " + folder_.path() + ": it may be written by all users");
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(chown(folder_.path().c_str(), kOther, 0), 0);
  expect_refused("belongs to user 12345");
  ASSERT_EQ(chown(folder_.path().c_str(), 0, 0), 0);
  EXPECT_TRUE(discover().ok());
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(opened(), "tiny");
}

TEST_F(TrustOfComponents, a_file_that_others_may_write_is_skipped_also_behind_a_link) {
  NEEDS_ROOT;
  const std::string file = write("mpool_tiny", loader::Image());
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  expect_refused("skipped " + file + ": it may be written by all users");
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  ASSERT_EQ(chown(file.c_str(), kOther, 0), 0);
  expect_refused("belongs to user 12345");
  const test::TempFolder elsewhere;
  const std::string real = elsewhere.write("mpool_tiny.so", loader::Image().bytes());
  ASSERT_EQ(chmod(elsewhere.path().c_str(), 0777), 0);
  ASSERT_EQ(unlink(file.c_str()), 0);
  ASSERT_EQ(symlink(real.c_str(), file.c_str()), 0);
  expect_refused("is in " + elsewhere.path() + "/, which may be written by all users");
}

class TrustOfParameters : public param::ParamTest {
 protected:
  Status read_anew() const { return param::Registry().read_sources(sources_); }
};

TEST_F(TrustOfParameters, a_file_that_others_may_write_sets_nothing) {
  NEEDS_ROOT;
  folder_.write("user.conf", "mpool_test_x = 1\n");
  folder_.write("site.conf", "");
  ASSERT_EQ(chmod(sources_.user_file.c_str(), 0666), 0);
  std::string said = test::said_by([this] { EXPECT_TRUE(read_anew().ok()); });
  EXPECT_TRUE(test::has(said, sources_.user_file) && test::has(said, "it may be written by all users")) << said;
  ASSERT_EQ(chmod(sources_.user_file.c_str(), 0644), 0);
  EXPECT_EQ(test::said_by([this] { EXPECT_TRUE(read_anew().ok()); }), "");
  ASSERT_EQ(chown(sources_.site_file.c_str(), kOther, 0), 0);
  said = test::said_by([this] { EXPECT_TRUE(read_anew().is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(test::has(said, sources_.site_file) && test::has(said, "belongs to user 12345")) << said;
}

}  // namespace
}  // namespace pinrail
