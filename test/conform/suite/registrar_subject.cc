// SPDX-License-Identifier: BSD-3-Clause
// What the checks of registrar_checks.cc use: devices, registrations, comparisons.

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "test/conform/suite/registrar.h"
#include "test/support/process.h"

namespace pinrail::test {
Status ComponentDevice::open(const char* name, const Settings& settings, void* native,
                             std::unique_ptr<Device>* device_out, std::string* why_out) {
  const pinrail_component_t* component = component_under_test("registrar", name, why_out);
  if (component == nullptr) return PINRAIL_ERR_NOT_FOUND;
  return open(*component, settings, native, device_out, why_out);
}

Status ComponentDevice::open(const pinrail_component_t& component, const Settings& settings, void* native,
                             std::unique_ptr<Device>* device_out, std::string* why_out) {
  std::unique_ptr<ComponentDevice> device(new ComponentDevice(component));
  for (const auto& setting : settings) {
    if (!device->host_.set(setting.first, setting.second)) return PINRAIL_ERR_BAD_PARAM;
  }
  Status status = component.open(device->host_.table(), &device->context_);
  if (status.ok()) status = device->ops().create(device->context_, native, &device->registrar_);
  device->made_ = status.ok();
  const auto lines = device->host_.lines();
  if (!status.ok()) *why_out = lines.empty() ? "no reason was logged" : lines.back();
  if (status.ok()) *device_out = std::move(device);
  return status;
}

ComponentDevice::~ComponentDevice() {
  if (made_) ops().destroy(context_, &registrar_);
  if (context_ != nullptr) component_.close(context_);
}

Status ComponentDevice::make_other(pinrail_registrar_t* registrar_out) {
  return ops().create(context_, nullptr, registrar_out);
}

void ComponentDevice::end_other(pinrail_registrar_t* registrar) { ops().destroy(context_, registrar); }

size_t counted_bytes(const Subject& subject) {
  switch (subject.counter) {
    case Counter::vm_pin: return vm_pin_bytes();
    case Counter::vm_lck: return vm_lck_bytes();
    case Counter::nowhere: break;
  }
  return 0;
}

bool may_register(const Subject& subject, size_t bytes) {
  return subject.counter == Counter::nowhere || may_lock(bytes);
}

Status learn(Subject* subject, std::string* why_out) {
  std::unique_ptr<Device> device;
  const Status opened = subject->open(&device, why_out);
  if (!opened.ok()) return opened;
  const pinrail_registrar_t& table = device->table();
  subject->moves_bytes = table.device_read != nullptr && table.device_write != nullptr;
  subject->largest_transfer = size_t{2} << 20;
  const Mapping mapping(8 * page_size());
  mapping.fill(1);
  const size_t pinned = vm_pin_bytes(), locked = vm_lck_bytes();
  Registration outer(table), inner(table);
  if (!outer.make(mapping.base(), mapping.length()).ok()) return success();
  if (vm_pin_bytes() == pinned + mapping.length()) subject->counter = Counter::vm_pin;
  if (vm_lck_bytes() == locked + mapping.length()) subject->counter = Counter::vm_lck;
  subject->pins = subject->counter != Counter::nowhere;
  subject->limited_by_user = subject->counter == Counter::vm_pin;
  if (!inner.make(mapping.base(), page_size()).ok()) return success();
  subject->overlaps_count_once = subject->pins && counted_bytes(*subject) < mapping.length() + page_size();
  // A registrar without keys leaves them 0, which is also a key.
  subject->has_keys = outer.reg().lkey != 0 || inner.reg().lkey != 0;
  return success();
}

namespace {

// Some kernels (7.2) count pinned pages only for processes that a limit may bind: so an infinite one binds us. Best
// effort: a process that may not raise its limit keeps the limit, and any privilege to exceed it.
void bind_by_infinite_limit() { static_cast<void>(limit_locked_memory(RLIM_INFINITY, false)); }

}  // namespace

void run_registrar_check(const Subject& subject, const RegistrarCheck& check, conform::Verdict* verdict) {
  bind_by_infinite_limit();
  const size_t descriptors = open_descriptors(), counted = counted_bytes(subject);
  NEEDS_PINS(kGranted);
  {
    std::unique_ptr<Device> device;
    std::string why;
    const Status status = subject.open(&device, &why);
    APPLIES_IF(!status.is(PINRAIL_ERR_NOT_AVAILABLE), subject.name + " is not available here: " + why);
    KEEPS("C3", status.ok(), "open() or create() returned " + std::string(status_name(status.code())) + ": " + why);
    check.run({subject, device->table()}, verdict);
  }
  KEEPS("R10", counted_bytes(subject) == counted, "after all was deregistered, the kernel counts other pinned bytes");
  KEEPS("R10", open_descriptors() == descriptors, "descriptors are left open after destroy() and close()");
}

constexpr unsigned char kGuard = 0xa5;

Registration::Registration(const pinrail_registrar_t& table) : table_(table) {
  guard_ = sizeof(pinrail_registration_t) + table.tail_size;
  bytes_ = (guard_ + 63) / 64 * 64 + 64;
  reg_ = static_cast<pinrail_registration_t*>(std::aligned_alloc(64, bytes_));
  if (reg_ == nullptr) std::abort();
  std::memset(reg_, 0, guard_);
  std::memset(reinterpret_cast<char*>(reg_) + guard_, kGuard, bytes_ - guard_);
}

bool Registration::tail_kept() const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(reg_);
  return std::all_of(bytes + guard_, bytes + bytes_, [](unsigned char byte) { return byte == kGuard; });
}

