/* SPDX-License-Identifier: BSD-3-Clause
 * rcache_@NAME@.c - an index: an array, sorted by base, under one lock.
 *
 * Its finds take time that grows with the logarithm of the number of registrations, inserts and removals time that
 * grows with the number. It includes installed headers only, and links against nothing of Pinrail.
 */
#include <pinrail/component_rcache.h>
#include <stdlib.h>
#include <string.h>

#include "hook_lock.h"

enum { BATCH = 32 };

typedef struct component {
  const pinrail_host_t* host;
  size_t first_room; /* parameter */
} component_t;

typedef struct index {
  const pinrail_host_t* host;
  int is_exact;
  hook_lock_t lock; /* guards all below */
  pinrail_registration_t** regs;
  size_t count, room;
  pinrail_announcement_t* announced; /* linked by their marks */
  uint64_t last_name;
  size_t longest; /* length of the longest registration that was ever in */
} index_t;

/* What the index keeps of an announcement. */
typedef struct mark {
  pinrail_announcement_t* next;
  uint64_t name;
  int is_overtaken;
} mark_t;

static mark_t* mark_of(pinrail_announcement_t* announcement) { return (mark_t*)announcement->own; }

static uintptr_t base_of(const pinrail_registration_t* reg) { return (uintptr_t)reg->base; }
static uintptr_t end_of(const pinrail_registration_t* reg) { return (uintptr_t)reg->base + reg->length; }

