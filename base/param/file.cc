// SPDX-License-Identifier: BSD-3-Clause
// Reads parameter files. Start-up context, no lock.
//
#include "base/param/registry_impl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "base/core/files.h"
#include "base/param/param.h"

namespace pinrail::param {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string message_of(int error_number) { return std::generic_category().message(error_number); }

Status refuse(FileError* error_out, const std::string& why, int error_number = 0) {
  error_out->line = 0;
  error_out->error_number = error_number;
  error_out->why = why;
  return PINRAIL_ERR_ERROR;
}

// Returns the text before a comment.
std::string_view without_comment(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins_word = i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t';
    if (text[i] == '#' && begins_word) return text.substr(0, i);
  }
  return text;
}

// Parses the text behind the =. Returns what is wrong, or NULL.
const char* parse_value(std::string_view text, std::string* value_out) {
  const std::string_view rest = trim(text);
  const bool quoted = !rest.empty() && (rest[0] == '"' || rest[0] == '\'');
  if (!quoted) {
    *value_out = trim(without_comment(text));
    return nullptr;
  }
  const size_t end = rest.find(rest[0], 1);
  if (end == std::string_view::npos) return "has a quote that is not closed";
  if (!trim(without_comment(rest.substr(end + 1))).empty()) return "has text behind the closing quote";
  *value_out = rest.substr(1, end - 1);
  return nullptr;
}

// Parses one line. Returns what is wrong, or NULL. The name stays empty if the line sets nothing.
const char* parse_line(std::string_view line, FileLine* setting_out) {
  if (line.size() > kLongestLine) return "is longer than 65536 bytes";
  if (line.find('\0') != std::string_view::npos) return "has a NUL byte";
  const std::string_view text = trim(line);
  if (text.empty() || text[0] == '#') return nullptr;
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return "has no =";
  const std::string_view name = trim(text.substr(0, equals));
  if (!is_name(name)) return "has no parameter's name before the =";
  const char* why = parse_value(text.substr(equals + 1), &setting_out->value);
  if (why == nullptr) setting_out->name = name;
  return why;
}

// Reads the whole file. ERROR if it cannot be read or is too large.
Status read_all(int fd, std::string* text_out, FileError* error_out) {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(error_out, message_of(errno), errno);
    if (got == 0) return success();
    if (text_out->size() > kLargestFile) return refuse(error_out, "it is larger than 16M");
    text_out->append(buffer.data(), static_cast<size_t>(got));
  }
}

}  // namespace

Status parse_file(std::string_view text, std::vector<FileLine>* lines_out, FileError* error_out) {
  std::vector<FileLine> lines;
  if (starts_with(text, kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    FileLine setting{"", "", number};
    const char* why = parse_line(text.substr(0, end), &setting);
    if (why != nullptr) {
      *error_out = {number, 0, why};
      return PINRAIL_ERR_BAD_PARAM;
    }
    if (!setting.name.empty()) lines.push_back(std::move(setting));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  *lines_out = std::move(lines);
  return success();
}

Status read_file(const std::string& path, std::vector<FileLine>* lines_out, FileError* error_out) {
  // O_NONBLOCK: opening a FIFO must not block the start of the program.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    const int error = errno;
    refuse(error_out, message_of(error), error).ignore();
    return error == ENOENT || error == ENOTDIR ? PINRAIL_ERR_NOT_FOUND : PINRAIL_ERR_ERROR;
  }
  struct stat about {};
  if (fstat(file.get(), &about) != 0) return refuse(error_out, message_of(errno), errno);
  if (S_ISDIR(about.st_mode)) return refuse(error_out, "it is a folder", EISDIR);
  // Users name /dev/null to mean "no file", so character devices are permitted.
  if (!S_ISREG(about.st_mode) && !S_ISCHR(about.st_mode)) return refuse(error_out, "it is not a regular file");
  const std::string why_not = S_ISREG(about.st_mode) ? trust::why_untrusted(about) : "";
  if (!why_not.empty())
    return refuse(error_out, "it " + why_not + ", and this program runs with root's rights", EACCES);
  std::string text;
  const Status status = read_all(file.get(), &text, error_out);
  return status.ok() ? parse_file(text, lines_out, error_out) : status;
}

}  // namespace pinrail::param
