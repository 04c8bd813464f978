// SPDX-License-Identifier: BSD-3-Clause
// loader_test.cc - which components are found, and which are refused before any of their code runs; opening and
// closing, and what an open component is lent.
#include <dlfcn.h>

#include "framework/rcache/rcache.h"
#include "test/support/cases.h"
#include "test/unit/base/fixtures.h"

namespace pinrail::loader {
namespace {

using test::said_anew_by;
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
  folder_.write("rcache_tiny.so",
                Image().framework("rcache").abi(PINRAIL_RCACHE_ABI).bytes());  // one name may stand in two frameworks
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
  ASSERT_EQ(loader_->listed().size(), 2U);
  EXPECT_EQ(loader_->listed()[1]->framework, "rcache");
  pinrail_param_info_t info{};
  for (const char* name : {"mca_base_component_path", "mca_base_verbose", "leave_pinned", "mpool", "mpool_base_verbose",
                           "mpool_tiny_open_says", "mpool_tiny_verbose", "rcache", "rcache_base_verbose"}) {
    EXPECT_TRUE(params_->find(name, &info).ok()) << name;
  }
}

TEST_F(LoaderTest, an_index_whose_table_lacks_functions_is_not_used_and_named) {
  const size_t size = sizeof(pinrail_rcache_ops_t);
  write("rcache_tiny", Image().framework("rcache").abi(PINRAIL_RCACHE_ABI).table_size(size));
  ASSERT_TRUE(discover().ok() && open("rcache").ok()) << said_;
  pinrail_rcache_t rcache{};
  const auto create = [&] { EXPECT_TRUE(rcache::create(*loader_, "tiny", 0, &rcache).is(PINRAIL_ERR_ERROR)); };
  EXPECT_EQ(times(said_anew_by(create), "component \"tiny\" lacks a function that is not optional"), 1U);
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
      {"another kind of file",
       Image().replace("\x7f"
                       "ELF",
                       "#!/b"),
       PINRAIL_ERR_ERROR, "is not an ELF file"},
      {"no symbol", Image().replace("pinrail_component", "pinrail_komponent"), PINRAIL_ERR_ERROR,
       "exports no symbol pinrail_component"},
  };
}

