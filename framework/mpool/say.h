// SPDX-License-Identifier: BSD-3-Clause
// say.h - messages of pools: their statistics, and which referenced registrations prevent destroy (R10).
//
// Threads  all functions may run together. API context, never a hook: they log and may allocate.
#ifndef PINRAIL_FRAMEWORK_MPOOL_SAY_H
#define PINRAIL_FRAMEWORK_MPOOL_SAY_H

#include <pinrail/component.h>

#include <cstdio>
#include <string>

namespace pinrail::mpool {

// Counts referenced registrations and lists the first few in words. list_out NULL: only counts.
class Referenced {
 public:
  explicit Referenced(std::string* list_out) : list_(list_out) {}
  // references: the registration's reference count; nothing is counted if it is 0 or less.
  void look_at(const pinrail_registration_t* reg, int64_t references) {
    if (references <= 0) return;
    if (++count_ > kNamed || list_ == nullptr) return;
    char line[96];
    std::snprintf(line, sizeof(line), "%s[%p, +%zu) with %lld reference(s)", list_->empty() ? "" : ", ", reg->base,
                  reg->length, static_cast<long long>(references));
    *list_ += line;
  }
  size_t count() const { return count_; }

 private:
  static constexpr size_t kNamed = 4;
  std::string* const list_;
  size_t count_ = 0;
};

// Reports that the pool is busy. The component's help file must have the topic "pool is busy".
inline void say_busy(const pinrail_host_t* host, size_t referenced, const std::string& list) {
  const std::string count = std::to_string(referenced);
  const pinrail_help_arg_t args[] = {{"count", count.c_str()}, {"list", list.c_str()}};
  host->help(host, "pool is busy", args, 2);
}

// Logs the pool's statistics in one line.
inline void say_stats(const pinrail_host_t* host, const pinrail_mpool_stats_t& figures) {
  char line[256];
  std::snprintf(line, sizeof(line),
                "stats: %llu hits, %llu misses, %llu evictions, %llu invalidations, peak %llu bytes registered",
                static_cast<unsigned long long>(figures.hits), static_cast<unsigned long long>(figures.misses),
                static_cast<unsigned long long>(figures.evictions),
                static_cast<unsigned long long>(figures.invalidations),
                static_cast<unsigned long long>(figures.peak_registered_bytes));
  host->log(host, PINRAIL_LOG_WARN, line);
}

}  // namespace pinrail::mpool

#endif