/* How many registrations start at this address or before it. */
static size_t count_up_to(const index_t* index, uintptr_t base) {
  size_t low = 0, high = index->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (base_of(index->regs[middle]) <= base) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The first registration that may reach the address. */
static size_t first_to_reach(const index_t* index, uintptr_t base) {
  return base < index->longest ? 0 : count_up_to(index, base - index->longest);
}

static int contains(const pinrail_registration_t* reg, uintptr_t base, size_t length) {
  return base_of(reg) <= base && base + length <= end_of(reg);
}

static int is_equal(const pinrail_registration_t* reg, uintptr_t base, size_t length, uint32_t rights) {
  return base_of(reg) == base && reg->length == length && reg->rights == rights;
}

static int answers(const index_t* index, const pinrail_registration_t* reg, uintptr_t base, size_t length,
                   uint32_t access) {
  const uint32_t rights = access & PINRAIL_RIGHTS_MASK;
  if (reg->traits != (access & PINRAIL_TRAITS_MASK)) return 0;
  if (index->is_exact) return is_equal(reg, base, length, rights);
  return contains(reg, base, length) && (reg->rights & rights) == rights;
}

static int dominates(const index_t* index, const pinrail_registration_t* winner, const pinrail_registration_t* loser) {
  if (winner->traits != loser->traits) return 0;
  if (index->is_exact || (loser->flags & PINRAIL_FLAG_PERSISTENT) != 0) {
    const int is_alike = ((winner->flags ^ loser->flags) & PINRAIL_FLAG_PERSISTENT) == 0;
    return is_alike && is_equal(winner, base_of(loser), loser->length, loser->rights);
  }
  return contains(winner, base_of(loser), loser->length) && (winner->rights & loser->rights) == loser->rights;
}

static int is_dead(const index_t* index, const pinrail_registration_t* reg) {
  return (index->host->registrations->state(reg) & PINRAIL_STATE_DEAD) != 0;
}

static pinrail_registration_t* find_with_lock(index_t* index, uintptr_t base, size_t length, uint32_t access,
                                              uint32_t flags) {
  const size_t first = first_to_reach(index, base);
  for (size_t i = count_up_to(index, base); i > first; --i) {
    pinrail_registration_t* reg = index->regs[i - 1];
    if (!answers(index, reg, base, length, access) || (flags & ~reg->flags) != 0) continue;
    /* A dead one is removed by the thread that owns it. Another may answer. */
    if (index->host->registrations->take(reg)) return reg;
  }
  return NULL;
}

static pinrail_status_t find(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length, uint32_t access,
                             pinrail_registration_t** reg_out) {
  index_t* index = module;
  (void)thread;
  hook_lock_take(&index->lock);
  pinrail_registration_t* reg = find_with_lock(index, base, length, access, 0);
  hook_lock_release(&index->lock);
  if (reg == NULL) return PINRAIL_ERR_NOT_FOUND;
  *reg_out = reg;
  return PINRAIL_SUCCESS;
}

static int will_answer(const index_t* index, const pinrail_announcement_t* other, const pinrail_announcement_t* own) {
  if ((other->access & PINRAIL_TRAITS_MASK) != (own->access & PINRAIL_TRAITS_MASK)) return 0;
  if ((own->flags & ~other->flags) != 0) return 0;
  if (index->is_exact) return other->base == own->base && other->length == own->length && other->access == own->access;
  return other->base <= own->base && own->base + own->length <= other->base + other->length &&
         (own->access & ~(other->access | other->more_rights)) == 0;
}

/* The announcement that this request must wait for. */
static pinrail_announcement_t* find_answer(const index_t* index, const pinrail_announcement_t* own) {
  pinrail_announcement_t* other = index->announced;
  for (; other != NULL; other = mark_of(other)->next) {
    if (own->waits_for != 0 ? mark_of(other)->name == own->waits_for : will_answer(index, other, own)) break;
  }
  return other;
}

/* Brings memory for all that is announced and one more. Allocates and frees without the lock: both may unmap memory,
 * and then the hook takes the lock. */
static pinrail_status_t make_room(index_t* index) {
  for (;;) {
    hook_lock_take(&index->lock);
    size_t wanted = index->count + 1;
    for (pinrail_announcement_t* each = index->announced; each != NULL; each = mark_of(each)->next) ++wanted;
    const size_t room = 2 * index->room;
    const int is_enough = wanted <= index->room;
    hook_lock_release(&index->lock);
    if (is_enough) return PINRAIL_SUCCESS;
    pinrail_registration_t** regs = malloc(room * sizeof(pinrail_registration_t*));
    if (regs == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
    hook_lock_take(&index->lock);
    pinrail_registration_t** unused = regs;
    if (room > index->room) {
      memcpy(regs, index->regs, index->count * sizeof(pinrail_registration_t*));
      unused = index->regs;
      index->regs = regs;
      index->room = room;
    }
    hook_lock_release(&index->lock);
    free(unused);
  }
}

static pinrail_status_t find_or_announce(void* module, pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                         pinrail_registration_t** reg_out) {
  index_t* index = module;
  pinrail_status_t status = make_room(index);
  (void)thread;
  if (status != PINRAIL_SUCCESS) return status;
  hook_lock_take(&index->lock);
  pinrail_registration_t* reg =
      find_with_lock(index, announcement->base, announcement->length, announcement->access, announcement->flags);
  const pinrail_announcement_t* answer = reg == NULL ? find_answer(index, announcement) : NULL;
  if (reg != NULL) {
    *reg_out = reg;
  } else if (answer != NULL) {
    announcement->waits_for = mark_of((pinrail_announcement_t*)answer)->name;
    status = PINRAIL_ERR_WOULD_BLOCK;
  } else {
    *mark_of(announcement) = (mark_t){index->announced, ++index->last_name, 0};
    index->announced = announcement;
    status = PINRAIL_ERR_NOT_FOUND;
  }
  hook_lock_release(&index->lock);
  return status;
}

static void end_announcement(index_t* index, pinrail_announcement_t* announcement) {
  pinrail_announcement_t** at = &index->announced;
  while (*at != announcement) at = &mark_of(*at)->next;
  *at = mark_of(announcement)->next;
}

static void reannounce(void* module, pinrail_announcement_t* announcement, uintptr_t base, size_t length) {
  index_t* index = module;
  hook_lock_take(&index->lock);
  announcement->base = base;
  announcement->length = length;
  mark_of(announcement)->is_overtaken = 0;
  hook_lock_release(&index->lock);
}

static pinrail_status_t withdraw(void* module, pinrail_announcement_t* announcement) {
  index_t* index = module;
  hook_lock_take(&index->lock);
  end_announcement(index, announcement);
  const int is_overtaken = mark_of(announcement)->is_overtaken;
  hook_lock_release(&index->lock);
  return is_overtaken ? PINRAIL_ERR_TEMP_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
}

/* Removes and visits, among the registrations [first, last), those for which goes() is true. */
static void take_out(index_t* index, size_t first, size_t last,
                     int (*goes)(const index_t* index, const pinrail_registration_t* reg, const void* what),
                     const void* what, pinrail_visit_hook_t visit_hook, void* arg) {
  pinrail_registration_t* batch[BATCH];
  size_t in_batch = 0, kept = first;
  for (size_t i = first; i < last; ++i) {
    pinrail_registration_t* reg = index->regs[i];
    if (!goes(index, reg, what)) {
      index->regs[kept++] = reg;
      continue;
    }
    batch[in_batch++] = reg;
    if (in_batch == BATCH) {
      visit_hook(arg, batch, in_batch);
      in_batch = 0;
    }
  }
  memmove(index->regs + kept, index->regs + last, (index->count - last) * sizeof(pinrail_registration_t*));
  index->count -= last - kept;
  if (in_batch != 0) visit_hook(arg, batch, in_batch);
}

static int is_dominated_by(const index_t* index, const pinrail_registration_t* reg, const void* winner) {
  return dominates(index, winner, reg);
}

static int is_dominated(const index_t* index, const pinrail_registration_t* reg) {
  const size_t first = first_to_reach(index, base_of(reg));
  for (size_t i = count_up_to(index, base_of(reg)); i > first; --i) {
    if (dominates(index, index->regs[i - 1], reg) && !is_dead(index, index->regs[i - 1])) return 1;
  }
  return 0;
}

static void insert(index_t* index, pinrail_registration_t* reg) {
  const size_t at = count_up_to(index, base_of(reg));
  memmove(index->regs + at + 1, index->regs + at, (index->count - at) * sizeof(pinrail_registration_t*));
  index->regs[at] = reg;
  ++index->count;
  if (reg->length > index->longest) index->longest = reg->length;
}

static pinrail_status_t publish(void* module, pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                pinrail_registration_t* reg, pinrail_visit_hook_t displaced_hook, void* arg) {
  index_t* index = module;
  pinrail_status_t status = PINRAIL_SUCCESS;
  (void)thread;
  hook_lock_take(&index->lock);
  const int is_overtaken = mark_of(announcement)->is_overtaken;
  mark_of(announcement)->is_overtaken = 0;
  if (is_overtaken) {
    status = PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  } else if (index->count == index->room) {
    status = PINRAIL_ERR_OUT_OF_RESOURCE;
  } else if (is_dominated(index, reg)) {
    status = PINRAIL_ERR_BUSY;
  } else {
    take_out(index, first_to_reach(index, base_of(reg)), count_up_to(index, end_of(reg) - 1), is_dominated_by, reg,
             displaced_hook, arg);
    insert(index, reg);
    index->host->registrations->mark_indexed(reg, announcement->marks);
    end_announcement(index, announcement);
  }
  hook_lock_release(&index->lock);
  return status;
}

static pinrail_status_t remove_one(void* module, pinrail_registration_t* reg) {
  index_t* index = module;
  pinrail_status_t status = PINRAIL_ERR_NOT_FOUND;
  hook_lock_take(&index->lock);
  for (size_t i = count_up_to(index, base_of(reg)); i > 0 && base_of(index->regs[i - 1]) == base_of(reg); --i) {
    if (index->regs[i - 1] != reg) continue;
    memmove(index->regs + i - 1, index->regs + i, (index->count - i) * sizeof(pinrail_registration_t*));
    --index->count;
    status = PINRAIL_SUCCESS;
    break;
  }
  hook_lock_release(&index->lock);
  return status;
}

typedef struct range {
  uintptr_t base, end;
} range_t;

static int overlaps(const index_t* index, const pinrail_registration_t* reg, const void* what) {
  const range_t* range = what;
  (void)index;
  return base_of(reg) < range->end && range->base < end_of(reg);
}

static void invalidate_hook(void* module, uintptr_t base, size_t length, pinrail_visit_hook_t visit_hook, void* arg) {
  index_t* index = module;
  const range_t range = {base, base + length};
  if (length == 0) return;
  hook_lock_take(&index->lock);
  for (pinrail_announcement_t* each = index->announced; each != NULL; each = mark_of(each)->next) {
    if (each->base < range.end && range.base < each->base + each->length) mark_of(each)->is_overtaken = 1;
  }
  take_out(index, first_to_reach(index, base), count_up_to(index, range.end - 1), overlaps, &range, visit_hook, arg);
  hook_lock_release(&index->lock);
}

static size_t count(void* module) {
  index_t* index = module;
  hook_lock_take(&index->lock);
  const size_t result = index->count;
  hook_lock_release(&index->lock);
  return result;
}

static pinrail_status_t check(void* module) {
  index_t* index = module;
  pinrail_status_t status = PINRAIL_SUCCESS;
  hook_lock_take(&index->lock);
  for (size_t i = 1; i < index->count; ++i) {
    if (base_of(index->regs[i - 1]) > base_of(index->regs[i])) status = PINRAIL_ERR_ERROR;
  }
  if (index->count > index->room) status = PINRAIL_ERR_ERROR;
  hook_lock_release(&index->lock);
  if (status != PINRAIL_SUCCESS) index->host->log(index->host, PINRAIL_LOG_ERROR, "the array is not sorted");
  return status;
}

static pinrail_status_t create(void* component_pointer, uint32_t flags, void** module_out) {
  const component_t* component = component_pointer;
  if ((flags & ~(uint32_t)PINRAIL_RCACHE_EXACT) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  index_t* index = calloc(1, sizeof(*index));
  if (index == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  index->host = component->host;
  index->is_exact = (flags & PINRAIL_RCACHE_EXACT) != 0;
  index->room = component->first_room;
  index->regs = malloc(index->room * sizeof(pinrail_registration_t*));
  if (index->regs == NULL || hook_lock_init(&index->lock, component->host) != 0) {
    free(index->regs);
    free(index);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  *module_out = index;
  return PINRAIL_SUCCESS;
}

static void destroy(void* module) {
  index_t* index = module;
  pthread_mutex_destroy(&index->lock.mutex);
  free(index->regs);
  free(index);
}

static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t value;
  const pinrail_status_t status = host->param(host, "first_room", &value);
  if (status != PINRAIL_SUCCESS) return status;
  component_t* component = malloc(sizeof(*component));
  if (component == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  component->host = host;
  component->first_room = (size_t)value.u;
  *context_out = component;
  return PINRAIL_SUCCESS;
}

static void close_it(void* context) { free(context); }

static const pinrail_param_t params[] = {
    {.size = sizeof(pinrail_param_t),
     .name = "first_room",
     .fallback = "64",
     .help = "Registrations that a new index has room for; the room doubles when it is used up. A registration takes 8 "
             "bytes of it.",
     .type = PINRAIL_TYPE_UNSIGNED,
     .scope = PINRAIL_SCOPE_READONLY,
     .level = 7,
     .minimum = 1,
     .maximum = 1 << 20}};

/* visit_all is left out. */
static const pinrail_rcache_ops_t ops = {.size = sizeof(ops),
                                         .create = create,
                                         .destroy = destroy,
                                         .find = find,
                                         .find_or_announce = find_or_announce,
                                         .reannounce = reannounce,
                                         .withdraw = withdraw,
                                         .publish = publish,
                                         .remove = remove_one,
                                         .invalidate_hook = invalidate_hook,
                                         .count = count,
                                         .check = check};

PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {.size = sizeof(pinrail_component_t),
                                               .abi = PINRAIL_RCACHE_ABI,
                                               .priority = 1,
                                               .framework = "rcache",
                                               .name = "@NAME@",
                                               .version = "1.0.0",
                                               .help = "Index of registrations: a sorted array under one lock.",
                                               .params = params,
                                               .param_count = 1,
                                               .open = open_it,
                                               .close = close_it,
                                               .ops = &ops};
