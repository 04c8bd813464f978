// SPDX-License-Identifier: BSD-3-Clause
// hook.h - libfabric's hook provider "pinrail": programs get a registration cache without a change, by FI_HOOK=pinrail.
//
// Owns     a copy of a table of functions for each fabric and domain that is hooked, and a pool for each domain. The
//          objects stay the provider's own: only their pointers to tables are replaced, and put back when they close.
// Threads  fi_mr_reg*() and fi_close() of a memory region: as many at a time as the domain's threading model allows.
//          Opening and closing of fabrics and domains: as the program does it.
//
// What the program holds as a memory region is ours (hooked_mr_t), with the descriptor and key of the provider's
// region, which the pool keeps. A region that is not cached is the provider's own. While the provider registers for a
// pool, registrations by the same thread are passed through: a provider that is layered on another one (ofi_rxm) gets
// one cache, not one in another. Before the provider closes a domain, no registration of the pool is left there. When
// the process exits, what belongs to domains that are open is left alone.
#ifndef PINRAIL_LIBFABRIC_HOOK_H
#define PINRAIL_LIBFABRIC_HOOK_H

#include <pinrail/pinrail.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct hooked_domain {
  struct hooked_domain* next;  // of the domains that are open
  struct fid_domain* domain;
  struct fi_ops_mr* own_mr;       // the provider's table, and ours, for it to be put back
  struct fi_ops_mr* hooked_mr;    //
  struct fi_ops* own_ops;         // likewise
  struct fi_ops* hooked_ops;      //
  pinrail_mpool_t* pool;          // NULL: all is passed through
  pinrail_thread_mode_t threads;  // as the program promised the provider
  bool names_kinds;               // the program says the kind of memory of each region: others than host memory exist
  char provider[32];              // its name
  atomic_bool passes_through;     // from now on all is: the program uses events, counters, or the provider's functions
  atomic_ullong device_calls;     // registrations by the provider for the pool
  atomic_uint uses;               // regions of the pool that the program has, and calls on the pool that are under way
} hooked_domain_t;

// A copy of a provider's table, which begins with its size in bytes and may be longer than those known here; NULL: no
// memory. The owner is found again by the table.
void* copy_table(const void* table, void* owner);
void* table_owner(const void* table);
void free_table(void* table);

// A domain that was just opened. If it cannot be cached, it is left as it is, with a line that names the provider.
void hook_domain(struct fid_domain* domain, const struct fi_info* info, const char* name);

// Puts our functions into a copied table.
void fill_mr_table(struct fi_ops_mr* table);

pinrail_registrar_t registrar_of_domain(hooked_domain_t* hooked);

// Whether the process exits and libfabric has cleaned its providers up, some of them before this one: none of them may
// be called any more.
bool providers_are_gone(void);

// Whether to print figures when a domain is closed, or the process exits before that: FI_PINRAIL_STATS.
bool prints_stats(void);

// Whether a region may be answered from one that contains it or has more rights, whose key then exposes these:
// FI_PINRAIL_SHARE.
bool shares(void);

// The process exits: prints the figures of the domains that it left open. Not in a forked child of the process.
void print_stats_of_open_domains(void);
// Whether a pool of the program, or of the parent of this forked child, is in use.
bool pools_are_used(void);

// Begins and ends a use of the domain's pool. False: the process exits, and its pools may be gone.
bool begin_use(hooked_domain_t* hooked);
void end_use(hooked_domain_t* hooked);

#endif
