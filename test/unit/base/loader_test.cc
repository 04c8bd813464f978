// SPDX-License-Identifier: BSD-3-Clause
// loader_test.cc - which components are found, and which are refused before any of their code runs.
#include "test/unit/base/fixtures.h"

#include <sys/stat.h>

namespace pinrail::loader {
namespace {

using test::times;

// A component that is linked in, to be changed.
pinrail_status_t open_nothing(const pinrail_host_t*, void**) { return PINRAIL_SUCCESS; }
const pinrail_mpool_ops_t kOps = empty_table();

pinrail_component_t built_in(const char* name) {
  pinrail_component_t it{};
  it.size = sizeof(it);
  it.abi = PINRAIL_MPOOL_ABI;
  it.priority = 5;
  memcpy(it.framework, "mpool", sizeof("mpool"));
  strncpy(it.name, name, sizeof(it.name) - 1);
  it.version = "1.0.0";
  it.help = "Linked in.";
  it.open = open_nothing;
  it.ops = &kOps;
  return it;
}

TEST_F(LoaderTest, a_file_in_a_folder_of_the_path_is_found_and_described) {
  const std::string path = write("mpool_tiny", Image());
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(said_, "");
  const Listed it = listed("tiny");
  EXPECT_EQ(it.framework, "mpool");
  EXPECT_EQ(it.version, "1.2.3");
  EXPECT_EQ(it.help, "For tests.");
  EXPECT_EQ(it.priority, 10);
  EXPECT_EQ(it.path, path);
  EXPECT_TRUE(it.selected);
  EXPECT_TRUE(it.status.ok());
}

TEST_F(LoaderTest, its_parameters_and_those_of_its_framework_are_declared) {
  write("mpool_tiny", Image());
  ASSERT_TRUE(discover().ok());
  pinrail_param_info_t info{};
  for (const char* name : {"mca_base_component_path", "mca_base_verbose", "leave_pinned", "mpool", "mpool_base_verbose",
                           "mpool_tiny_open_says", "mpool_tiny_verbose", "rcache", "rcache_base_verbose"}) {
    EXPECT_TRUE(params_->find(name, &info).ok()) << name;
  }
}

TEST_F(LoaderTest, names_that_are_no_components_are_left_alone) {
  folder_.write("mpool_tiny.la", "text");
  folder_.write("mpool_tiny.so.1", "text");
  folder_.write("btl_tcp.so", "text");
  folder_.write("mpool_.so", "text");
  folder_.write("mpool_a-b.so", "text");
  folder_.write("mpool_" + std::string(32, 'x') + ".so", "text");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(said_, "");
  EXPECT_TRUE(loader_->listed().empty());
}

TEST_F(LoaderTest, what_is_no_component_is_skipped_with_one_message_that_names_file_and_reason) {
  const std::string empty = folder_.write("mpool_empty.so", "");
  const std::string text = folder_.write("mpool_text.so", "#!/bin/sh\n");
  const std::string folder = folder_.path("mpool_folder.so");
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  write("mpool_tiny", Image());
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(times(said_, "\n"), 3U) << said_;
  EXPECT_TRUE(said("skipped " + empty + ": it is not an ELF file")) << said_;
  EXPECT_TRUE(said("skipped " + text + ": it is not an ELF file")) << said_;
  EXPECT_TRUE(said("skipped " + folder + ": it is a folder")) << said_;
  EXPECT_EQ(listed("empty").reason, "is not an ELF file");
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(opened(), "tiny");
}

struct Wrong {
  const char* what;
  Image image;
  pinrail_status_t status;
  std::string reason;
};

std::vector<Wrong> wrong_images() {
  const std::string ours = std::to_string(sizeof(pinrail_component_t));
  const std::string table = std::to_string(sizeof(pinrail_mpool_ops_t));
  const std::string our_abi = std::to_string(PINRAIL_MPOOL_ABI);
  return {
      {"another ABI", Image().abi(PINRAIL_MPOOL_ABI + 1), PINRAIL_ERR_VERSION,
       "was built against another Pinrail: mpool ABI " + std::to_string(PINRAIL_MPOOL_ABI + 1) +
           " (this library: " + our_abi + ")"},
      {"another size", Image().size(64), PINRAIL_ERR_VERSION,
       "was built against another Pinrail: descriptor size 64 (this library: " + ours + ")"},
      {"both", Image().abi(7).size(64), PINRAIL_ERR_VERSION,
       "was built against another Pinrail: mpool ABI 7 (this library: " + our_abi +
           "), descriptor size 64 (this library: " + ours + ")"},
#ifdef __GLIBC__  // musl does not tell a symbol's size, and a component there needs no other library
      {"a size larger than the symbol", Image().size(1000), PINRAIL_ERR_VERSION,
       "exports a symbol pinrail_component of " + ours + " bytes (this library: " + ours + ")"},
      {"a symbol without a size", Image().symbol_size(0), PINRAIL_ERR_ERROR,
       "exports a symbol pinrail_component that lies nowhere"},
      {"a missing library", Image().replace("libstdc++.so", "libstdcxx.so"), PINRAIL_ERR_ERROR,
       "cannot be loaded: libstdcxx.so.6: cannot open shared object file: No such file or directory"},
#endif
      {"a smaller table", Image().table_size(16), PINRAIL_ERR_VERSION,
       "was built against another Pinrail: size of the table 16 (this library: " + table + ")"},
      {"another framework", Image().framework("rcache"), PINRAIL_ERR_ERROR,
       "says that it is of framework \"rcache\", not \"mpool\""},
      {"another name", Image().name("other"), PINRAIL_ERR_ERROR,
       "says that its name is \"other\", its file name says \"tiny\""},
      {"no symbol", Image().replace("pinrail_component", "pinrail_komponent"), PINRAIL_ERR_ERROR,
       "exports no symbol pinrail_component"},
  };
}

TEST_F(LoaderTest, a_wrong_component_is_refused_in_one_line_with_both_sides) {
  for (const Wrong& wrong : wrong_images()) {
    SCOPED_TRACE(wrong.what);
    const std::string path = write("mpool_tiny", wrong.image);
    ASSERT_TRUE(discover().ok());
    EXPECT_EQ(said_, "[pinrail:loader] skipped " + path + ": it " + wrong.reason + "\n");
    EXPECT_TRUE(listed("tiny").status.is(wrong.status));
    EXPECT_EQ(listed("tiny").reason, wrong.reason);
    EXPECT_TRUE(open().ok());
    EXPECT_EQ(opened(), "");
  }
}

TEST_F(LoaderTest, a_wrong_component_that_was_asked_for_is_an_error) {
  set("mpool", "tiny");
  for (const Wrong& wrong : wrong_images()) {
    SCOPED_TRACE(wrong.what);
    const std::string path = write("mpool_tiny", wrong.image);
    ASSERT_TRUE(discover().ok());
    EXPECT_EQ(said_, "") << "one message, and that comes with the error";
    EXPECT_TRUE(open().is(wrong.status));
    EXPECT_TRUE(said("requested by the program") && said(path + " " + wrong.reason)) << said_;
  }
}

TEST_F(LoaderTest, a_larger_table_of_the_same_abi_is_taken) {
  write("mpool_tiny", Image().table_size(sizeof(pinrail_mpool_ops_t) + 8));
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(said_, "");
}

TEST_F(LoaderTest, the_earlier_folder_hides_the_later_one) {
  const test::TempFolder earlier;
  const std::string hidden = write("mpool_tiny", Image().priority(1));
  const std::string taken = earlier.write("mpool_tiny.so", Image().priority(2).bytes());
  set("mca_base_component_path", earlier.path() + ":" + folder_.path());
  set("mca_base_verbose", "50");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(listed("tiny").path, taken);
  EXPECT_EQ(listed("tiny").priority, 2);
  EXPECT_TRUE(said(hidden + " is hidden by the mpool component tiny (" + taken + ")")) << said_;
  set("mca_base_verbose", "0");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(said_, "");
}

TEST_F(LoaderTest, one_name_may_stand_in_two_frameworks) {
  write("mpool_tiny", Image());
  folder_.write("rcache_tiny.so", Image().framework("rcache").bytes());
  ASSERT_TRUE(discover().ok());
  ASSERT_EQ(loader_->listed().size(), 2U);
  EXPECT_EQ(loader_->listed()[1]->framework, "rcache");
}

TEST_F(LoaderTest, a_folder_that_was_named_and_is_missing_does_not_stop_the_search) {
  write("mpool_tiny", Image());
  set("mca_base_component_path", folder_.path("none") + ":" + folder_.path());
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(said("no components in " + folder_.path("none"))) << said_;
  EXPECT_TRUE(listed("tiny").status.ok());
}

TEST_F(LoaderTest, what_is_built_in_hides_a_file) {
  static const pinrail_component_t component = built_in("tiny");
  built_in_ = {&component, nullptr};
  write("mpool_tiny", Image());
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(listed("tiny").path, "built in");
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(opened(), "tiny");
}

TEST_F(LoaderTest, what_is_built_in_is_compared_too) {
  pinrail_component_t no_table = built_in("no_table"), no_open = built_in("no_open"), no_params = built_in("no_params"),
                      old = built_in("old"), stranger = built_in("stranger");
  no_table.ops = nullptr;
  no_open.open = nullptr;
  no_params.param_count = 3;
  old.abi = PINRAIL_MPOOL_ABI - 1;
  memcpy(stranger.framework, "btl\0\0", 6);
  built_in_ = {&no_table, &no_open, &no_params, &old, &stranger, nullptr};
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(listed("no_table").reason, "has no table of functions");
  EXPECT_EQ(listed("no_open").reason, "has no open()");
  EXPECT_EQ(listed("no_params").reason, "counts parameters but has none");
  EXPECT_TRUE(listed("old").status.is(PINRAIL_ERR_VERSION));
  EXPECT_EQ(loader_->listed().size(), 4U) << "an unknown framework is not listed";
}

TEST_F(LoaderTest, a_component_that_is_not_selected_is_not_even_mapped) {
  // Mapping this one fails, and says so.
  write("mpool_tiny", Image().replace("libstdc++.so", "libstdcxx.so"));
  for (const char* list : {"^tiny", "other"}) {
    set("mpool", list);
    ASSERT_TRUE(discover().ok());
    EXPECT_EQ(said_, "") << list;
    EXPECT_FALSE(listed("tiny").selected) << list;
    EXPECT_TRUE(test::has(listed("tiny").reason, list)) << listed("tiny").reason;
  }
}

TEST_F(LoaderTest, parameters_of_one_that_is_not_selected_are_not_unknown) {
  write("mpool_tiny", Image());
  set("mpool", "^tiny");
  set("mpool_tiny_open_says", "-9");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(test::said_anew_by([this] { params_->finish({}); }), "");
}

TEST_F(LoaderTest, a_selection_list_that_is_none_is_an_error) {
  set("mpool", "a,^b");
  EXPECT_TRUE(discover().is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(said("\"a,^b\" for parameter mpool, from the program")) << said_;
}

TEST_F(LoaderTest, a_component_that_declares_wrongly_is_skipped) {
  pinrail_component_t wrong = built_in("wrong");
  const pinrail_param_t params[] = {
      {sizeof(pinrail_param_t), "x", "0", "", PINRAIL_TYPE_INT, PINRAIL_SCOPE_READONLY, 0, nullptr, 0, 0, nullptr}};
  wrong.params = params;
  wrong.param_count = 1;
  built_in_ = {&wrong, nullptr};
  EXPECT_TRUE(discover().ok());
  EXPECT_EQ(times(said_, "skipped built in: it declares its parameters wrongly"), 1U) << said_;
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(opened(), "");
}

TEST_F(LoaderTest, one_without_version_and_help_is_listed_with_empty_ones) {
  pinrail_component_t bare = built_in("bare");
  bare.version = bare.help = nullptr;
  built_in_ = {&bare, nullptr};
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(listed("bare").selected);
  EXPECT_EQ(listed("bare").version + listed("bare").help, "");
}

TEST_F(LoaderTest, a_verbosity_is_declared_for_each_component_with_its_bounds) {
  write("mpool_tiny", Image());
  for (const char* value : {"0", "100"}) {
    set("mpool_tiny_verbose", value);
    EXPECT_TRUE(discover().ok()) << value << said_;
  }
  for (const char* value : {"-1", "101"}) {
    set("mpool_tiny_verbose", value);
    EXPECT_TRUE(discover().is(PINRAIL_ERR_BAD_PARAM)) << value;
    EXPECT_TRUE(said("for parameter mpool_tiny_verbose")) << said_;
  }
}

TEST_F(LoaderTest, one_that_declares_its_own_verbosity_keeps_it) {
  pinrail_component_t own = built_in("own");
  const pinrail_param_t params[] = {{sizeof(pinrail_param_t), "first", "0", "Its first.", PINRAIL_TYPE_INT,
                                     PINRAIL_SCOPE_READONLY, 9, nullptr, 0, 9, nullptr},
                                    {sizeof(pinrail_param_t), "verbose", "7", "Its own.", PINRAIL_TYPE_INT,
                                     PINRAIL_SCOPE_READONLY, 9, nullptr, 0, 9, nullptr}};
  own.params = params;
  own.param_count = 2;
  built_in_ = {&own, nullptr};
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(said_, "");
  EXPECT_TRUE(listed("own").status.ok());
  pinrail_param_info_t info{};
  ASSERT_TRUE(params_->find("mpool_own_verbose", &info).ok());
  EXPECT_STREQ(info.declaration->help, "Its own.");
}

TEST_F(LoaderTest, parameters_of_one_that_is_refused_are_not_unknown) {
  write("mpool_tiny", Image().abi(7));
  set("mpool_tiny_open_says", "-9");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(test::said_anew_by([this] { params_->finish({}); }), "");
}

TEST_F(LoaderTest, one_of_priority_zero_that_is_left_out_says_which_list_leaves_it_out) {
  pinrail_component_t zero = built_in("zero");
  zero.priority = 0;
  built_in_ = {&zero, nullptr};
  set("mpool", "^zero");
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(test::has(listed("zero").reason, "not selected: mpool = ")) << listed("zero").reason;
}

TEST_F(LoaderTest, a_malformed_parameter_stays_an_error_though_other_components_follow) {
  write("mpool_tiny", Image());
  write("mpool_zeta", Image().name("zeta"));
  set("mpool_tiny_open_says", "much");
  EXPECT_TRUE(discover().is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(listed("zeta").status.ok()) << "it is loaded all the same";
}

TEST(DefaultComponentPath, ends_with_the_folder_that_was_configured) {
  const std::vector<std::string> path = default_component_path();
  ASSERT_FALSE(path.empty());
  EXPECT_EQ(path.back(), PINRAIL_PKGLIBDIR);
  for (const std::string& folder : path) EXPECT_EQ(folder.at(0), '/') << folder;
}

}  // namespace
}  // namespace pinrail::loader
