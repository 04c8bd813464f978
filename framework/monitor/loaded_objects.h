// SPDX-License-Identifier: BSD-3-Clause
// loaded_objects.h - what the objects that this process has loaded define, read from their symbol tables.
//
// dlsym() takes the loader's lock, which is held while constructors run. This does not: it may be used on any thread.
#ifndef PINRAIL_FRAMEWORK_MONITOR_LOADED_OBJECTS_H
#define PINRAIL_FRAMEWORK_MONITOR_LOADED_OBJECTS_H

#include <elf.h>
#include <link.h>

#include <cstdint>

namespace pinrail::monitor {

// One object's dynamic symbols; good while the object is loaded.
class LoadedObject {
 public:
  explicit LoadedObject(const dl_phdr_info& info);

  const char* path() const { return path_; }
  uintptr_t base() const { return base_; }
  bool holds(uintptr_t address) const { return address >= begin_ && address < end_; }
  // The address of a function that it defines and exports; 0: it does not.
  uintptr_t function(const char* name) const;

 private:
  const ElfW(Sym) * find(const char* name) const;
  const ElfW(Sym) * find_by_hash(const char* name) const;
  bool is_called(const ElfW(Sym) & symbol, const char* name) const;

  const char* path_;
  uintptr_t base_, begin_ = UINTPTR_MAX, end_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  const uint32_t* gnu_hash_ = nullptr;
  const uint32_t* hash_ = nullptr;
};

// Calls visit(object) for each, until it returns false. Nothing is unloaded meanwhile; visit takes no lock of the
// loader's.
template <typename Visit>
void for_each_object(Visit visit) {
  dl_iterate_phdr([](dl_phdr_info* info, size_t,
                     void* arg) -> int { return (*static_cast<Visit*>(arg))(LoadedObject(*info)) ? 0 : 1; },
                  &visit);
}

}  // namespace pinrail::monitor

#endif
