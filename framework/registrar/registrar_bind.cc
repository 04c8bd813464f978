// SPDX-License-Identifier: BSD-3-Clause
// Selection and validation of a pool's registrar: API context, while a pool is created; the caller holds no lock. And
// the marks that keep memory out of forked children.
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "base/core/page_counts.h"
#include "base/registration/registration_arena.h"
#include "base/report/report.h"
#include "base/sync/fork_reinit.h"
#include "base/sync/lock.h"
#include "framework/registrar/registrar.h"

pinrail_bound_registrar::~pinrail_bound_registrar() {
  if (component.descriptor == nullptr) return;
  const auto* const ops = static_cast<const pinrail_registrar_ops_t*>(component.descriptor->ops);
  pinrail::loader::end_by_component("registrar", name.c_str(), "destroy",
                                    [&] { ops->destroy(component.context, &table); });
}

namespace pinrail::registrar {
namespace {

using Bound = std::unique_ptr<pinrail_bound_registrar>;

// Of the registrars that pools are bound to.
Mutex serials_mutex{LockRank::leaf};
Forever<std::vector<std::weak_ptr<Serial>>> serials GUARDED_BY(serials_mutex);

// The lock of that registrar: the one that other pools have already, or a new one.
std::shared_ptr<Serial> serial_of(const pinrail_registrar_t& table) {
  Guard guard(serials_mutex);
  for (size_t i = serials->size(); i-- != 0;) {
    std::shared_ptr<Serial> found = (*serials)[i].lock();
    if (found == nullptr) serials->erase(serials->begin() + static_cast<ptrdiff_t>(i));
    if (found != nullptr && found->register_mem == table.register_mem && found->context == table.context) return found;
  }
  auto made = std::make_shared<Serial>();
  made->register_mem = table.register_mem;
  made->context = table.context;
  serials->push_back(made);
  return made;
}

// The shortest table that is accepted. Older tables are shorter than ours; their missing fields are NULL or 0.
constexpr size_t kLeastTable = offsetof(pinrail_registrar_t, tail_init);

bool is_possible(size_t size) { return size >= kLeastTable && ends_between_fields<pinrail_registrar_t>(size); }

// Returns a clause that names the fault in a table; NULL: no fault.
const char* flaw(const pinrail_registrar_t& table) {
  if (table.register_mem == nullptr || table.deregister_mem == nullptr) return "register_mem or deregister_mem is NULL";
  if (table.granularity == 0 || (table.granularity & (table.granularity - 1)) != 0) {
    return "granularity is not a power of two";
  }
  if (table.tail_size > arena::kMaxTailOfRegistrar) return "tail_size is over 64 KiB";
  if (table.kinds == 0) return "kinds is 0";
  if (table.thread_mode < PINRAIL_THREAD_CONCURRENT || table.thread_mode > PINRAIL_THREAD_CALLER) {
    return "thread_mode is none of the three";
  }
  return nullptr;
}

Status refuse_table(const std::string& name, const char* why) {
  report::help("registrar", kHelp, "incomplete table", {{"name", name.c_str()}, {"why", why}});
  return PINRAIL_ERR_BAD_PARAM;
}

// C1. BAD_PARAM, and reported: the size in the table that a component filled in is not possible.
Status check_size(const Bound& bound) {
  const size_t size = bound->table.size;
  if (is_possible(size) && size <= sizeof(pinrail_registrar_t)) return success();
  const std::string why = "its size is " + std::to_string(size) + ", and this library's tables have " +
                          std::to_string(sizeof(pinrail_registrar_t)) + " bytes (rule C1)";
  return refuse_table(bound->name, why.c_str());
}

// BAD_PARAM, and reported: the table has a fault. Else decides whether its ranges are marked against forks, and whether
// its calls are serialised.
Status check_table(const Bound& bound) {
  const char* why = flaw(bound->table);
  if (why != nullptr) return refuse_table(bound->name, why);
  if (bound->table.thread_mode != PINRAIL_THREAD_CONCURRENT) bound->serial = serial_of(bound->table);
  bound->marks_for_fork = fork_marks::needed() && bound->table.pins_nothing == 0;
  return success();
}

// Binds a copy of a table that an embedder lends: its functions and context must outlast the pool, the table itself
// need not. BAD_PARAM: what is wrong with it was reported.
Status bind_lent(const pinrail_registrar_t& table, Bound* bound_out) {
  if (!is_possible(table.size) || table.size > 4096) return refuse_table("lent", "its size is impossible (rule C1)");
  auto bound = std::make_unique<pinrail_bound_registrar>();
  std::memcpy(&bound->table, &table, std::min(table.size, sizeof(table)));
  bound->name = bound->table.name != nullptr ? bound->table.name : "lent";
  const Status status = check_table(bound);
  if (status.ok()) *bound_out = std::move(bound);
  return status;
}

// reason_out: the status and what the component said.
Status bind_component(const loader::Opened& opened, void* native, Bound* bound_out, std::string* reason_out) {
  const auto* ops = static_cast<const pinrail_registrar_ops_t*>(opened.descriptor->ops);
  auto bound = std::make_unique<pinrail_bound_registrar>();
  bound->name = opened.descriptor->name;
  const loader::LastLogLine words;
  // Room for a component that was built for a larger table, which is refused below.
  struct {
    pinrail_registrar_t table;
    char room[1024];
  } given{};
  given.table.size = sizeof(pinrail_registrar_t);
  const Status made = loader::answer_of_component([&] { return ops->create(opened.context, native, &given.table); });
  bound->table = given.table;
  *reason_out = words.with(made);
  if (!made.ok()) return made;
  bound->component = opened;  // from here on the destructor destroys it
  Status status = check_size(bound);
  if (status.ok()) status = check_table(bound);
  *reason_out = status_name(status.code());
  if (status.ok()) *bound_out = std::move(bound);
  return status;
}

void report_bind_failure(const char* name, const std::string& reason) {
  report::help("registrar", kHelp, "registrar failed", {{"name", name}, {"reason", reason.c_str()}});
}

// The error of a selected component that could not be opened, for example NOT_AVAILABLE without a device. NOT_FOUND:
// no component has the name.
Status why_not_opened(const loader::Loader& loader, const char* name, std::string* reason_out) {
  for (const loader::Listed* listed : loader.listed()) {
    if (listed->framework == "registrar" && listed->name == name && listed->selected && !listed->status.ok()) {
      *reason_out = "it " + listed->reason;
      return listed->status;
    }
  }
  return PINRAIL_ERR_NOT_FOUND;
}

// Binds the named component; an error is reported.
Status bind_named(const loader::Loader& loader, const pinrail_registrar_choice_t& choice, Bound* bound_out) {
  std::string reason;
  for (const loader::Opened& opened : loader.opened("registrar")) {
    if (std::strcmp(opened.descriptor->name, choice.name) != 0) continue;
    const Status status = bind_component(opened, choice.native, bound_out, &reason);
    if (!status.ok()) report_bind_failure(choice.name, reason);
    return status;
  }
  const Status why = why_not_opened(loader, choice.name, &reason);
  if (why.is(PINRAIL_ERR_NOT_FOUND)) {
    report::help("registrar", kHelp, "no such registrar", {{"name", choice.name}});
  } else {
    report_bind_failure(choice.name, reason);
  }
  return why;
}

std::string names_of_kinds(uint32_t kinds) {
  constexpr std::pair<uint32_t, const char*> kNames[] = {{PINRAIL_KIND_HOST, "host memory"},
                                                         {PINRAIL_KIND_DMABUF, "dmabuf"},
                                                         {PINRAIL_KIND_GPU, "GPU memory"},
                                                         {PINRAIL_KIND_REMOTE, "peers' GPU memory"}};
  std::string names;
  for (const auto& [kind, name] : kNames) {
    if ((kinds & kind) != 0) names += (names.empty() ? "" : " or ") + std::string(name);
  }
  return names.empty() ? "any memory" : names;
}

// Why none of the registrars will do: those that could not be opened, then those that were tried.
void report_none_works(const loader::Loader& loader, uint32_t kinds, std::string tried) {
  for (const loader::Listed* listed : loader.listed()) {
    if (listed->framework != "registrar" || !listed->selected || listed->status.ok()) continue;
    tried += (tried.empty() ? "" : ", ") + listed->name + " " + listed->reason;
  }
  if (tried.empty()) tried = "none is loaded";
  const std::string memory = names_of_kinds(kinds);
  report::help("registrar", kHelp, "no registrar works", {{"list", tried.c_str()}, {"memory", memory.c_str()}});
}

// Binds the first usable component, by priority, that accepts one of the kinds. NOT_AVAILABLE, and reported: none
// does.
Status bind_best(const loader::Loader& loader, uint32_t kinds, Bound* bound_out) {
  std::string tried;
  for (const loader::Opened& opened : loader.opened("registrar")) {
    Bound bound;
    std::string reason;
    const Status status = bind_component(opened, nullptr, &bound, &reason);
    const bool is_other = status.ok() && kinds != 0 && (bound->table.kinds & kinds) == 0;
    if (status.ok() && !is_other) {
      *bound_out = std::move(bound);
      return status;
    }
    if (is_other) reason = "registers other memory";
    tried += (tried.empty() ? "" : ", ") + std::string(opened.descriptor->name) + " " + reason;
  }
  report_none_works(loader, kinds, tried);
  return PINRAIL_ERR_NOT_AVAILABLE;
}

}  // namespace

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&serials_mutex) Mutex(LockRank::leaf);
  replace_in_child(&serials);
}

