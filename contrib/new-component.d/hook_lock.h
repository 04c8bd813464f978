/* SPDX-License-Identifier: BSD-3-Clause
 * hook_lock.h - a lock that hooks may take, as component.h asks for it (depth_hook).
 */
#ifndef HOOK_LOCK_H
#define HOOK_LOCK_H

#include <pinrail/component.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct hook_lock {
  pthread_mutex_t mutex;
  const pinrail_host_t* host;
  pinrail_hook_depth_t* depth; /* of the thread that holds the mutex */
} hook_lock_t;

static inline int hook_lock_init(hook_lock_t* lock, const pinrail_host_t* host) {
  lock->host = host;
  lock->depth = NULL;
  return pthread_mutex_init(&lock->mutex, NULL);
}

static inline void hook_lock_take(hook_lock_t* lock) {
  pinrail_hook_depth_t* depth = lock->host->depth_hook();
  ++depth->depth;
  atomic_signal_fence(memory_order_seq_cst);
  if (depth->while_waiting_hook == NULL) {
    pthread_mutex_lock(&lock->mutex);
  } else {
    while (pthread_mutex_trylock(&lock->mutex) != 0) depth->while_waiting_hook(depth->waiting_arg);
  }
  lock->depth = depth;
}

static inline void hook_lock_release(hook_lock_t* lock) {
  pinrail_hook_depth_t* depth = lock->depth;
  pthread_mutex_unlock(&lock->mutex);
  atomic_signal_fence(memory_order_seq_cst);
  if (depth->depth != 0) --depth->depth;
  atomic_signal_fence(memory_order_seq_cst);
  if (depth->depth == 0 && depth->waiting != 0) lock->host->deliver_deferred_hook();
}

#endif
