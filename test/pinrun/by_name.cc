// SPDX-License-Identifier: BSD-3-Clause
// by_name.cc - a program that is not linked with libibverbs, but opens it and looks its functions up, as NCCL does. Run
// by test/pinrun_test.sh under pinrun, beside the double of libibverbs.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#undef ibv_reg_mr

namespace {

constexpr size_t kBytes = size_t{1} << 16;
constexpr int kTimes = 100;

int failures = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAIL: %s\n", what);
  ++failures;
}

template <typename Function>
Function checked(void* symbol, const char* name) {
  if (symbol != nullptr) return reinterpret_cast<Function>(symbol);
  std::printf("FAIL: there is no %s: %s\n", name, dlerror());
  std::exit(1);
}

struct Verbs {
  void* library;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;

  template <typename Function>
  Function by_name(const char* name) const {
    return checked<Function>(dlsym(library, name), name);
  }
  template <typename Function>
  Function by_version(const char* name, const char* version) const {
    return checked<Function>(dlvsym(library, name, version), name);
  }
};

Verbs open_verbs() {
  Verbs verbs{};
  verbs.library = checked<void*>(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL), "libibverbs");
  verbs.alloc_pd = verbs.by_name<decltype(verbs.alloc_pd)>("ibv_alloc_pd");
  verbs.dealloc_pd = verbs.by_name<decltype(verbs.dealloc_pd)>("ibv_dealloc_pd");
  verbs.reg_mr = verbs.by_version<decltype(verbs.reg_mr)>("ibv_reg_mr", "IBVERBS_1.1");
  verbs.dereg_mr = verbs.by_name<decltype(verbs.dereg_mr)>("ibv_dereg_mr");
  return verbs;
}

void register_often(const Verbs& verbs) {
  ibv_context device{};
  ibv_pd* domain = verbs.alloc_pd(&device);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < kTimes; ++i) {
    ibv_mr* region = verbs.reg_mr(domain, memory, kBytes, IBV_ACCESS_LOCAL_WRITE);
    expect(region != nullptr && verbs.dereg_mr(region) == 0, "a region is registered and deregistered");
  }
  expect(verbs.dealloc_pd(domain) == 0, "the domain is freed");
  const auto made = verbs.by_name<uint64_t (*)()>("verbs_double_registered");
  std::printf("%d registrations, %d by the device\n", kTimes, static_cast<int>(made()));
}

// Under pinrun the next one is pinrun's, and what follows that in the order of loading has none.
void look_up_from_here() {
  expect(dlsym(RTLD_NEXT, "ibv_reg_mr") == dlsym(RTLD_DEFAULT, "ibv_reg_mr"), "RTLD_NEXT is what follows the program");
  expect(dlvsym(RTLD_NEXT, "ibv_reg_mr", "IBVERBS_1.1") == dlsym(RTLD_DEFAULT, "ibv_reg_mr"), "by version, too");
  expect(dlsym(RTLD_NEXT, "main") == nullptr, "the program does not follow itself");
  expect(dlsym(RTLD_DEFAULT, "no_such_function") == nullptr && dlerror() != nullptr, "what is missing is an error");
}

}  // namespace

int main() {
  look_up_from_here();
  const Verbs verbs = open_verbs();
  expect(dlvsym(verbs.library, "ibv_reg_mr", "IBVERBS_0.1") == nullptr, "an unknown version is not found");
  register_often(verbs);
  return failures == 0 ? 0 : 1;
}