TEST_F(LoaderTest, a_wrong_component_is_refused_in_one_line_with_both_sides_and_an_error_if_it_was_asked_for) {
  for (const Wrong& wrong : wrong_images()) {
    SCOPED_TRACE(wrong.what);
    const std::string path = write("mpool_tiny", wrong.image);
    set("mpool", "");
    ASSERT_TRUE(discover().ok());
    EXPECT_EQ(said_, "[pinrail:loader] skipped " + path + ": it " + wrong.reason + "\n");
    EXPECT_TRUE(listed("tiny").status.is(wrong.status));
    EXPECT_EQ(listed("tiny").reason, wrong.reason);
    EXPECT_TRUE(open().ok());
    EXPECT_EQ(opened(), "");

    set("mpool", "tiny");
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
  set("mca_base_component_path", folder_.path("none") + ":" + earlier.path() + ":" + folder_.path());
  set("mca_base_verbose", "50");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(loader_->listed().size(), 1U);
  EXPECT_EQ(listed("tiny").path, taken);
  EXPECT_EQ(listed("tiny").priority, 2);
  EXPECT_TRUE(said(hidden + " is hidden by the mpool component tiny (" + taken + ")")) << said_;
  EXPECT_TRUE(said("no components in " + folder_.path("none"))) << said_;
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
                      wrong = built_in("wrong"), old = built_in("old"), stranger = built_in("stranger"),
                      bare = built_in("bare");
  const pinrail_param_t no_level = {
      sizeof(pinrail_param_t), "x", "0", "", PINRAIL_TYPE_INT, PINRAIL_SCOPE_READONLY, 0, nullptr, 0, 0, nullptr};
  no_table.ops = nullptr;
  no_open.open = nullptr;
  no_params.param_count = 3;
  wrong.params = &no_level;
  wrong.param_count = 1;
  old.abi = PINRAIL_MPOOL_ABI - 1;
  memcpy(stranger.framework, "btl\0\0", 6);
  bare.version = bare.help = nullptr;
  built_in_ = {&no_table, &no_open, &no_params, &wrong, &old, &stranger, &bare, nullptr};
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(listed("no_table").reason, "has no table of functions");
  EXPECT_EQ(listed("no_open").reason, "has no open()");
  EXPECT_EQ(listed("no_params").reason, "counts parameters but has none");
  EXPECT_EQ(times(said_, "skipped built in: it declares its parameters wrongly"), 1U) << said_;
  EXPECT_TRUE(listed("old").status.is(PINRAIL_ERR_VERSION));
  EXPECT_EQ(listed("bare").version + listed("bare").help, "");
  EXPECT_EQ(loader_->listed().size(), 6U) << "an unknown framework is not listed";
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(opened(), "bare");
  loader_.reset();  // it has the descriptors, which end here
}

TEST_F(LoaderTest, a_component_that_is_not_selected_is_not_even_mapped_and_its_parameters_are_not_unknown) {
  // Mapping this one fails, and says so.
  write("mpool_tiny", Image().priority(0).replace("libstdc++.so", "libstdcxx.so"));
  set("mpool_tiny_open_says", "-9");
  for (const char* list : {"^tiny", "other"}) {
    set("mpool", list);
    ASSERT_TRUE(discover().ok());
    EXPECT_EQ(said_, "") << list;
    EXPECT_FALSE(listed("tiny").selected) << list;
    EXPECT_TRUE(test::has(listed("tiny").reason, std::string("not selected: mpool = ") + list))
        << listed("tiny").reason;
    EXPECT_EQ(said_anew_by([this] { params_->finish({}); }), "");
  }
  write("mpool_tiny", Image().abi(7));
  set("mpool", "");
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(said_anew_by([this] { params_->finish({}); }), "") << "those of one that is refused";
  set("mpool", "a,^b");
  EXPECT_TRUE(discover().is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(said("\"a,^b\" for parameter mpool, from the program")) << said_;
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

TEST_F(LoaderTest, a_malformed_parameter_stays_an_error_though_other_components_follow) {
  write("mpool_tiny", Image());
  write("mpool_zeta", Image().name("zeta"));
  set("mpool_tiny_open_says", "much");
  EXPECT_TRUE(discover().is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(listed("zeta").status.ok()) << "it is loaded all the same";
}

// Opening and closing, and what an open component is lent.

constexpr char kCatalogue[] = "[trouble]\nWhat happened  {what}.\nWhat follows   nothing.\nWhat to do     rest.\n";

// A component of the test's own, so that what it is lent can be looked at.
const pinrail_host_t* lent = nullptr;
int closed = 0;
pinrail_status_t take_host(const pinrail_host_t* host, void** context_out) {
  lent = host;
  *context_out = &lent;
  return PINRAIL_SUCCESS;
}
void count_close(void*) { ++closed; }

const pinrail_param_t kOwnParams[] = {{sizeof(pinrail_param_t), "greeting", "hello", "A text.", PINRAIL_TYPE_STRING,
                                       PINRAIL_SCOPE_READONLY, 9, nullptr, 0, 0, nullptr}};
const pinrail_component_t kOwn = {sizeof(pinrail_component_t),
                                  PINRAIL_MPOOL_ABI,
                                  50,
                                  "mpool",
                                  "own",
                                  "1.0.0",
                                  "The test's own.",
                                  kCatalogue,
                                  kOwnParams,
                                  1,
                                  nullptr,
                                  take_host,
                                  count_close,
                                  &kOps};

class LoaderOpen : public LoaderTest {
 protected:
  void add(const char* name, int32_t priority) {
    write(std::string("mpool_") + name, Image().name(name).priority(priority));
  }
  void says(const char* name, int status) { set(std::string("mpool_") + name + "_open_says", std::to_string(status)); }

  void open_own() {
    built_in_ = {&kOwn, nullptr};
    lent = nullptr;
    ASSERT_TRUE(discover().ok());
    ASSERT_TRUE(open().ok());
    ASSERT_NE(lent, nullptr);
  }
};

TEST_F(LoaderOpen, the_selected_ones_are_opened_by_priority_and_then_by_name) {
  add("b", 10);
  add("a", 10);
  add("c", 20);
  add("d", -1);
  const struct {
    const char *list, *opened;
    bool are_named;
  } rows[] = {{"", "c a b", false}, {" c , a ", "c a", true}, {"^b,nosuch", "c a", false}, {"d", "d", true}};
  for (const auto& row : rows) {
    set("mpool", row.list);
    ASSERT_TRUE(discover().ok());
    EXPECT_EQ(opened(), "") << "found is not open";
    EXPECT_EQ(listed("d").selected, std::string("d") == row.list);
    ASSERT_TRUE(open().ok()) << row.list;
    EXPECT_EQ(said_, "");
    EXPECT_EQ(opened(), row.opened) << row.list;
    for (const Opened& it : loader_->opened("mpool")) EXPECT_EQ(it.named, row.are_named) << row.list;
  }
  EXPECT_EQ(opened("rcache"), "");
  EXPECT_TRUE(open("btl").is(PINRAIL_ERR_BAD_PARAM)) << "it was not discovered";
}

TEST_F(LoaderOpen, a_priority_below_zero_waits_to_be_named) {
  add("d", -1);
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(test::has(listed("d").reason, "only when parameter mpool names it"));
}

TEST_F(LoaderOpen, each_name_that_no_component_has_is_an_error_with_a_suggestion) {
  add("grdma", 10);
  set("mpool", "grdma,grdam,y1234");
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(open().is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(opened(), "grdma");
  EXPECT_TRUE(said("mpool component \"grdam\"") && said("did you mean grdma?") && said(folder_.path())) << said_;
  EXPECT_TRUE(said("\"y1234\"")) << said_;
}

TEST_F(LoaderOpen, one_that_does_not_open_is_skipped_and_an_error_if_it_was_asked_for) {
  add("a", 10);
  add("b", 10);
  for (const pinrail_status_t status : {PINRAIL_ERR_NOT_AVAILABLE, PINRAIL_ERR_PERM, PINRAIL_ERR_ERROR}) {
    const std::string why = std::string("does not open: ") + status_name(status);
    const std::string line = "[pinrail:loader] skipped " + folder_.path("mpool_b.so") + ": it " + why + "\n";
    says("b", status);
    set("mpool", "");
    set("mca_base_verbose", "0");
    ASSERT_TRUE(discover().ok());
    ASSERT_TRUE(open().ok());
    EXPECT_EQ(said_, status == PINRAIL_ERR_NOT_AVAILABLE ? "" : line);
    EXPECT_EQ(opened(), "a");
    EXPECT_TRUE(listed("b").status.is(status));
    set("mca_base_verbose", "10");
    ASSERT_TRUE(discover().ok());
    ASSERT_TRUE(open().ok());
    EXPECT_TRUE(said("mpool_b.so: it " + why)) << said_;

    set("mpool", "b");
    ASSERT_TRUE(discover().ok());
    EXPECT_TRUE(open().is(status));
    EXPECT_EQ(times(said_, "component unusable"), 1U) << said_;
    EXPECT_TRUE(said(why)) << said_;
  }
}

TEST_F(LoaderOpen, what_is_open_is_opened_no_second_time_and_closed_in_reverse) {
  add("a", 30);
  add("b", 20);
  says("b", PINRAIL_ERR_ERROR);
  add("c", 10);
  set("mpool_base_verbose", "10");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(said("[pinrail:a] opens\n") && said("[pinrail:c] opens\n")) << said_;
  ASSERT_TRUE(open().ok());
  EXPECT_FALSE(said("[pinrail:a] opens\n") || said("[pinrail:c] opens\n")) << said_;
  EXPECT_EQ(opened(), "a c");
  EXPECT_EQ(said_anew_by([this] { loader_->close_all(); }), "[pinrail:c] closes\n[pinrail:a] closes\n");
  EXPECT_EQ(opened(), "");
}

TEST_F(LoaderOpen, files_are_unmapped_when_they_are_closed_and_their_parameters_stay_listed) {
  NEED_GLIBC("dlclose() unmaps nothing there");
  add("a", 10);
  const std::string path = folder_.path("mpool_a.so");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  void* const again = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(again, nullptr);
  dlclose(again);
  loader_->close_all();
  EXPECT_EQ(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
  pinrail_param_info_t info{};
  ASSERT_TRUE(params_->find("mpool_a_open_says", &info).ok());
  EXPECT_STREQ(info.declaration->help, "What open() returns.");
  EXPECT_EQ(listed("a").version, "1.2.3");
}

TEST_F(LoaderOpen, a_monitor_stays_mapped_for_the_hooks_that_may_still_run_in_it) {
  const std::string path =
      folder_.write("monitor_tiny.so", Image().framework("monitor").abi(PINRAIL_MONITOR_ABI).bytes());
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open("monitor").ok());
  loader_->close_all();
  void* const still = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(still, nullptr);
  if (still != nullptr) dlclose(still);
}

TEST_F(LoaderOpen, closing_again_or_never_having_opened_does_no_harm) {
  open_own();
  closed = 0;
  loader_->close_all();
  loader_->close_all();
  loader_.reset();
  EXPECT_EQ(closed, 1);
  ASSERT_TRUE(discover().ok());
  loader_.reset();
  EXPECT_EQ(closed, 1) << "what is not open is not closed";
}

TEST_F(LoaderOpen, the_host_table_says_whose_it_is) {
  services_.monitor_works = [](const pinrail_host_t*, const char**) { return 42; };
  open_own();
  EXPECT_EQ(lent->size, sizeof(pinrail_host_t));
  EXPECT_EQ(lent->abi, uint32_t{PINRAIL_HOST_ABI});
  EXPECT_EQ(lent->monitor_works(lent, nullptr), 42) << "the rest is the services'";
  EXPECT_EQ(loader_->opened("mpool").at(0).host, lent);
  EXPECT_EQ(loader_->opened("mpool").at(0).context, &lent);
}

TEST_F(LoaderOpen, a_component_reads_its_own_parameters_by_their_short_names_and_any_by_its_full_name) {
  set("mpool_own_greeting", "good day");
  open_own();
  pinrail_param_value_t value{};
  ASSERT_EQ(lent->param(lent, "greeting", &value), PINRAIL_SUCCESS);
  EXPECT_STREQ(value.s, "good day");
  EXPECT_EQ(lent->param(lent, "verbose", &value), PINRAIL_SUCCESS);
  EXPECT_EQ(lent->param(lent, "size_limit", &value), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(lent->param(lent, nullptr, &value), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(lent->param(lent, "greeting", nullptr), PINRAIL_ERR_BAD_PARAM);
  pinrail_param_info_t info{};
  EXPECT_EQ(lent->param_info(lent, "leave_pinned", &info), PINRAIL_ERR_BAD_PARAM) << "its size is 0";
  info.size = sizeof(info);
  ASSERT_EQ(lent->param_info(lent, "leave_pinned", &info), PINRAIL_SUCCESS);
  EXPECT_STREQ(info.value, "auto");
  EXPECT_EQ(lent->param_info(lent, "nothing", &info), PINRAIL_ERR_NOT_FOUND);
}

TEST_F(LoaderOpen, a_component_logs_as_its_verbosity_says_and_helps_from_its_own_catalogue) {
  open_own();
  for (const char* verbosity : {"0", "10", "0"}) {
    ASSERT_TRUE(params_->set("mpool_own_verbose", verbosity).ok());
    EXPECT_EQ(said_anew_by([] { lent->log(lent, PINRAIL_LOG_INFO, "a line"); }),
              std::string("10") == verbosity ? "[pinrail:own] a line\n" : "");
  }
  const std::string said = said_anew_by([] {
    const pinrail_help_arg_t arg = {"what", "it broke"};
    lent->help(lent, "trouble", &arg, 1);
    lent->help(lent, "trouble", nullptr, 1);
  });
  EXPECT_EQ(times(said, "[pinrail:own] trouble\n  What happened  it broke.\n"), 1U) << said;
  EXPECT_EQ(times(said, "What happened  {what}."), 1U) << said;
}

}  // namespace
}  // namespace pinrail::loader
