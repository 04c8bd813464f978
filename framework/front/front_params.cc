// SPDX-License-Identifier: BSD-3-Clause
// The functions of params.h, which documents them. API context; the caller holds no lock and may hold references.
#include <pinrail/params.h>

#include "framework/front/front.h"
#include "framework/front/refuse.h"

using pinrail::guarded;
using pinrail::Status;
using pinrail::front::front_registry;
using pinrail::front::refuse;
using pinrail::param::copy_info;
using pinrail::param::Registry;

namespace {

// Copies as much as info_out->size allows. BAD_PARAM, with a message: that size is wrong.
Status copy(const char* call, const pinrail_param_info_t& info, pinrail_param_info_t* info_out) {
  return pinrail::front::report_if_bad(copy_info(info, info_out).code(), call,
                                       "info_out->size is not sizeof(pinrail_param_info_t)");
}

}  // namespace

size_t pinrail_param_count(void) {
  const Registry* params = front_registry();
  return params != nullptr ? params->count() : 0;
}

pinrail_status_t pinrail_param_at(size_t index, pinrail_param_info_t* info_out) {
  return guarded([=]() -> Status {
    const Registry* params = front_registry();
    if (info_out == nullptr) return refuse("pinrail_param_at", "info_out is NULL");
    if (params == nullptr) return PINRAIL_ERR_NOT_FOUND;
    pinrail_param_info_t info{};
    const Status status = params->at(index, &info);
    return status.ok() ? copy("pinrail_param_at", info, info_out) : status;
  });
}

pinrail_status_t pinrail_param_find(const char* name, pinrail_param_info_t* info_out) {
  return guarded([=]() -> Status {
    const Registry* params = front_registry();
    if (name == nullptr || info_out == nullptr) return refuse("pinrail_param_find", "name or info_out is NULL");
    if (params == nullptr) return PINRAIL_ERR_NOT_FOUND;
    pinrail_param_info_t info{};
    const Status status = params->find(name, &info);
    return status.ok() ? copy("pinrail_param_find", info, info_out) : status;
  });
}

pinrail_status_t pinrail_param_set(const char* name, const char* value) {
  return guarded([=]() -> Status {
    Registry* params = front_registry();
    if (name == nullptr || value == nullptr) return refuse("pinrail_param_set", "name or value is NULL");
    if (params == nullptr) return PINRAIL_ERR_NOT_FOUND;
    return params->set(name, value);
  });
}

const char* pinrail_param_source_name(pinrail_param_source_t source) {
  switch (source) {
    case PINRAIL_SOURCE_DEFAULT: return "default";
    case PINRAIL_SOURCE_FILE: return "file";
    case PINRAIL_SOURCE_ENVIRONMENT: return "environment";
    case PINRAIL_SOURCE_COMMAND_LINE: return "program";
    case PINRAIL_SOURCE_API: return "API";
    case PINRAIL_SOURCE_OVERRIDE: return "override file";
  }
  return "unknown source";
}
