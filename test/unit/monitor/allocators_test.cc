// SPDX-License-Identifier: BSD-3-Clause
// allocators_test.cc - which loaded allocators are new since the last look, and what a malloc is found to do in use.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "base/core/compiler.h"
#include "config.h"
#include "framework/monitor/monitor.h"
#include "framework/monitor/own_calls.h"
#include "test/support/need_glibc.h"
#include "test/support/temp_folder.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HAS_OWN_MALLOC
#endif

#ifdef HAS_OWN_MALLOC
namespace {
enum class Unmaps : uint8_t { never, reported, unseen };
Unmaps unmaps = Unmaps::never;
bool maps_large_blocks = false;
std::map<void*, size_t> blocks;  // that are mapped
}  // namespace

// The program's own malloc. While a test asks for it, large blocks are mappings.
extern "C" {
void* __libc_malloc(size_t length);
void __libc_free(void* block);

__attribute__((visibility("default"))) void* malloc(size_t length) noexcept {
  if (!maps_large_blocks || length < 65536) return __libc_malloc(length);
  void* const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  blocks[at] = length;
  return at;
}
__attribute__((visibility("default"))) void free(void* block) noexcept {
  const auto known = maps_large_blocks ? blocks.find(block) : blocks.end();
  if (known == blocks.end()) return __libc_free(block);
  const size_t length = known->second;
  if (unmaps == Unmaps::reported) pinrail::monitor::report_hook(0, reinterpret_cast<uintptr_t>(block), length);
  if (unmaps != Unmaps::never) syscall(SYS_munmap, block, length);
  blocks.erase(known);
}
}
#endif

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

#ifdef HAS_OWN_MALLOC
// What one look frees, the next one judges.
TEST(LateTrial, finds_a_malloc_that_goes_unseen_after_it_was_seen_for_a_while) {
  LateTrial trial;
  maps_large_blocks = true;
  for (const Unmaps way : {Unmaps::never, Unmaps::reported, Unmaps::reported, Unmaps::unseen}) {
    unmaps = way;
    EXPECT_FALSE(trial.finds_raw_calls());
  }
  EXPECT_TRUE(trial.finds_raw_calls());
  maps_large_blocks = false;
  trial.end();
}
#endif

}  // namespace
}  // namespace pinrail::monitor
