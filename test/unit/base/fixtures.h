// SPDX-License-Identifier: BSD-3-Clause
// fixtures.h - a registry with sources of a test's own, and declarations to fill it with; a loader with a folder of its
// own, and component files made to order.
#ifndef PINRAIL_TEST_UNIT_BASE_FIXTURES_H
#define PINRAIL_TEST_UNIT_BASE_FIXTURES_H

#include <gtest/gtest.h>
#include <link.h>
#include <pinrail/component_mpool.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/loader/loader.h"
#include "base/param/param.h"
#include "config.h"
#include "test/support/files.h"

namespace pinrail::param {

inline pinrail_param_t declaration(const char* name, pinrail_param_type_t type, const char* fallback,
                                   pinrail_param_scope_t scope = PINRAIL_SCOPE_READONLY) {
  pinrail_param_t it{};
  it.size = sizeof(it);
  it.name = name;
  it.fallback = fallback;
  it.help = "A parameter of a test.";
  it.type = type;
  it.scope = scope;
  it.level = 5;
  return it;
}

// Sources that are all empty files or lists until a test fills them.
class ParamTest : public testing::Test {
 protected:
  ParamTest() {
    sources_.site_file = folder_.path("site.conf");
    sources_.user_file = folder_.path("user.conf");
    sources_.override_file = folder_.path("override.conf");
    sources_.environment_prefixes = {"PINRAIL_MCA_", "FOO_MCA_"};
  }

  Status read() { return registry_.read_sources(sources_); }

  // Declares mpool_test_<name>.
  Status declare(const pinrail_param_t& it, const char* const* prefixes = nullptr) {
    return registry_.declare("mpool", "test", &it, 1, prefixes);
  }

  // Reads the sources and declares mpool_test_x, a STRING with the default "default".
  void start() {
    ASSERT_TRUE(read().ok());
    ASSERT_TRUE(declare(declaration("x", PINRAIL_TYPE_STRING, "default", PINRAIL_SCOPE_SETTABLE)).ok());
  }

  pinrail_param_info_t info(const char* name) {
    pinrail_param_info_t it{};
    EXPECT_TRUE(registry_.find(name, &it).ok()) << name;
    return it;
  }

  std::string value(const char* name = "mpool_test_x") { return info(name).value; }

  test::TempFolder folder_;
  Sources sources_;
  Registry registry_;
};

}  // namespace pinrail::param

namespace pinrail::loader {

// The bytes of a component's file, to be changed.
class Image {
 public:
  Image() : bytes_(test::read_whole(PINRAIL_TEST_BUILD "/test/unit/base/.libs/tiny_component.so")) {
    EXPECT_FALSE(bytes_.empty()) << PINRAIL_TEST_BUILD "/test/unit/base/.libs/tiny_component.so";
    const std::string framework("mpool\0\0\0\0\0\0\0\0\0\0\0tiny", 20);
    descriptor_ = bytes_.find(framework) - offsetof(pinrail_component_t, framework);
    table_ = bytes_.find(std::string("the table of it\0", 16)) + 16;
    EXPECT_LT(descriptor_, bytes_.size());
    EXPECT_LT(table_, bytes_.size());
  }

  Image& abi(uint32_t value) { return put(descriptor_ + offsetof(pinrail_component_t, abi), &value, sizeof(value)); }
  Image& size(size_t value) { return put(descriptor_ + offsetof(pinrail_component_t, size), &value, sizeof(value)); }
  Image& priority(int32_t value) {
    return put(descriptor_ + offsetof(pinrail_component_t, priority), &value, sizeof(value));
  }
  Image& framework(const char* text) { return put_text(offsetof(pinrail_component_t, framework), text, 16); }
  Image& name(const char* text) { return put_text(offsetof(pinrail_component_t, name), text, 32); }
  Image& table_size(size_t value) { return put(table_, &value, sizeof(value)); }

