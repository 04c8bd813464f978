// SPDX-License-Identifier: BSD-3-Clause
// json.h - the tools' JSON documents: objects keep the order in which their keys were written.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_JSON_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_JSON_H

#include <nlohmann/json.hpp>
#include <ostream>

namespace pinrail::tools {

using Json = nlohmann::ordered_json;

// Prints a document. A byte that is not UTF-8 becomes U+FFFD; a number that is not finite becomes null.
inline void print(const Json& document, std::ostream& out) {
  out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace pinrail::tools

#endif
