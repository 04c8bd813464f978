// SPDX-License-Identifier: BSD-3-Clause
#include "test/fake/fake_registrar.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "framework/registrar/request.h"

namespace pinrail::fake {

thread_local int PoolScope::depth = 0;

namespace {

constexpr size_t kMaxViolations = 64;

std::string text_of(const FakeRecord& record) {
  char text[96];
  std::snprintf(text, sizeof(text), "[%#zx, +%#zx) lkey %u", static_cast<size_t>(record.base), record.length,
                record.lkey);
  return text;
}

pinrail_status_t take(std::map<uint64_t, pinrail_status_t>* failing, uint64_t call) {
  const auto found = failing->find(call);
  if (found == failing->end()) return PINRAIL_SUCCESS;
  const pinrail_status_t status = found->second;
  failing->erase(found);
  return status;
}

}  // namespace

// One call of the calling thread. A thread that calls again from within a callback counts once.
class FakeRegistrar::Calls {
 public:
  explicit Calls(FakeRegistrar* fake) : fake_(fake) {
    std::lock_guard<std::mutex> guard(fake->mutex_);
    ++fake->inside_[std::this_thread::get_id()];
    fake->most_at_once_ = std::max(fake->most_at_once_, static_cast<int>(fake->inside_.size()));
    fake->check_thread_mode_locked();
  }
  ~Calls() {
    std::lock_guard<std::mutex> guard(fake_->mutex_);
    const auto here = fake_->inside_.find(std::this_thread::get_id());
    if (--here->second == 0) fake_->inside_.erase(here);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

 private:
  FakeRegistrar* const fake_;
};

FakeRegistrar::FakeRegistrar(const FakeOptions& options) : options_(options) {
  table_.size = sizeof(table_);
  table_.name = "fake";
  table_.context = this;
  table_.thread_mode = options.thread_mode;
  table_.kinds = options.kinds;
  table_.granularity = options.granularity;
  table_.max_length = options.max_length;
  table_.tail_size = options.tail_size;
  table_.register_mem = [](void* context, const auto* request, auto* reg) {
    auto* fake = static_cast<FakeRegistrar*>(context);
    return fake->options_.zero_cost ? PINRAIL_SUCCESS : fake->register_mem(request, reg);
  };
  table_.deregister_mem = [](void* context, auto* reg, pinrail_reason_t reason) {
    auto* fake = static_cast<FakeRegistrar*>(context);
    return fake->options_.zero_cost ? PINRAIL_SUCCESS : fake->deregister_mem(reg, reason);
  };
  table_.on_demand = options.on_demand;
  table_.on_demand_max_length = options.on_demand_max_length;
  if (options.on_demand != PINRAIL_ON_DEMAND_NONE) {
    table_.advise = [](void* context, const auto* reg, size_t offset, size_t length, pinrail_advice_t advice) {
      static_cast<FakeRegistrar*>(context)->advise(reg, offset, length, advice);
      return PINRAIL_SUCCESS;
    };
  }
  if (options.tail_hooks) {
    table_.tail_init = [](void* context, void* tail) {
      static_cast<FakeRegistrar*>(context)->tail_init(tail);
      return PINRAIL_SUCCESS;
    };
    table_.tail_fini = [](void* context, void* tail) { static_cast<FakeRegistrar*>(context)->tail_fini(tail); };
  }
}

// ---- script --------------------------------------------------------------------------------------------------------

void FakeRegistrar::fail_register(uint64_t nth, pinrail_status_t status) {
  std::lock_guard<std::mutex> guard(mutex_);
  script_.registers[register_calls_ + nth] = status;
}

void FakeRegistrar::fail_deregister(uint64_t nth, pinrail_status_t status) {
  std::lock_guard<std::mutex> guard(mutex_);
  script_.deregisters[deregister_calls_ + nth] = status;
}

void FakeRegistrar::set_capacity(size_t bytes, size_t count) {
  std::lock_guard<std::mutex> guard(mutex_);
  byte_capacity_ = bytes;
  count_capacity_ = count;
}

// ---- the calls -----------------------------------------------------------------------------------------------------

pinrail_status_t FakeRegistrar::register_mem(const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  const Calls calls(this);
  RegisterCallback callback;
  uint64_t call = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    call = ++register_calls_;
    callback = script_.on_register;
    check_request_locked(*request, reg);
  }
  if (callback) callback(*request, reg);

  std::lock_guard<std::mutex> guard(mutex_);
  if (script_.every_register != PINRAIL_SUCCESS) return script_.every_register;
  const pinrail_status_t scripted = take(&script_.registers, call);
  return scripted != PINRAIL_SUCCESS ? scripted : admit_locked(*request, reg);
}

pinrail_status_t FakeRegistrar::admit_locked(const pinrail_register_request_t& request, pinrail_registration_t* reg) {
  const Status checked = check_request(table_, request);
  if (!checked.ok()) return checked.code();
  const bool refused = ((request.rights & options_.refused_rights) | (request.traits & options_.refused_traits)) != 0;
  if (refused) return PINRAIL_ERR_NOT_SUPPORTED;
  if (live_.size() >= count_capacity_) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const size_t bytes = is_for_all_memory(table_, request) ? 0 : request.length;
  if (live_bytes_ > byte_capacity_ || bytes > byte_capacity_ - live_bytes_) return PINRAIL_ERR_OUT_OF_RESOURCE;

  const FakeRecord record{
      reg,  reinterpret_cast<uintptr_t>(request.addr), request.length, request.rights, request.traits, next_lkey_++,
      bytes};
  if (!live_.emplace(reg, record).second) note_locked("registered while it was live: " + text_of(record));
  live_bytes_ += bytes;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  reg->lkey = record.lkey;
  reg->rkey = ~record.lkey;
  if (options_.tail_size >= sizeof(record.lkey)) {
    std::memcpy(registrar_tail(reg), &record.lkey, sizeof(record.lkey));
  }
  return PINRAIL_SUCCESS;
}

pinrail_status_t FakeRegistrar::deregister_mem(pinrail_registration_t* reg, pinrail_reason_t reason) {
  const Calls calls(this);
  DeregisterCallback callback;
  uint64_t call = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    call = ++deregister_calls_;
    callback = script_.on_deregister;
  }
  if (callback) callback(reg, reason);