Registration::~Registration() {
  if (live_) give_back().ignore();
  std::free(reg_);
}

Status Registration::make(void* addr, size_t length, uint32_t rights, uint32_t traits, uint32_t kind,
                          const pinrail_gpu_block_t* block) {
  reg_->base = addr;
  reg_->length = length;
  reg_->rights = rights;
  reg_->traits = traits;
  reg_->tail_size = static_cast<uint32_t>(table_.tail_size);
  pinrail_register_request_t request{};
  request.size = sizeof(request);
  request.kind = kind;
  request.rights = rights;
  request.traits = traits;
  request.fd = -1;
  request.addr = addr;
  request.length = length;
  request.handle = block;
  request.handle_length = block == nullptr ? 0 : sizeof(*block);
  const Status status = table_.register_mem(table_.context, &request, reg_);
  live_ = status.ok();
  return status;
}

Status Registration::give_back(pinrail_reason_t reason) {
  live_ = false;
  return table_.deregister_mem(table_.context, reg_, reason);
}

Status Registration::device_read(size_t offset, void* into, size_t length) const {
  return table_.device_read(table_.context, reg_, offset, into, length);
}

Status Registration::device_write(size_t offset, const void* from, size_t length) const {
  return table_.device_write(table_.context, reg_, offset, from, length);
}

namespace {

std::string compare(const unsigned char* got, uint64_t seed, size_t offset, size_t length) {
  const std::vector<unsigned char> want = stamped(seed, offset, length);
  if (length == 0 || std::memcmp(got, want.data(), length) == 0) return "";
  size_t at = 0;
  while (got[at] == want[at]) ++at;
  return "byte " + std::to_string(offset + at) + " is " + std::to_string(unsigned{got[at]}) + ", not " +
         std::to_string(unsigned{want[at]});
}

}  // namespace

std::string device_differs(const Registration& registration, uint64_t seed, size_t offset, size_t length) {
  std::vector<unsigned char> got(length, 0x5a);
  const Status status = registration.device_read(offset, got.data(), length);
  if (!status.ok()) return std::string("device_read: ") + status_name(status.code());
  return compare(got.data(), seed, offset, length);
}

std::string processor_differs(const Mapping& mapping, uint64_t seed, size_t offset, size_t length) {
  return compare(mapping.base() + offset, seed, offset, length);
}

}  // namespace pinrail::test
