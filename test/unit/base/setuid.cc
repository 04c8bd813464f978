// SPDX-License-Identifier: BSD-3-Clause
// A program that has more rights than its caller: neither Pinrail nor a library that it calls reads the environment,
// which the caller has chosen. files/X1.
//
// Without an argument the program makes a setuid copy of its own file and runs the copy as the user "nobody", for which
// it must be root.
#include <pinrail/gpu.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "config.h"

namespace {

constexpr int kSkipped = 77;
int variables_read = 0;

}  // namespace

// Laid over the C library's: what any shared object asks for comes here. (secure_getenv() gives nothing to such a
// program, and may be called.)
extern "C" __attribute__((visibility("default"))) char* getenv(const char* name) noexcept {
  std::fprintf(stderr, "failed setuid: the variable %s was read\n", name);
  ++variables_read;
  return nullptr;
}

namespace {

bool expect(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "failed setuid: %s\n", what);
  return holds;
}

// With more rights than who called it.
int live() {
  if (getauxval(AT_SECURE) == 0) {
    std::printf("SKIP: setuid has no effect in this file system\n");
    return kSkipped;
  }
  const pinrail_setting_t settings[] = {
      {"mca_base_component_path", PINRAIL_TEST_BUILD "/components/.libs"},
      {"registrar_cuda_ipc_library", PINRAIL_TEST_BUILD "/test/fake/.libs/libcuda.so.1"}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 2;
  bool well = expect(pinrail_init(&options) == PINRAIL_SUCCESS, "init");
  pinrail_machine_t machine{};
  machine.size = sizeof(machine);
  well = expect(pinrail_machine_read(&machine) == PINRAIL_SUCCESS, "the machine is known") && well;
  well = expect(std::strcmp(machine.source, "system") == 0, "hwloc was not asked") && well;
  pinrail_registrar_choice_t choice{};
  pinrail_mpool_t* pool = nullptr;
  if (pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool) == PINRAIL_SUCCESS) {
    well = expect(pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS, "destroy") && well;
  }
  choice.name = "cuda_ipc";
  const pinrail_status_t status = pinrail_mpool_create("gpusm", &choice, nullptr, nullptr, &pool);
  well = expect(status != PINRAIL_SUCCESS, "the CUDA driver, which reads variables, is not used") && well;
  well = expect(pinrail_finalize() == PINRAIL_SUCCESS, "finalize") && well;
  well = expect(variables_read == 0, "no variable was read") && well;
  return well ? 0 : 1;
}

int run_copy(const std::string& copy) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr unsigned kNobody = 65534;
    const char* const arguments[] = {copy.c_str(), "--live", nullptr};
    const char* const variables[] = {"PINRAIL_MCA_mca_base_verbose=50", "HWLOC_PLUGINS_PATH=/tmp",
                                     "CUDA_DOUBLE_DEVICES=1", nullptr};
    if (setgid(kNobody) == 0 && setuid(kNobody) == 0) {
      execve(copy.c_str(), const_cast<char**>(arguments), const_cast<char**>(variables));
    }
    _exit(kSkipped);
  }
  int how = 0;
  if (child < 0 || waitpid(child, &how, 0) != child) return 1;
  return WIFEXITED(how) ? WEXITSTATUS(how) : 1;
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) return live();
  if (geteuid() != 0) {
    std::printf("SKIP: only root can make a setuid program of root's\n");
    return kSkipped;
  }
  char folder[] = "/tmp/pinrail-setuid-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string copy = std::string(folder) + "/setuid";
  std::error_code failed;
  std::filesystem::copy_file("/proc/self/exe", copy, failed);
  const bool ready = !failed && chmod(folder, 0755) == 0 && chmod(copy.c_str(), 04755) == 0;
  const int result = ready ? run_copy(copy) : 1;
  std::filesystem::remove_all(folder, failed);
  return result;
}
