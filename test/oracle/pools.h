// SPDX-License-Identifier: BSD-3-Clause
// pools.h - Pinrail from init to finalize, with two pools that keep what was registered.
//
// Threads  open() and close(): one. The pools: any.
#ifndef PINRAIL_TEST_ORACLE_POOLS_H
#define PINRAIL_TEST_ORACLE_POOLS_H

#include <pinrail/pinrail.h>

#include <string>

#include "test/oracle/options.h"

namespace pinrail::oracle {

class Pools {
 public:
  Pools() = default;
  ~Pools();
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // SUCCESS, or what could not be done, as what_out. NOT_AVAILABLE: this machine does not let memory be pinned.
  pinrail_status_t open(const Options& options, std::string* what_out);
  pinrail_status_t close();

  pinrail_mpool_t* unlimited() const { return unlimited_; }
  pinrail_mpool_t* limited() const { return limited_; }
  std::string figures() const;  // two lines

 private:
  bool initialised_ = false;
  pinrail_mpool_t* unlimited_ = nullptr;
  pinrail_mpool_t* limited_ = nullptr;
};

}  // namespace pinrail::oracle

#endif
