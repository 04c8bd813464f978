// SPDX-License-Identifier: BSD-3-Clause
// API context. No registrar is called, and nothing is allocated.
#include "components/mpool/mrall/mrall_work.h"

namespace pinrail::mrall {

void Work::ask(Demand* demand) {
  Guard guard(mutex);
  demand->next = demands_;
  demands_ = demand;
}

void Work::wait(const Demand& demand) {
  Guard guard(mutex);
  while (!demand.is_done) changed_.wait(mutex);
}

bool Work::begin_round(bool is_due, Ranges* touched_out, Demand** demands_out) {
  Guard guard(mutex);
  if (pauses_ != 0 || (!is_due && touched_.count == 0 && demands_ == nullptr)) return false;
  is_running_ = true;
  *touched_out = touched_;
  *demands_out = demands_;
  touched_.count = 0;
  demands_ = nullptr;
  return true;
}

void Work::end_round(Demand* demands, const Ranges& left) {
  Guard guard(mutex);
  for (size_t i = 0; i < left.count; ++i) touched_.add_hook(left.spans[i]);
  for (Demand* at = demands; at != nullptr; at = at->next) at->is_done = true;
  is_running_ = false;
  changed_.notify_all();
}

bool Work::is_behind() {
  Guard guard(mutex);
  return touched_.count != 0;
}

void Work::pause() {
  Guard guard(mutex);
  ++pauses_;
  while (is_running_) changed_.wait(mutex);
}

void Work::resume() {
  Guard guard(mutex);
  --pauses_;
}

}  // namespace pinrail::mrall
