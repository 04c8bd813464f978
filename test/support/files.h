// SPDX-License-Identifier: BSD-3-Clause
// files.h - a folder of a test's own, gone with it, and what the code under test says on stderr.
#ifndef PINRAIL_TEST_SUPPORT_FILES_H
#define PINRAIL_TEST_SUPPORT_FILES_H

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/report/report.h"

namespace pinrail::test {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pinrail-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file and says where it is. It is a new one: an old one of that name may still be mapped.
  std::string write(const std::string& name, std::string_view content) const {
    std::filesystem::remove(path(name));
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  std::string path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Runs body and returns what it wrote to stderr.
template <typename Body>
std::string said_by(Body&& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}
// The same, and what was said earlier is forgotten first.
template <typename Body>
std::string said_anew_by(Body&& body) {
  report::forget();
  return said_by(body);
}

inline size_t times(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace pinrail::test

#endif