  std::lock_guard<std::mutex> guard(mutex_);
  forget_locked(reg, reason);
  return take(&script_.deregisters, call);
}

void FakeRegistrar::forget_locked(const pinrail_registration_t* reg, pinrail_reason_t reason) {
  if (static_cast<unsigned>(reason) >= unsigned{kReasons}) {
    note_locked("deregistered for an unknown reason");
  } else {
    ++reasons_[reason];
  }
  const auto found = live_.find(reg);
  if (found == live_.end()) return note_locked("deregistered what is not live (twice?)");
  const FakeRecord& record = found->second;
  if (reinterpret_cast<uintptr_t>(reg->base) != record.base || reg->length != record.length) {
    note_locked("range changed while registered: " + text_of(record));
  }
  if (reg->lkey != record.lkey) note_locked("lkey changed while registered: " + text_of(record));
  if (options_.tail_size >= sizeof(record.lkey) &&
      std::memcmp(registrar_tail(reg), &record.lkey, sizeof(record.lkey)) != 0) {
    note_locked("tail changed while registered: " + text_of(record));
  }
  live_bytes_ -= record.bytes;
  live_.erase(found);
}

void FakeRegistrar::advise(const pinrail_registration_t* reg, size_t offset, size_t length, pinrail_advice_t advice) {
  std::lock_guard<std::mutex> guard(mutex_);
  const bool is_inside = live_.count(reg) != 0 && offset <= reg->length && length <= reg->length - offset;
  if (!is_inside) note_locked("advice on what is not registered");
  advices_.push_back({reinterpret_cast<uintptr_t>(reg->base) + offset, length, advice});
}

void FakeRegistrar::tail_init(void* tail) {
  std::lock_guard<std::mutex> guard(mutex_);
  ++tails_made_;
  if (!tails_.insert(tail).second) note_locked("tail initialised twice");
}

void FakeRegistrar::tail_fini(void* tail) {
  std::lock_guard<std::mutex> guard(mutex_);
  ++tails_finished_;
  if (tails_.erase(tail) == 0) note_locked("tail finished that was not initialised");
}

// ---- what a caller may do wrong ------------------------------------------------------------------------------------

void FakeRegistrar::check_request_locked(const pinrail_register_request_t& request, const pinrail_registration_t* reg) {
  const uintptr_t addr = reinterpret_cast<uintptr_t>(request.addr);
  if (request.size != sizeof(request)) note_locked("request of a wrong size");
  if (request.length == 0 || request.length > UINTPTR_MAX - addr) note_locked("request of an empty or endless range");
  if (((addr | request.length) & (options_.granularity - 1)) != 0) note_locked("request not rounded to granularity");
  const size_t most = max_length_of(table_, request.traits, Span::of(addr, request.length));
  if (most != 0 && request.length > most) note_locked("request above max_length");
  if (reg->base != request.addr || reg->length != request.length) note_locked("registration's range is not set");
  if (reg->rights != request.rights || reg->traits != request.traits) note_locked("registration's access is not set");
  if (reg->tail_size != options_.tail_size) note_locked("tail of a wrong size");
  if (options_.tail_hooks && tails_.count(registrar_tail(reg)) == 0) note_locked("tail was not initialised");
}

void FakeRegistrar::check_thread_mode_locked() {
  if (options_.thread_mode == PINRAIL_THREAD_CONCURRENT) return;
  if (inside_.size() > 1) note_locked("calls at a time in a thread mode that forbids it");
  const bool caller = options_.thread_mode == PINRAIL_THREAD_CALLER;
  if (caller && options_.needs_pool_scope && PoolScope::depth == 0)
    note_locked("CALLER registrar called from elsewhere");
}

void FakeRegistrar::note_locked(std::string what) {
  if (violations_.size() < kMaxViolations) violations_.push_back(std::move(what));
}

// ---- what tests read -----------------------------------------------------------------------------------------------

size_t FakeRegistrar::live_count() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return live_.size();
}

std::vector<FakeRecord> FakeRegistrar::live() const {
  std::vector<FakeRecord> records;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& entry : live_) records.push_back(entry.second);
  }
  std::sort(records.begin(), records.end(), [](const FakeRecord& a, const FakeRecord& b) { return a.base < b.base; });
  return records;
}

bool FakeRegistrar::is_live(const pinrail_registration_t* reg) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return live_.count(reg) != 0;
}

}  // namespace pinrail::fake
