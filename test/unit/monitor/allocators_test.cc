// SPDX-License-Identifier: BSD-3-Clause
// allocators_test.cc - which loaded allocators are new since the last look.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include "config.h"
#include "framework/monitor/own_calls.h"
#include "test/support/need_glibc.h"
#include "test/support/temp_folder.h"

namespace pinrail::monitor {
namespace {

// A loaded copy of an allocator.
struct Loaded {
  explicit Loaded(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~Loaded() {
    if (handle != nullptr) dlclose(handle);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  uintptr_t base() const {
    link_map* map = nullptr;
    return handle != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_addr : 0;
  }
  void* handle;
};

TEST(Allocators, one_that_is_loaded_where_another_was_is_new) {
  NEED_GLIBC("dlclose() unmaps nothing there");
  const test::TempFolder folder;
  const std::string bytes = test::read_whole(PINRAIL_TEST_BUILD "/test/own_calls/.libs/raw_malloc.so");
  const std::string first = folder.write("first.so", bytes), second = folder.write("second.so", bytes);
  Allocators allocators;
  allocators.find_new();  // what this program has
  uintptr_t base = 0;
  {
    const Loaded loaded(first);
    base = loaded.base();
    ASSERT_NE(base, 0u) << dlerror();
    EXPECT_EQ(allocators.find_new().text, first);
    EXPECT_STREQ(allocators.find_new().text, "");
  }
  const Loaded loaded(second);
  ASSERT_EQ(loaded.base(), base);
  EXPECT_EQ(allocators.find_new().text, second);
  EXPECT_STREQ(allocators.find_new().text, "");
}

}  // namespace
}  // namespace pinrail::monitor
