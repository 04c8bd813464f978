// SPDX-License-Identifier: BSD-3-Clause
// registrar.h - what every registrar must do: the checks, and what they need to know of a registrar.
//
// Threads  one check at a time.
#ifndef PINRAIL_TEST_CONFORM_SUITE_REGISTRAR_H
#define PINRAIL_TEST_CONFORM_SUITE_REGISTRAR_H

#include <pinrail/component.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/core/status.h"
#include "test/conform/suite/component.h"
#include "test/fake/fake_host.h"
#include "test/support/memory.h"

namespace pinrail::test {

// A registrar that was made, and that its destructor ends.
class Device {
 public:
  virtual ~Device() = default;
  virtual const pinrail_registrar_t& table() const = 0;
};

// One made by a component, driven without the library.
class ComponentDevice : public Device {
 public:
  using Settings = std::map<std::string, std::string>;

  // why_out: the reason in words if there is none. The first finds the component of that name in this build.
  static Status open(const char* name, const Settings& settings, void* native, std::unique_ptr<Device>* device_out,
                     std::string* why_out);
  static Status open(const pinrail_component_t& component, const Settings& settings, void* native,
                     std::unique_ptr<Device>* device_out, std::string* why_out);
  ~ComponentDevice() override;

  const pinrail_registrar_t& table() const override { return registrar_; }
  const fake::FakeHost& host() const { return host_; }
  // Another registrar of the same opened component; end it with end_other().
  Status make_other(pinrail_registrar_t* registrar_out);
  void end_other(pinrail_registrar_t* registrar);

 private:
  explicit ComponentDevice(const pinrail_component_t& component) : component_(component), host_(component) {}
  const pinrail_registrar_ops_t& ops() const { return *static_cast<const pinrail_registrar_ops_t*>(component_.ops); }

  const pinrail_component_t& component_;
  fake::FakeHost host_;
  void* context_ = nullptr;
  bool made_ = false;
  pinrail_registrar_t registrar_{};
};

// Where the kernel counts what is registered.
enum class Counter : uint8_t { nowhere, vm_pin, vm_lck };

struct Subject {
  std::string name;
  std::function<Status(std::unique_ptr<Device>*, std::string* why_out)> open;
  Counter counter = Counter::nowhere;
  bool moves_bytes = false;      // has device_read and device_write
  bool has_keys = false;         // lkeys differ between live registrations
  bool pins = false;             // it looks at the memory, and RLIMIT_MEMLOCK bounds it
  bool limited_by_user = false;  // ... over all processes of the user
  bool overlaps_count_once = false;
  size_t largest_transfer = size_t{16} << 20;  // bytes; smaller where moving bytes is slow
};

// The facts of an unknown registrar, found by trying: its table, and what the kernel counts of one registration.
// NULL device: it cannot be had; why_out says why.
Status learn(Subject* subject, std::string* why_out);

size_t counted_bytes(const Subject& subject);
bool may_register(const Subject& subject, size_t bytes);

// What a check may take for granted that this user may pin or lock; larger ones say NEEDS_PINS(bytes) first.
constexpr size_t kGranted = size_t{1} << 20;
#define NEEDS_PINS(bytes) \
  APPLIES_IF(may_register(subject, bytes), "needs \"ulimit -l\" of " + std::to_string((bytes) >> 10) + " KiB")

constexpr uint32_t kAllRights = PINRAIL_RIGHTS_MASK;

// One registration: memory as a pool would lend it, and a register call. It deregisters what was registered.
class Registration {
 public:
  explicit Registration(const pinrail_registrar_t& table);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // block: of a peer's memory.
  Status make(void* addr, size_t length, uint32_t rights = kAllRights, uint32_t traits = 0,
              uint32_t kind = PINRAIL_KIND_HOST, const pinrail_gpu_block_t* block = nullptr);
  Status give_back(pinrail_reason_t reason = PINRAIL_REASON_RELEASED);

  void forget() { live_ = false; }  // the destructor gives nothing back

  // Through device_read and device_write; offsets from the registration's base.
  Status device_read(size_t offset, void* into, size_t length) const;
  Status device_write(size_t offset, const void* from, size_t length) const;

  bool is_live() const { return live_; }
  const pinrail_registration_t& reg() const { return *reg_; }
  // Whether the bytes behind the tail are untouched (C6).
  bool tail_kept() const;

 private:
  const pinrail_registrar_t& table_;
  pinrail_registration_t* reg_;
  size_t guard_ = 0;  // offset of the bytes behind the tail
  size_t bytes_ = 0;
  bool live_ = false;
};

// Compares what the device sees with the contents of that seed (see memory.h), from mapping offset on; all bytes.
// Returns what differs, or "".
std::string device_differs(const Registration& registration, uint64_t seed, size_t offset, size_t length);
// The same of the processor.
std::string processor_differs(const Mapping& mapping, uint64_t seed, size_t offset, size_t length);

// A check gets the open device too.
struct OpenSubject {
  const Subject& facts;
  const pinrail_registrar_t& table;
};
// Which registrars a check is for: those that pin pages, and those that have device_read and device_write.
enum class For : uint8_t { all, pages, bytes, pages_and_bytes };
struct RegistrarCheck : conform::Check<OpenSubject> {
  For whom;
};
bool is_for(const RegistrarCheck& check, const Subject& subject);
const std::vector<RegistrarCheck>& registrar_checks();
std::vector<RegistrarCheck> registrar_checks_for(const Subject& subject);

// Opens the subject, runs the check, closes, and looks that counters and descriptors are back where they were.
void run_registrar_check(const Subject& subject, const RegistrarCheck& check, conform::Verdict* verdict);

}  // namespace pinrail::test

#endif
