// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/openmpi/gpu_ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t kMagic = UINT64_C(0x3154544b4c524e50);  // "PNRLKTT1" in memory

typedef struct ticket {
  uint64_t magic;
  uint32_t pid;        // of the exporter
  int32_t descriptor;  // of the table, in the exporter
  uint64_t table;      // the table's id: a descriptor's number may have been used again
  uint64_t place;
  uint64_t checksum;  // of the block
  uint64_t unused[3];
} ticket_t;
_Static_assert(sizeof(ticket_t) == PINRAIL_TICKET_BYTES, "as long as a handle of the driver");

enum { kPlaces = 1 << 18 };  // addresses are all that an unused place costs

typedef struct table {
  uint64_t magic;
  uint64_t id;
  unsigned char unused[PINRAIL_GPU_BLOCK_BYTES - 2 * sizeof(uint64_t)];
  pinrail_gpu_block_t blocks[kPlaces];
} table_t;
_Static_assert(sizeof(pinrail_gpu_block_t) == PINRAIL_GPU_BLOCK_BYTES, "places are aligned as blocks are");

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static table_t* own_table;       // table_mutex; of this process
static int own_descriptor = -1;  // table_mutex
static uint64_t own_places;      // table_mutex; the first so many have memory

// A table that cannot become shorter, so that a reader never meets its end. Above "ulimit -f" its ftruncate() would end
// the process, by SIGXFSZ.
static int make_memory(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(table_t)) return -1;
  const int made = memfd_create("pinrail-gpu-blocks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Not the number of a standard stream that the program has closed: it would write into the table.
  const bool is_standard = made >= 0 && made <= STDERR_FILENO;
  const int descriptor = is_standard ? fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : made;
  if (is_standard) close(made);
  if (descriptor < 0) return -1;
  if (ftruncate(descriptor, sizeof(table_t)) == 0 &&
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    return descriptor;
  }
  close(descriptor);
  return -1;
}

// Gives the place memory, and those before it. Without it, a look into the place would end the process.
static bool has_memory_locked(int descriptor, uint64_t place) {
  enum { kStep = 1024 };
  if (place < own_places) return true;
  const uint64_t places = (place / kStep + 1) * kStep;
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(descriptor, 0, (off_t)offsetof(table_t, blocks[places]));
  if (error == 0) own_places = places;
  return error == 0;
}

static bool make_table_locked(void) {
  uint64_t id;
  if (own_table != NULL) return true;
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) return false;
  const int descriptor = make_memory();
  if (descriptor < 0) return false;
  table_t* made = MAP_FAILED;
  if (has_memory_locked(descriptor, 0))
    made = mmap(NULL, sizeof(table_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (made == MAP_FAILED) {
    own_places = 0;
    close(descriptor);
    return false;
  }
  made->magic = kMagic;
  made->id = id;
  own_table = made;
  own_descriptor = descriptor;
  return true;
}

// Readers copy a block between two looks at its checksum, which is the last field.
static void put_locked(pinrail_gpu_block_t* place, const pinrail_gpu_block_t* block) {
  if (place->checksum == block->checksum) return;  // the same memory as at the last export
  __atomic_store_n(&place->checksum, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);  // no byte of the new block before the 0; pairs with the fence in get()
  memcpy(place, block, offsetof(pinrail_gpu_block_t, checksum));
  __atomic_store_n(&place->checksum, block->checksum, __ATOMIC_RELEASE);  // pairs with the first load in get()
}

static bool get(const pinrail_gpu_block_t* place, uint64_t checksum, pinrail_gpu_block_t* block_out) {
  if (__atomic_load_n(&place->checksum, __ATOMIC_ACQUIRE) != checksum) return false;
  pinrail_gpu_block_t copy = *place;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);  // the copy is complete before the second look
  if (__atomic_load_n(&place->checksum, __ATOMIC_RELAXED) != checksum) return false;
  copy.checksum = checksum;
  *block_out = copy;
  return true;
}

pinrail_status_t write_ticket(const pinrail_gpu_block_t* block, void* ticket_out) {
  if (block->segment == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (block->slot >= kPlaces) return PINRAIL_ERR_OUT_OF_RESOURCE;
  ticket_t ticket = {.magic = kMagic, .pid = block->pid, .place = block->slot, .checksum = block->checksum};
  pthread_mutex_lock(&table_mutex);
  const bool has_place = make_table_locked() && has_memory_locked(own_descriptor, block->slot);
  if (has_place) {
    put_locked(&own_table->blocks[block->slot], block);
    ticket.descriptor = own_descriptor;
    ticket.table = own_table->id;
  }
  pthread_mutex_unlock(&table_mutex);
  if (!has_place) return PINRAIL_ERR_OUT_OF_RESOURCE;
  memcpy(ticket_out, &ticket, sizeof(ticket));
  return PINRAIL_SUCCESS;
}

// Whether the descriptor is of a table that stays as long as it is.
static bool is_table(int descriptor) {
  struct stat found;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &found) == 0 &&
         found.st_size == (off_t)sizeof(table_t);
}

static pinrail_status_t map_table(int descriptor, uint64_t id, gpu_table_t* table_out) {
  if (!is_table(descriptor)) return PINRAIL_ERR_NOT_FOUND;
  const table_t* const mapped = mmap(NULL, sizeof(table_t), PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (mapped->magic != kMagic || mapped->id != id) {
    munmap((void*)(uintptr_t)mapped, sizeof(table_t));
    return PINRAIL_ERR_NOT_FOUND;
  }
  *table_out = (gpu_table_t){mapped, id};
  return PINRAIL_SUCCESS;
}

static pinrail_status_t open_table(const ticket_t* ticket, gpu_table_t* table_out) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%u/fd/%d", ticket->pid, ticket->descriptor);
  // The number may be another file's by now. Opening a pipe without O_NONBLOCK would wait for a writer.
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (descriptor < 0) return errno == EACCES || errno == EPERM ? PINRAIL_ERR_PERM : PINRAIL_ERR_NOT_FOUND;
  const pinrail_status_t status = map_table(descriptor, ticket->table, table_out);
  close(descriptor);
  return status;
}

pinrail_status_t read_ticket(gpu_table_t* table, const void* bytes, pinrail_gpu_block_t* block_out) {
  ticket_t ticket;
  memcpy(&ticket, bytes, sizeof(ticket));
  if (ticket.magic != kMagic || ticket.place >= kPlaces) return PINRAIL_ERR_BAD_PARAM;
  if (table->mapped == NULL || table->id != ticket.table) {
    gpu_table_t opened;
    const pinrail_status_t status = open_table(&ticket, &opened);
    if (status != PINRAIL_SUCCESS) return status;
    close_table(table);
    *table = opened;
  }
  const table_t* const theirs = table->mapped;
  return get(&theirs->blocks[ticket.place], ticket.checksum, block_out) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

void close_table(gpu_table_t* table) {
  if (table->mapped != NULL) munmap((void*)(uintptr_t)table->mapped, sizeof(table_t));
  *table = (gpu_table_t){0};
}
