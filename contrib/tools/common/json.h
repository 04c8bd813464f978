// SPDX-License-Identifier: BSD-3-Clause
// json.h - the tools' JSON documents. Apart from program.h, because a compiler reads the library's header for seconds.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_JSON_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_JSON_H

#include <nlohmann/json.hpp>
#include <ostream>

#include "contrib/tools/common/program.h"

namespace pinrail::tools {

// Objects keep the order in which their keys were written.
using Json = nlohmann::ordered_json;

// Prints a document. A byte that is not UTF-8 becomes U+FFFD; a number that is not finite becomes null.
inline void print(const Json& document, std::ostream& out) {
  out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

inline Json reasons_json(const Misses& misses) {
  Json json = Json::object();
  for (const uint32_t reason : reasons_of(misses)) json[reason_key(reason)] = misses[reason];
  return json;
}

}  // namespace pinrail::tools

#endif
