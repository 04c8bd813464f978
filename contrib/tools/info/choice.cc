// SPDX-License-Identifier: BSD-3-Clause
// Which pool and registrar a program gets that names none, found out by creating pools.
#include <pinrail/pinrail.h>

#include "contrib/tools/common/text.h"
#include "contrib/tools/info/snapshot.h"

namespace pinrail::info {
namespace {

// Creates a pool for a trial. Pinrail's messages are not printed meanwhile: the first one is the reason of a refusal.
class Trial {
 public:
  Trial(const char* mpool, const char* registrar) {
    pinrail_set_message_function(record, this);
    const pinrail_registrar_choice_t choice = {registrar, nullptr, nullptr};
    status_ = pinrail_mpool_create(mpool, &choice, "pinrail_info", nullptr, &pool_);
  }
  ~Trial() {
    if (pool_ != nullptr) pinrail_mpool_destroy(pool_, 0);
    pinrail_set_message_function(nullptr, nullptr);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool worked() const { return pool_ != nullptr; }
  std::string pool() const { return pinrail_mpool_name(pool_); }
  std::string registrar() const { return pinrail_mpool_registrar_name(pool_); }
  std::string why() const { return recorded_.empty() ? pinrail_status_text(status_) : recorded_; }

 private:
  static void record(void* self, int /*level*/, const char* /*channel*/, const char* text) {
    auto* const trial = static_cast<Trial*>(self);
    if (trial->recorded_.empty()) trial->recorded_ = tools::what_happened(text);
  }

  pinrail_mpool_t* pool_ = nullptr;
  pinrail_status_t status_ = PINRAIL_SUCCESS;
  std::string recorded_;
};

bool is_open(const pinrail_component_info_t& component) {
  return component.selected != 0 && component.status == PINRAIL_SUCCESS;
}

std::string why_passed(const pinrail_component_info_t& component, const Choice& choice) {
  if (!is_open(component)) return state_text(component);
  const std::string framework = component.framework;
  if (framework == "monitor") return component.reason;
  const bool is_pool = framework == "mpool";
  const Trial trial(is_pool ? component.name : nullptr, is_pool ? nullptr : component.name);
  if (!trial.worked()) return trial.why();
  return "it works, but " + (is_pool ? choice.pool : choice.registrar) + " has a higher priority";
}

bool is_used(const pinrail_component_info_t& component, const Choice& choice) {
  const std::string framework = component.framework, name = component.name;
  if (framework == "monitor") return is_open(component) && *component.reason == '\0';
  return name == (framework == "mpool" ? choice.pool : choice.registrar);
}

}  // namespace

Choice find_choice(const std::vector<pinrail_component_info_t>& components) {
  Choice choice;
  {
    const Trial any(nullptr, nullptr);
    if (any.worked()) {
      choice.pool = any.pool();
      choice.registrar = any.registrar();
    } else {
      choice.why_none = any.why();
    }
  }
  choice.monitors = pinrail_monitors_at_work();
  for (const pinrail_component_info_t& component : components) {
    const std::string framework = component.framework;
    if (framework == "rcache" || is_used(component, choice)) continue;
    choice.passed.push_back({framework, component.name, why_passed(component, choice)});
  }
  return choice;
}

}  // namespace pinrail::info