bool is_complete(const void* ops) {
  const auto& table = *static_cast<const pinrail_registrar_ops_t*>(ops);
  return table.create != nullptr && table.destroy != nullptr;
}

Status bind(const loader::Loader& loader, const pinrail_registrar_choice_t& choice, uint32_t kinds, Bound* bound_out) {
  if (choice.table != nullptr) return bind_lent(*choice.table, bound_out);
  if (choice.name != nullptr) return bind_named(loader, choice, bound_out);
  return bind_best(loader, kinds, bound_out);
}

}  // namespace pinrail::registrar

// Marks against forks. mark() and unmark() hold `mutex` across madvise(). API context; the callers hold no lock.

namespace pinrail::fork_marks {
namespace {

constexpr size_t kLargestPage = size_t{16} << 30;

enum Choice : int64_t { kAuto = -1, kNever, kAlways };
constexpr pinrail_enum_value_t kChoices[] = {{kAuto, "auto"}, {kNever, "never"}, {kAlways, "always"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "fork_marks", "auto",
     "Whether memory is kept out of forked children while a device has it pinned (madvise DONTFORK). auto: on kernels "
     "before 5.12, where a device could otherwise go on with pages that are the child's after a fork. A child that "
     "touches memory that is marked ends with SIGSEGV.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 6, kChoices, 0, 0, nullptr}};

bool is_needed = false;  // written at start-up

Mutex mutex{LockRank::leaf};
Forever<PageCounts> counts GUARDED_BY(mutex);

// Calls attempt(span), and for hugetlbfs again with the span extended to whole huge pages: madvise refuses parts of
// them.
template <typename Try>
bool with_whole_pages(Span span, Try attempt) {
  if (attempt(span)) return true;
  for (size_t page = 2 * page_bytes(); errno == EINVAL && page <= kLargestPage; page *= 2) {
    Span whole = span;
    if (!round_out(&whole, page)) return false;
    if (attempt(whole)) return true;
  }
  return false;
}

bool advise(Span span, int advice) { return madvise(pointer(span.base), span.length(), advice) == 0; }

// Whether no page of the span has a count.
bool is_unheld_locked(Span span) REQUIRES(mutex) {
  size_t free = 0;
  counts->for_each_unheld(span, [&](Span piece) { free += piece.length(); });
  return free == span.length();
}

// Unmarks the span. True also if the kernel refuses that for all that it would mark, as memory of devices: then page by
// page, as far as it does not. No larger pages are to be tried, which would unmark what lies around the span.
bool unmark_or_leave(Span span) {
  if (advise(span, MADV_DOFORK)) return true;
  if (errno != EINVAL) return false;
  if (!advise(span, MADV_DONTFORK) && errno != ENOMEM) return false;  // ENOMEM: of a hole; what is mapped is marked
  for (uintptr_t at = span.base; at < span.end; at += page_bytes()) advise(Span::of(at, page_bytes()), MADV_DOFORK);
  return true;
}

// Unmarks the pages of the span that have no count. A large page stays marked while a part of it has one.
void unmark_unheld_locked(Span span) REQUIRES(mutex) {
  counts->for_each_unheld(span, [](Span piece) NO_THREAD_SAFETY_ANALYSIS {  // runs inside the call, under the mutex
    with_whole_pages(
        piece, [](Span whole) NO_THREAD_SAFETY_ANALYSIS { return !is_unheld_locked(whole) || unmark_or_leave(whole); });
  });
}

// Marks the span and counts its pages. BAD_PARAM: a part is not mapped. OUT_OF_RESOURCE: no memory, or too many
// mappings.
Status mark_locked(Span span) REQUIRES(mutex) {
  if (with_whole_pages(span, [](Span whole) { return advise(whole, MADV_DONTFORK); })) return counts->add(span);
  return errno == EAGAIN ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_BAD_PARAM;
}

}  // namespace

Status declare(param::Registry* params) {
  return params->declare("registrar", "", kParams, sizeof(kParams) / sizeof(kParams[0]));
}

void start(const param::Registry& params) {
  const int64_t choice = params.value("registrar_fork_marks").i;
  utsname kernel{};
  is_needed = choice == kAlways || (choice == kAuto && (uname(&kernel) != 0 || kernel_shares_pins(kernel.release)));
}

bool needed() { return is_needed; }

// Marks and counts the span; on an error no page stays marked that was not before. Takes `mutex`.
Status mark(Span span) {
  if (!round_out(&span, page_bytes())) return PINRAIL_ERR_BAD_PARAM;
  Guard guard(mutex);
  const Status status = mark_locked(span);
  if (!status.ok()) unmark_unheld_locked(span);
  return status;
}

// Uncounts the span and unmarks what has no count left; is_gone: its memory was unmapped, so marks stay. Takes
// `mutex`.
void unmark(Span span, bool is_gone) {
  if (!round_out(&span, page_bytes())) return;  // nor could it be marked
  Guard guard(mutex);
  if (counts->remove(span, [](Span) {}).ok() && !is_gone) unmark_unheld_locked(span);
}

void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::leaf);
  replace_in_child(&counts);
}

}  // namespace pinrail::fork_marks
