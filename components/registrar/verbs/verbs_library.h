// SPDX-License-Identifier: BSD-3-Clause
// verbs_library.h - libibverbs, loaded at run time, and only if there is a device or a protection domain was lent.
//
// Threads  open() and close() exclude all others. The functions are libibverbs' own and are as thread-safe as it is.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_VERBS_VERBS_LIBRARY_H
#define PINRAIL_COMPONENTS_REGISTRAR_VERBS_VERBS_LIBRARY_H

#include <infiniband/verbs.h>

#include "base/core/status.h"

// The header defines these as macros over inline functions that need the library at link time.
#undef ibv_reg_mr
#undef ibv_query_port

// Functions that every supported libibverbs has.
#define PINRAIL_VERBS_FUNCTIONS(X) \
  X(get_device_list)               \
  X(free_device_list)              \
  X(get_device_name)               \
  X(open_device)                   \
  X(close_device)                  \
  X(query_device)                  \
  X(query_port)                    \
  X(query_gid)                     \
  X(alloc_pd)                      \
  X(dealloc_pd)                    \
  X(reg_mr)                        \
  X(dereg_mr)                      \
  X(create_cq)                     \
  X(destroy_cq)                    \
  X(create_qp)                     \
  X(modify_qp)                     \
  X(destroy_qp)

namespace pinrail::verbs {

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration takes none
#define PINRAIL_VERBS_FIELD(name) decltype(&::ibv_##name) name = nullptr;
  PINRAIL_VERBS_FUNCTIONS(PINRAIL_VERBS_FIELD)
#undef PINRAIL_VERBS_FIELD
  // Newer functions; NULL in an old library.
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) = nullptr;
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
  // What the library offers to its drivers: the system call itself, for drivers that lack the operation.
  int (*cmd_advise_mr)(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* pieces,
                       uint32_t count) = nullptr;
  void* handle = nullptr;

  // NOT_AVAILABLE, and a reason that stays valid until the next call of the dynamic loader.
  Status open(const char** why_out);
  void close();
};

}  // namespace pinrail::verbs

#endif
