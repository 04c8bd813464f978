// SPDX-License-Identifier: BSD-3-Clause
// What every index must do. The checks call its table directly, with the library's own registrations.
#include <atomic>
#include <cstring>
#include <memory>
#include <random>

#include "base/registration/thread.h"
#include "framework/api/api.h"
#include "test/conform/suite/component.h"
#include "test/fake/fake_host.h"
#include "test/support/threads.h"

namespace pinrail::conform {
namespace {

constexpr uintptr_t kBase = 0x10000000;  // indexes and registrations never touch the memory
constexpr size_t kPage = 4096;
constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ, kWrite = PINRAIL_ACCESS_REMOTE_WRITE;

// What left the index, by visits.
struct Left {
  const pinrail_registration_services_t* services = nullptr;
  std::vector<pinrail_registration_t*> regs;
  size_t empty_visits = 0;
  static void visit_hook(void* self_pointer, pinrail_registration_t* const* regs, size_t count) {
    auto* self = static_cast<Left*>(self_pointer);
    if (count == 0) ++self->empty_visits;
    for (size_t i = 0; i < count; ++i) {
      self->services->mark_dead_hook(regs[i]);
      if (self->regs.size() < self->regs.capacity()) self->regs.push_back(regs[i]);  // hook context: no allocation
    }
  }
  size_t count_of(const pinrail_registration_t* reg) const {
    size_t count = 0;
    for (const auto* one : regs) count += one == reg ? 1 : 0;
    return count;
  }
};

// One index, as a pool would hold it.
class Index {
 public:
  Index(const File& file, uint32_t flags, Verdict* verdict) : verdict_(verdict), services_(api::make_services()) {
    component_ = load(file, verdict);
    if (component_ == nullptr) return;
    host_ = std::make_unique<fake::FakeHost>(*component_, services_);
    if (component_->open(host_->table(), &context_) != PINRAIL_SUCCESS) {
      verdict->skipped = "it cannot be opened here";
      return;
    }
    opened_ = true;
    ops_ = static_cast<const pinrail_rcache_ops_t*>(component_->ops);
    const bool complete = ops_->create != nullptr && ops_->destroy != nullptr && ops_->find != nullptr &&
                          ops_->find_or_announce != nullptr && ops_->withdraw != nullptr && ops_->publish != nullptr &&
                          ops_->remove != nullptr && ops_->invalidate_hook != nullptr && ops_->count != nullptr;
    if (!complete) {
      verdict->breaks("C1", "a function of the table that is not optional is NULL");
      return;
    }
    const pinrail_status_t made = ops_->create(context_, flags, &module_);
    if (made == PINRAIL_ERR_NOT_SUPPORTED && flags != 0) verdict->skipped = "it has no such indexes";
    if (made != PINRAIL_SUCCESS && verdict->skipped.empty()) verdict->breaks("C4", "create() fails");
    if (made != PINRAIL_SUCCESS) module_ = nullptr;
    left_.services = services_.registrations;
    left_.regs.reserve(4096);
  }
  ~Index() {
    if (module_ != nullptr) ops_->destroy(module_);
    if (opened_) component_->close(context_);
  }
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  bool usable() const { return module_ != nullptr; }
  const pinrail_rcache_ops_t& ops() const { return *ops_; }
  void* module() const { return module_; }
  void* context() const { return context_; }
  Left& left() { return left_; }
  const pinrail_registration_services_t& services() const { return *services_.registrations; }
  size_t count() const { return ops_->count(module_); }