  // What the symbol of the descriptor says of its size.
  Image& symbol_size(uint64_t value) {
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes_.data());
    const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes_.data() + header->e_shoff);
    for (size_t i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type != SHT_DYNSYM) continue;
      const char* const names = bytes_.data() + sections[sections[i].sh_link].sh_offset;
      for (size_t end = sections[i].sh_size, at = 0; at < end; at += sizeof(ElfW(Sym))) {
        const size_t place = sections[i].sh_offset + at;
        const auto* symbol = reinterpret_cast<const ElfW(Sym)*>(bytes_.data() + place);
        if (strcmp(names + symbol->st_name, "pinrail_component") != 0) continue;
        return put(place + offsetof(ElfW(Sym), st_size), &value, sizeof(symbol->st_size));
      }
    }
    ADD_FAILURE() << "there is no such symbol";
    return *this;
  }

  // Changes every place where the text stands; both have one length.
  Image& replace(const std::string& text, const std::string& by) {
    EXPECT_EQ(text.size(), by.size());
    for (size_t at = bytes_.find(text); at != std::string::npos; at = bytes_.find(text, at)) {
      bytes_.replace(at, text.size(), by);
    }
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

  // The first byte behind everything that dlopen maps.
  size_t mapped_end() const {
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes_.data());
    const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(bytes_.data() + header->e_phoff);
    size_t end = 0;
    for (size_t i = 0; i < header->e_phnum; ++i) {
      if (segments[i].p_type == PT_LOAD) end = std::max<size_t>(end, segments[i].p_offset + segments[i].p_filesz);
    }
    return end;
  }

 private:
  Image& put(size_t at, const void* from, size_t length) {
    memcpy(bytes_.data() + at, from, length);
    return *this;
  }
  Image& put_text(size_t field, const char* text, size_t length) {
    std::string padded(text);
    padded.resize(length);
    return put(descriptor_ + field, padded.data(), length);
  }

  std::string bytes_;
  size_t descriptor_ = 0, table_ = 0;
};

inline pinrail_mpool_ops_t empty_table() {
  pinrail_mpool_ops_t table{};
  table.size = sizeof(table);
  return table;
}

inline const std::vector<Framework>& test_frameworks() {
  static const std::vector<Framework> all = {{"mpool", PINRAIL_MPOOL_ABI, sizeof(pinrail_mpool_ops_t)},
                                             {"rcache", PINRAIL_RCACHE_ABI, sizeof(pinrail_rcache_ops_t)},
                                             {"monitor", PINRAIL_MONITOR_ABI, sizeof(pinrail_monitor_ops_t)}};
  return all;
}

class LoaderTest : public testing::Test {
 protected:
  LoaderTest() { set("mca_base_component_path", folder_.path()); }

  void set(const std::string& name, const std::string& value) { sources_.settings.push_back({name, value}); }

  std::string write(const std::string& name, const Image& image) { return folder_.write(name + ".so", image.bytes()); }

  // A fresh registry and loader; what they say is in said_.
  Status discover() {
    loader_.reset();
    params_ = std::make_unique<param::Registry>();
    EXPECT_TRUE(params_->read_sources(sources_).ok());
    loader_ = std::make_unique<Loader>(*params_, services_, built_in_.data());
    Status status = PINRAIL_ERR_ERROR;
    said_ = test::said_anew_by([&] { status = loader_->discover(test_frameworks()); });
    return status;
  }

  Status open(const char* framework = "mpool") {
    Status status = PINRAIL_ERR_ERROR;
    said_ = test::said_anew_by([&] { status = loader_->open(framework); });
    return status;
  }

  // Names of what is open, best first.
  std::string opened(const char* framework = "mpool") const {
    std::string names;
    for (const Opened& it : loader_->opened(framework))
      names += (names.empty() ? "" : " ") + std::string(it.descriptor->name);
    return names;
  }

  Listed listed(const std::string& name) const {
    for (const Listed* it : loader_->listed()) {
      if (it->name == name) return *it;
    }
    ADD_FAILURE() << name << " is not listed";
    return {};
  }

  bool said(std::string_view text) const { return test::has(said_, text); }

  test::TempFolder folder_;
  param::Sources sources_;
  pinrail_host_t services_{};
  std::vector<const pinrail_component_t*> built_in_ = {nullptr};
  std::unique_ptr<param::Registry> params_;
  std::unique_ptr<Loader> loader_;
  std::string said_;
};

}  // namespace pinrail::loader

#endif
