// SPDX-License-Identifier: BSD-3-Clause
#include "test/fake/fake_host.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/param/param.h"

namespace pinrail::fake {

FakeHost::FakeHost(const pinrail_component_t& component) : FakeHost(component, pinrail_host_t{}) {
  registrations_.size = sizeof(registrations_);
  registrations_.alloc = [](const pinrail_host_t*, size_t tail_size, size_t, pinrail_registration_t** reg_out) {
    const size_t bytes = sizeof(pinrail_registration_t) + (tail_size + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, bytes);
    if (memory == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
    std::memset(memory, 0, bytes);
    *reg_out = static_cast<pinrail_registration_t*>(memory);
    (*reg_out)->tail_size = static_cast<uint32_t>(tail_size);
    return PINRAIL_SUCCESS;
  };
  registrations_.free = [](const pinrail_host_t*, pinrail_registration_t* reg) { std::free(reg); };
  table_.registrations = &registrations_;
}

FakeHost::FakeHost(const pinrail_component_t& component, const pinrail_host_t& services)
    : component_(component), table_(services) {
  table_.size = sizeof(table_);
  table_.abi = PINRAIL_HOST_ABI;
  table_.self = this;
  table_.param = [](const pinrail_host_t* host, const char* name, pinrail_param_value_t* value_out) {
    return of(host)->read(name, value_out);
  };
  table_.param_info = [](const pinrail_host_t*, const char*, pinrail_param_info_t*) { return PINRAIL_ERR_NOT_FOUND; };
  table_.log = [](const pinrail_host_t* host, pinrail_log_level_t, const char* line) { of(host)->note(line); };
  table_.help = [](const pinrail_host_t* host, const char* topic, const pinrail_help_arg_t* args, size_t count) {
    FakeHelp help{topic, {}};
    for (size_t i = 0; i < count; ++i) help.args[args[i].name] = args[i].value;
    of(host)->note(std::move(help));
  };
  for (size_t i = 0; i < component.param_count; ++i) set(component.params[i].name, component.params[i].fallback);
}

bool FakeHost::set(const std::string& name, const std::string& text) {
  for (size_t i = 0; i < component_.param_count; ++i) {
    if (name != component_.params[i].name) continue;
    std::lock_guard<std::mutex> guard(mutex_);
    texts_.push_back(text);
    pinrail_param_value_t value{};
    std::string why;
    if (!param::parse(component_.params[i], texts_.back(), &value, &why).ok()) return false;
    if (component_.params[i].type == PINRAIL_TYPE_STRING) value.s = texts_.back().c_str();
    values_[name] = value;
    return true;
  }
  return false;
}

std::vector<std::string> FakeHost::missing_topics() const {
  const std::string catalogue = component_.help_catalogue == nullptr ? "" : component_.help_catalogue;
  std::vector<std::string> missing;
  for (const FakeHelp& help : helps()) {
    if (catalogue.find("[" + help.topic + "]") == std::string::npos) missing.push_back(help.topic);
  }
  return missing;
}

void FakeHost::end() {
  std::lock_guard<std::mutex> guard(mutex_);
  ended_ = true;
}

pinrail_status_t FakeHost::read(const char* name, pinrail_param_value_t* value_out) {
  std::lock_guard<std::mutex> guard(mutex_);
  used_after_end_ |= ended_;
  const auto found = values_.find(name);
  if (found == values_.end()) {
    undeclared_.emplace_back(name);
    return PINRAIL_ERR_NOT_FOUND;
  }
  *value_out = found->second;
  return PINRAIL_SUCCESS;
}

void FakeHost::note(const char* line) {
  std::lock_guard<std::mutex> guard(mutex_);
  used_after_end_ |= ended_;
  lines_.emplace_back(line);
}

void FakeHost::note(FakeHelp help) {
  std::lock_guard<std::mutex> guard(mutex_);
  helps_.push_back(std::move(help));
}

}  // namespace pinrail::fake