  pinrail_registration_t* make(uintptr_t base, size_t length, uint32_t rights, uint32_t traits = 0,
                               uint32_t flags = 0) {
    pinrail_registration_t* reg = nullptr;
    if (services().alloc(host_->table(), 0, 0, &reg) != PINRAIL_SUCCESS) std::abort();
    reg->base = reinterpret_cast<void*>(base);
    reg->length = length;
    reg->rights = rights;
    reg->traits = traits;
    reg->flags = flags;
    return reg;
  }
  // NOT_FOUND: announced. Other errors: not.
  pinrail_status_t announce(const pinrail_registration_t& like, pinrail_announcement_t* announcement) {
    std::memset(announcement, 0x5a, sizeof(*announcement));  // the library does not initialise `own`
    announcement->base = reinterpret_cast<uintptr_t>(like.base);
    announcement->length = like.length;
    announcement->access = like.rights | like.traits;
    announcement->more_rights = 0;
    announcement->flags = like.flags & PINRAIL_FLAG_PERSISTENT;
    announcement->marks = PINRAIL_KEEP_CACHED;
    announcement->waits_for = 0;
    pinrail_registration_t* found = nullptr;
    const pinrail_status_t status = ops_->find_or_announce(module_, thread(), announcement, &found);
    if (status == PINRAIL_SUCCESS) drop(found);
    return status;
  }
  pinrail_status_t publish(pinrail_announcement_t* announcement, pinrail_registration_t* reg) {
    const pinrail_status_t status = ops_->publish(module_, thread(), announcement, reg, Left::visit_hook, &left_);
    if (status != PINRAIL_SUCCESS) {
      static_cast<void>(ops_->withdraw(module_, announcement));
      if (services().state(reg) != 0) verdict_->breaks("R3", "a publish() that is refused marks the registration");
      return status;
    }
    if (references(reg) != 1) verdict_->breaks("R9", "publish() does not leave the caller one reference");
    drop(reg);
    return status;
  }
  // Inserts without a find: as a pool whose request the index does not answer.
  pinrail_status_t put(pinrail_registration_t* reg) {
    pinrail_announcement_t announcement;
    const pinrail_status_t status = announce(*reg, &announcement);
    if (status == PINRAIL_SUCCESS) return PINRAIL_ERR_BUSY;  // one that is in answers
    return status == PINRAIL_ERR_NOT_FOUND ? publish(&announcement, reg) : status;
  }
  pinrail_registration_t* put_new(uintptr_t base, size_t length, uint32_t rights, uint32_t traits = 0,
                                  uint32_t flags = 0) {
    pinrail_registration_t* reg = make(base, length, rights, traits, flags);
    const pinrail_status_t status = put(reg);
    if (status == PINRAIL_SUCCESS) return reg;
    verdict_->breaks("R3", "a registration that nothing in the index answers is not inserted");
    return nullptr;
  }
  // What a find returns, its reference dropped again.
  pinrail_registration_t* find(uintptr_t base, size_t length, uint32_t access) {
    pinrail_registration_t* reg = nullptr;
    const pinrail_status_t status = ops_->find(module_, thread(), base, length, access, &reg);
    if (!is_status(status)) verdict_->breaks("C5", "find() returns a code that does not exist");
    if (status != PINRAIL_SUCCESS && reg != nullptr) verdict_->breaks("C4", "find() fails and writes reg_out");
    if (status != PINRAIL_SUCCESS) return nullptr;
    drop(reg);
    return reg;
  }
  uint64_t references(const pinrail_registration_t* reg) const { return services().references(reg); }
  void drop(pinrail_registration_t* reg) {
    const pinrail_drop_t dropped = services().drop({reg, services().generation(reg)});
    if (dropped == PINRAIL_DROP_STALE) verdict_->breaks("R9", "a find returns a registration without a reference");
  }
  static pinrail_thread_t* thread() { return thread::current(); }

