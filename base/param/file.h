// SPDX-License-Identifier: BSD-3-Clause
// file.h - reads parameter files, which contain `name = value` lines.
//
//   # a comment; a line may also be blank
//   mpool_grdma_size_limit = 8G     # a comment needs white space before its #
//   mpool = "grdma"                 # one pair of quotes, " or ', is removed: white space and # inside are kept
//
// Lines end in LF or CRLF; the last one need not end.
//
// Threads  All functions may run together.
// Context  start-up or API. They allocate, and may throw bad_alloc.
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
  int line = 0;          // the first line that is wrong; 0: the file cannot be read
  int error_number = 0;  // errno, if a system call failed
  std::string why;       // for example "has no =" or "it is a folder"
};

// Parses a text. BAD_PARAM: a line is neither blank, nor a comment, nor a setting.
Status parse_file(std::string_view text, std::vector<FileLine>* lines_out, FileError* error_out);

// Reads and parses a file. NOT_FOUND: it does not exist. ERROR: it cannot be read, or other users may change it
// (base/core/trust.h). BAD_PARAM: as parse_file().
Status read_file(const std::string& path, std::vector<FileLine>* lines_out, FileError* error_out);

}  // namespace pinrail::param

#endif
