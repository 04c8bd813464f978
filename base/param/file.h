// SPDX-License-Identifier: BSD-3-Clause
// file.h - parameter files: `name = value` lines.
//
//   # a comment; a line may also be blank
//   mpool_grdma_size_limit = 8G     # a comment needs white space before its #
//   mpool = "grdma"                 # one pair of quotes, " or ', is taken off: white space and # inside are kept
//
// Lines end in LF or CRLF, the last one also in nothing. Threads: all functions may run together.
#ifndef PINRAIL_BASE_PARAM_FILE_H
#define PINRAIL_BASE_PARAM_FILE_H

#include <string>
#include <string_view>
#include <vector>

#include "base/core/status.h"

namespace pinrail::param {

constexpr size_t kLongestLine = size_t{64} * 1024;
constexpr size_t kLargestFile = size_t{16} * 1024 * 1024;

struct FileLine {
  std::string name;
  std::string value;
  int line;
};

struct FileError {
  int line = 0;          // of the first line that is wrong; 0: the file cannot be read
  int error_number = 0;  // errno, if the system refused
  std::string why;       // "has no =", "is a folder"
};

// The lines of a text. BAD_PARAM: a line is neither blank, a comment nor a setting.
Status parse_file(std::string_view text, std::vector<FileLine>* lines_out, FileError* error_out);

// NOT_FOUND: there is no such file. ERROR: it cannot be read, or others may change it (base/core/trust.h). BAD_PARAM:
// as above.
Status read_file(const std::string& path, std::vector<FileLine>* lines_out, FileError* error_out);

}  // namespace pinrail::param

#endif
