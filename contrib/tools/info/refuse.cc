// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/kernel_numbers.h"
#include "contrib/tools/info/monitors.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pinrail::info {
namespace {

// Offset of the lower half of the n-th argument, on little-endian machines.
constexpr uint32_t argument(size_t n) { return static_cast<uint32_t>(offsetof(seccomp_data, args) + n * 8); }

class Filter {
 public:
  Filter() { load(offsetof(seccomp_data, nr)); }

  void refuse(long number) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  // Refuses the call if its n-th argument has one of these bits.
  void refuse_if(long number, unsigned n, uint32_t bits) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4));
    load(argument(n));
    add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  bool install() {
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
  }

 private:
  void add(sock_filter instruction) { code_.push_back(instruction); }
  void load(uint32_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); }

  std::vector<sock_filter> code_;
};

}  // namespace

bool refuse_memory_calls() {
  Filter filter;
  for (const long number : {SYS_munmap, SYS_mremap, SYS_madvise, SYS_process_madvise, SYS_remap_file_pages, SYS_brk,
                            SYS_shmdt, SYS_shmat, SYS_fallocate, SYS_ftruncate, SYS_truncate, SYS_io_uring_enter}) {
    filter.refuse(number);
  }
  filter.refuse_if(SYS_mmap, 3, MAP_FIXED);
  filter.refuse_if(SYS_openat, 2, O_TRUNC);
#ifdef SYS_open
  filter.refuse_if(SYS_open, 1, O_TRUNC);
#endif
  return filter.install();
}

}  // namespace pinrail::info