 private:
  Verdict* verdict_;
  const pinrail_host_t services_;
  const pinrail_component_t* component_ = nullptr;
  std::unique_ptr<fake::FakeHost> host_;
  void* context_ = nullptr;
  bool opened_ = false;
  const pinrail_rcache_ops_t* ops_ = nullptr;
  void* module_ = nullptr;
  Left left_;
};

void a_range_inside_is_found_and_one_that_sticks_out_is_not(Index& index, Verdict* verdict) {
  KEEPS("R3", index.find(kBase, kPage, 0) == nullptr, "an empty index finds something");
  pinrail_registration_t* reg = index.put_new(kBase, 4 * kPage, kRead);
  if (reg == nullptr) return;
  KEEPS("R3", index.count() == 1, "count() is not the number of registrations");
  KEEPS("R3", index.find(kBase, 4 * kPage, kRead) == reg, "a find of the whole range does not return it");
  KEEPS("R3", index.find(kBase + kPage + 7, 100, 0) == reg, "a find of a range inside does not return it");
  KEEPS("R3", index.find(kBase + 4 * kPage - 1, 1, kRead) == reg, "a find of the last byte does not return it");
  KEEPS("R3", index.find(kBase + 4 * kPage - 1, 2, kRead) == nullptr, "a find returns what ends before the range");
  KEEPS("R3", index.find(kBase - 1, 2, kRead) == nullptr, "a find returns what begins behind the range");
}

void rights_must_be_a_superset_and_traits_equal(Index& index, Verdict* verdict) {
  if (index.put_new(kBase, 4 * kPage, kRead, PINRAIL_TRAIT_RELAXED_ORDERING) == nullptr) return;
  KEEPS("R3", index.find(kBase, kPage, kRead | PINRAIL_TRAIT_RELAXED_ORDERING) != nullptr,
        "its own access is not found");
  KEEPS("R3", index.find(kBase, kPage, kWrite | PINRAIL_TRAIT_RELAXED_ORDERING) == nullptr,
        "a find returns a registration that lacks a right");
  KEEPS("R3", index.find(kBase, kPage, kRead) == nullptr, "a find returns a registration of other traits");
}

void an_exact_index_finds_only_equals(Index& index, Verdict* verdict) {
  pinrail_registration_t* reg = index.put_new(kBase, 4 * kPage, kRead);
  if (reg == nullptr) return;
  KEEPS("R3", index.find(kBase, 4 * kPage, kRead) == reg, "an equal request is not found");
  KEEPS("R3", index.find(kBase, kPage, kRead) == nullptr && index.find(kBase, 4 * kPage, 0) == nullptr,
        "an EXACT index answers a request that is not equal");
  if (index.put_new(kBase, kPage, kRead) == nullptr) return;
  KEEPS("R3", index.count() == 2 && index.left().regs.empty(), "in an EXACT index one registration displaces another");
  KEEPS("R3", index.put_new(kBase, 4 * kPage, kRead, 0, PINRAIL_FLAG_PERSISTENT) != nullptr,
        "a PERSISTENT registration is refused beside an equal one that is not");
}

void what_a_new_one_dominates_leaves(Index& index, Verdict* verdict) {
  pinrail_registration_t* inner = index.put_new(kBase + kPage, kPage, kRead);
  pinrail_registration_t* wider = index.put_new(kBase + 2 * kPage, kPage, kRead | kWrite);
  pinrail_registration_t* beside = index.put_new(kBase + 3 * kPage, 2 * kPage, kRead);
  if (!verdict->kept()) return;
  pinrail_registration_t* outer = index.put_new(kBase, 4 * kPage, kRead);
  if (outer == nullptr) return;
  KEEPS("R3", index.left().count_of(inner) == 1, "what a new registration dominates is not visited once");
  KEEPS("R3", index.left().count_of(wider) == 0, "one with more rights than the new one is displaced");
  KEEPS("R3", index.left().count_of(beside) == 0, "one that sticks out of the new one is displaced");
  KEEPS("R3", index.count() == 3, "count() is wrong after a displacement");
}

void what_is_dominated_is_not_inserted(Index& index, Verdict* verdict) {
  pinrail_registration_t* small = index.make(kBase + kPage, kPage, kRead);
  pinrail_announcement_t announcement;
  KEEPS("R3", index.announce(*small, &announcement) == PINRAIL_ERR_NOT_FOUND, "an empty index answers");
  if (index.put_new(kBase, 4 * kPage, kRead | kWrite) == nullptr) return;
  KEEPS("R3", index.publish(&announcement, small) == PINRAIL_ERR_BUSY,
        "publish() of what a registration in the index dominates is not BUSY");
  KEEPS("R3", index.count() == 1 && index.left().regs.empty(), "a publish() that is refused changes the index");
}

void persistent_ones_are_dominated_by_equals_alone(Index& index, Verdict* verdict) {
  pinrail_registration_t* own = index.put_new(kBase + kPage, kPage, kRead, 0, PINRAIL_FLAG_PERSISTENT);
  if (own == nullptr || index.put_new(kBase, 4 * kPage, kRead | kWrite) == nullptr) return;
  KEEPS("R3", index.left().count_of(own) == 0 && index.count() == 2, "a PERSISTENT registration is displaced");
}

// R5: an announcement may come to be of more than what was asked for, and answers what lies within all of it.
void what_is_announced_beyond_the_request_is_waited_for(Index& index, Verdict* verdict) {
  pinrail_announcement_t wide{};
  wide.base = kBase + 2 * kPage;
  wide.length = kPage;
  wide.access = kRead;
  wide.more_rights = kWrite;
  wide.marks = PINRAIL_KEEP_CACHED;
  pinrail_registration_t* found = nullptr;
  const pinrail_status_t status = index.ops().find_or_announce(index.module(), Index::thread(), &wide, &found);
  KEEPS("R3", status == PINRAIL_ERR_NOT_FOUND || status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE, "an empty index answers");
  index.ops().reannounce(index.module(), &wide, kBase, 4 * kPage);
  pinrail_announcement_t other;
  const pinrail_registration_t* const beside = index.make(kBase, kPage, kWrite);
  KEEPS("R5", index.announce(*beside, &other) == PINRAIL_ERR_WOULD_BLOCK,
        "a request does not wait for what is announced beyond another request");
  static_cast<void>(index.ops().withdraw(index.module(), &wide));
}

void a_find_takes_one_reference(Index& index, Verdict* verdict) {
  pinrail_registration_t* reg = index.put_new(kBase, 4 * kPage, kRead);
  if (reg == nullptr) return;
  KEEPS("R9", index.references(reg) == 0, "publish() leaves a reference");
  pinrail_registration_t* found = nullptr;
  KEEPS("R3",
        index.ops().find(index.module(), Index::thread(), kBase, kPage, 0, &found) == PINRAIL_SUCCESS && found == reg,
        "a range inside is not found");
  KEEPS("R9", index.references(reg) == 1, "find() does not take exactly one reference");
  index.drop(found);
  pinrail_announcement_t announcement{};
  announcement.base = kBase;
  announcement.length = kPage;
  found = nullptr;
  const pinrail_status_t status = index.ops().find_or_announce(index.module(), Index::thread(), &announcement, &found);
  KEEPS("R3", status == PINRAIL_SUCCESS && found == reg, "find_or_announce() does not find it");
  KEEPS("R9", index.references(reg) == 1, "find_or_announce() does not take exactly one reference");
  index.drop(found);
  KEEPS("R9", index.ops().remove(index.module(), reg) == PINRAIL_SUCCESS && index.references(reg) == 0,
        "remove() changes the references");
}

void a_dead_one_is_never_returned(Index& index, Verdict* verdict) {
  pinrail_registration_t* dead = index.put_new(kBase, 4 * kPage, kRead);
  if (dead == nullptr) return;
  index.services().mark_dead_hook(dead);  // its pool removes it next
  KEEPS("E1", index.find(kBase, kPage, kRead) == nullptr, "a find returns a DEAD registration");
  static_cast<void>(index.ops().remove(index.module(), dead));  // NOT_FOUND: the find has removed it
  KEEPS("E1", index.count() == 0, "a DEAD registration that was removed is counted");
}

void an_event_takes_all_that_overlaps_and_nothing_else(Index& index, Verdict* verdict) {
  pinrail_registration_t* before = index.put_new(kBase, kPage, kRead);
  pinrail_registration_t* across = index.put_new(kBase + kPage, 4 * kPage, kRead);
  pinrail_registration_t* inside = index.put_new(kBase + 2 * kPage, kPage, kRead | kWrite);
  pinrail_registration_t* behind = index.put_new(kBase + 5 * kPage, kPage, kRead);
  if (!verdict->kept()) return;
  index.ops().invalidate_hook(index.module(), kBase + 2 * kPage + 5, 1, Left::visit_hook, &index.left());
  KEEPS("E1", index.left().count_of(across) == 1 && index.left().count_of(inside) == 1,
        "an event does not visit every registration that overlaps its range, once");
  KEEPS("E1", index.find(kBase + kPage, kPage, kRead) == nullptr && index.find(kBase + 2 * kPage, 1, 0) == nullptr,
        "after an event a find returns a registration that overlaps its range");
  KEEPS("E1", index.find(kBase, kPage, kRead) == before && index.find(kBase + 5 * kPage, kPage, kRead) == behind,
        "an event takes registrations beside its range");
  KEEPS("E1", index.left().empty_visits == 0, "visit is called with no registration");
  index.ops().invalidate_hook(index.module(), 0, UINTPTR_MAX, Left::visit_hook, &index.left());
  KEEPS("E1", index.count() == 0, "the event (0, UINTPTR_MAX) does not take everything");
}

void hundreds_that_go_at_once_are_each_visited(Index& index, Verdict* verdict) {
  constexpr size_t kCount = 700;
  for (size_t i = 0; i < kCount; ++i) {
    if (index.put_new(kBase + i * kPage, kPage, kRead) == nullptr) return;
  }
  KEEPS("R3", index.count() == kCount, "count() is not the number of registrations");
  index.ops().invalidate_hook(index.module(), kBase, kCount * kPage, Left::visit_hook, &index.left());
  KEEPS("E1", index.left().regs.size() == kCount && index.count() == 0, "an event visits fewer or more than were in");
}

void an_event_overtakes_an_announcement(Index& index, Verdict* verdict) {
  pinrail_announcement_t overtaken, other;
  pinrail_registration_t* reg = index.make(kBase, 2 * kPage, kRead);
  pinrail_registration_t* apart = index.make(kBase + 8 * kPage, kPage, kRead);
  KEEPS("R5", index.announce(*reg, &overtaken) == PINRAIL_ERR_NOT_FOUND, "an empty index answers");
  KEEPS("R5", index.announce(*apart, &other) == PINRAIL_ERR_NOT_FOUND, "a request waits for another range");
  pinrail_announcement_t waiting;
  KEEPS("R5", index.announce(*reg, &waiting) == PINRAIL_ERR_WOULD_BLOCK, "equal requests do not wait for each other");
  index.ops().invalidate_hook(index.module(), kBase + kPage, kPage, Left::visit_hook, &index.left());
  KEEPS("R13", index.publish(&overtaken, reg) == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE, "an event is not noticed");
  KEEPS("R13", index.publish(&other, apart) == PINRAIL_SUCCESS, "an event of another range stops a publish()");
  KEEPS("R13", index.count() == 1, "what an event overtook is in the index");
}

// R13: by the range that the announcement is of now; what came before it was changed does not count.
void an_event_overtakes_what_was_announced_anew(Index& index, Verdict* verdict) {
  pinrail_announcement_t announcement;
  pinrail_registration_t* const reg = index.make(kBase, 4 * kPage, kRead);
  const pinrail_registration_t* const asked = index.make(kBase, kPage, kRead);
  KEEPS("R5", index.announce(*asked, &announcement) == PINRAIL_ERR_NOT_FOUND, "an empty index answers");
  index.ops().invalidate_hook(index.module(), kBase, kPage, Left::visit_hook, &index.left());
  index.ops().reannounce(index.module(), &announcement, kBase, 4 * kPage);
  KEEPS("R13", index.ops().withdraw(index.module(), &announcement) == PINRAIL_SUCCESS,
        "an event of before reannounce() counts");
  KEEPS("R5", index.announce(*asked, &announcement) == PINRAIL_ERR_NOT_FOUND, "an empty index answers");
  index.ops().reannounce(index.module(), &announcement, kBase, 4 * kPage);
  index.ops().invalidate_hook(index.module(), kBase + 3 * kPage, kPage, Left::visit_hook, &index.left());
  KEEPS("R13", index.publish(&announcement, reg) == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
        "an event of what was announced anew is not noticed");
}

void a_withdrawn_announcement_leaves_nothing(Index& index, Verdict* verdict) {
  const pinrail_registration_t* like = index.make(kBase, kPage, kRead);
  for (int i = 0; i < 2000; ++i) {
    pinrail_announcement_t announcement;
    KEEPS("R2", index.announce(*like, &announcement) == PINRAIL_ERR_NOT_FOUND,
          "after many that were withdrawn, an announcement fails");
    static_cast<void>(index.ops().withdraw(index.module(), &announcement));
  }
  KEEPS("R2", index.count() == 0, "a withdrawn announcement is counted");
}

void what_is_removed_is_gone_and_what_is_not_in_is_not_found(Index& index, Verdict* verdict) {
  pinrail_registration_t* reg = index.put_new(kBase, kPage, kRead);
  if (reg == nullptr) return;
  KEEPS("C4", index.ops().remove(index.module(), reg) == PINRAIL_SUCCESS, "remove() fails");
  KEEPS("E1", index.find(kBase, kPage, kRead) == nullptr, "a find returns what was removed");
  KEEPS("C4", index.ops().remove(index.module(), reg) == PINRAIL_ERR_NOT_FOUND,
        "remove() of what is not in is not NOT_FOUND");
}

void unknown_flags_are_not_supported(Index& index, Verdict* verdict) {
  void* module = nullptr;
  KEEPS("C4", index.ops().create(index.context(), 0x80000000u, &module) == PINRAIL_ERR_NOT_SUPPORTED,
        "create() with an unknown flag is not NOT_SUPPORTED");
  KEEPS("C4", module == nullptr, "create() fails and writes module_out");
}

void what_runs_under_locks_of_hooks_allocates_nothing(Index& index, Verdict* verdict) {
  APPLIES_IF(allocations_of_thread() >= 0, "allocations cannot be counted in this build");
  for (size_t i = 0; i < 300; ++i) {
    pinrail_registration_t* reg = index.make(kBase + i * kPage, kPage, kRead);
    pinrail_announcement_t announcement;
    const pinrail_status_t status = index.announce(*reg, &announcement);  // which may allocate
    KEEPS("R3", status == PINRAIL_ERR_NOT_FOUND, "an announcement fails");
    static_cast<void>(allocations_of_thread());
    const pinrail_status_t published = index.publish(&announcement, reg);
    KEEPS("E3", allocations_of_thread() == 0, "publish() allocates or frees");
    KEEPS("R3", published == PINRAIL_SUCCESS, "publish() fails");
  }
  pinrail_announcement_t announcement{};
  announcement.base = kBase + 1000 * kPage;
  announcement.length = kPage;
  pinrail_registration_t* found = nullptr;
  const pinrail_status_t status = index.ops().find_or_announce(index.module(), Index::thread(), &announcement, &found);
  static_cast<void>(allocations_of_thread());
  if (status == PINRAIL_ERR_NOT_FOUND) static_cast<void>(index.ops().withdraw(index.module(), &announcement));
  KEEPS("E3", allocations_of_thread() == 0, "withdraw() allocates or frees");
  index.ops().invalidate_hook(index.module(), kBase, 400 * kPage, Left::visit_hook, &index.left());
  KEEPS("E3", allocations_of_thread() == 0, "invalidate_hook() allocates or frees");
}

// Random inserts, removals, events and finds beside a list that is searched from end to end.
void it_agrees_with_a_plain_list(Index& index, Verdict* verdict) {
  std::mt19937 random(7);
  std::vector<pinrail_registration_t*> in;
  const auto contains = [](const pinrail_registration_t* reg, uintptr_t base, size_t length) {
    const auto its = reinterpret_cast<uintptr_t>(reg->base);
    return its <= base && base + length <= its + reg->length;
  };
  const auto forget_left = [&] {
    for (const auto* gone : index.left().regs) {
      for (size_t i = 0; i < in.size(); ++i) {
        if (in[i] == gone) in.erase(in.begin() + static_cast<long>(i--));
      }
    }
    index.left().regs.clear();
  };
  for (int step = 0; step < 3000; ++step) {
    verdict->at = "step " + std::to_string(step);
    const uintptr_t base = kBase + random() % 64 * kPage;
    const size_t length = (1 + random() % 8) * kPage;
    const uint32_t rights = random() % 4;
    if (step % 7 == 0) {
      index.ops().invalidate_hook(index.module(), base, kPage, Left::visit_hook, &index.left());
      for (const auto* reg : in) {
        const auto its = reinterpret_cast<uintptr_t>(reg->base);
        const bool overlaps = its < base + kPage && base < its + reg->length;
        KEEPS("E1", index.left().count_of(reg) == (overlaps ? 1u : 0u), "an event takes too much or too little");
      }
      forget_left();
    } else {
      bool expected = false;
      for (const auto* reg : in) expected |= contains(reg, base, length) && (reg->rights & rights) == rights;
      const pinrail_registration_t* found = index.find(base, length, rights);
      KEEPS("R3", expected == (found != nullptr), expected ? "a find misses" : "a find returns what does not answer");
      if (found == nullptr) {
        pinrail_registration_t* reg = index.make(base, length, rights);
        KEEPS("R3", index.put(reg) == PINRAIL_SUCCESS, "publish() fails");
        forget_left();
        in.push_back(reg);
      }
    }
    KEEPS("R3", index.count() == in.size(), "count() is wrong");
    KEEPS("R3", index.ops().check == nullptr || index.ops().check(index.module()) == PINRAIL_SUCCESS,
          "its own check() finds an error");
  }
}

// Two threads insert and find, two take all away.
void four_threads_find_only_what_answers(Index& index, Verdict* verdict) {
  std::atomic<int> wrong{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    Left left;
    left.services = &index.services();
    left.regs.reserve(100000);
    for (int step = 0; step < 2000; ++step) {
      const uintptr_t base = kBase + random() % 64 * kPage;
      if (step % 16 == 0) {
        index.ops().invalidate_hook(index.module(), base, 4 * kPage, Left::visit_hook, &left);
        continue;
      }
      pinrail_registration_t* reg = nullptr;
      if (index.ops().find(index.module(), Index::thread(), base, kPage, kRead, &reg) == PINRAIL_SUCCESS) {
        const auto its = reinterpret_cast<uintptr_t>(reg->base);
        if (its > base || base + kPage > its + reg->length || (reg->rights & kRead) == 0) ++wrong;
        index.services().drop({reg, index.services().generation(reg)});
        continue;
      }
      reg = index.make(base, (1 + random() % 4) * kPage, kRead);
      pinrail_announcement_t announcement;
      if (index.announce(*reg, &announcement) != PINRAIL_ERR_NOT_FOUND) continue;
      const pinrail_status_t status =
          index.ops().publish(index.module(), Index::thread(), &announcement, reg, Left::visit_hook, &left);
      const bool is_refused = status == PINRAIL_ERR_BUSY || status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE ||
                              status == PINRAIL_ERR_OUT_OF_RESOURCE;
      if (status != PINRAIL_SUCCESS && !is_refused) ++wrong;
      if (status != PINRAIL_SUCCESS) {
        static_cast<void>(index.ops().withdraw(index.module(), &announcement));
        continue;
      }
      index.services().drop({reg, index.services().generation(reg)});
    }
  };
  test::on_threads(4u, work);
  KEEPS("R3", wrong.load() == 0, "with four threads, a find returns what does not answer, or publish() fails");
  KEEPS("R3", index.ops().check == nullptr || index.ops().check(index.module()) == PINRAIL_SUCCESS,
        "its own check() finds an error after four threads used it");
}

// On an index of its own.
template <void (*check)(Index& index, Verdict* verdict), uint32_t flags = 0>
void on_index(const File& file, Verdict* verdict) {
  Index index(file, flags, verdict);
  if (index.usable()) check(index, verdict);
}

}  // namespace

const std::vector<FileCheck>& rcache_checks() {
#define CHECK_OF(rule, function) \
  { rule, #function, on_index<function> }
  static const auto* const checks = new std::vector<FileCheck>{
      CHECK_OF("R3", a_range_inside_is_found_and_one_that_sticks_out_is_not),
      CHECK_OF("R3", rights_must_be_a_superset_and_traits_equal),
      {"R3", "an_exact_index_finds_only_equals", on_index<an_exact_index_finds_only_equals, PINRAIL_RCACHE_EXACT>},
      CHECK_OF("R3", what_a_new_one_dominates_leaves),
      CHECK_OF("R3", what_is_dominated_is_not_inserted),
      CHECK_OF("R3", persistent_ones_are_dominated_by_equals_alone),
      CHECK_OF("R5", what_is_announced_beyond_the_request_is_waited_for),
      CHECK_OF("R9", a_find_takes_one_reference),
      CHECK_OF("E1", a_dead_one_is_never_returned),
      CHECK_OF("E1", an_event_takes_all_that_overlaps_and_nothing_else),
      CHECK_OF("E1", hundreds_that_go_at_once_are_each_visited),
      CHECK_OF("R13", an_event_overtakes_an_announcement),
      CHECK_OF("R13", an_event_overtakes_what_was_announced_anew),
      CHECK_OF("R2", a_withdrawn_announcement_leaves_nothing),
      CHECK_OF("C4", what_is_removed_is_gone_and_what_is_not_in_is_not_found),
      CHECK_OF("C4", unknown_flags_are_not_supported),
      CHECK_OF("E3", what_runs_under_locks_of_hooks_allocates_nothing),
      CHECK_OF("R3", it_agrees_with_a_plain_list),
      CHECK_OF("R3", four_threads_find_only_what_answers)};
#undef CHECK_OF
  return *checks;
}

}  // namespace pinrail::conform
