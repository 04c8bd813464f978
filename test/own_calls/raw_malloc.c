/* SPDX-License-Identifier: BSD-3-Clause
 * raw_malloc - an allocator whose system calls are its own, past the C library: preloaded, or loaded late. Large blocks
 * are mapped, and unmapped at once, or with QUARANTINE after that many others were freed; small ones are cut from
 * mappings that stay. HIDDEN: the code does not show which system calls it makes.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { kPage = 4096, kHead = 16, kLarge = 64 << 10, kArena = 4 << 20 };

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
#error "this test knows how x86-64 and aarch64 call their kernel"
#endif
}

#ifdef HIDDEN
static volatile long hidden = 1000;
#define NUMBER(number) ((number) + 1000 - hidden)
#else
#define NUMBER(number) (number)
#endif

static void* map(size_t length) {
  const long at = kernel(NUMBER(SYS_mmap), 0, (long)length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at < 0 && at > -4096 ? NULL : (void*)at;
}

static char* arena;
static size_t left;
static int lock;

static void* cut(size_t length) {
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
  }
  if (length > left) {
    arena = map(kArena);
    left = arena != NULL ? kArena : 0;
  }
  void* block = NULL;
  if (length <= left) {
    block = arena;
    arena += length;
    left -= length;
  }
  __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
  return block;
}

/* The head is the length of the mapping, or of the block's own part. */
void* malloc(size_t length) {
  if (length > SIZE_MAX / 2) {
    errno = ENOMEM;
    return NULL;
  }
  size_t whole = (length + kHead + 15) & ~(size_t)15;
  if (whole >= kLarge) whole = (whole + kPage - 1) & ~(size_t)(kPage - 1);
  size_t* const head = whole >= kLarge ? map(whole) : cut(whole);
  if (head == NULL) {
    errno = ENOMEM;
    return NULL;
  }
  *head = whole;
  return (char*)head + kHead;
}

/* Blocks that wait; the oldest one comes out when a new one goes in. */
static size_t* put_into_quarantine(size_t* head) {
#ifdef QUARANTINE
  static size_t* waiting[QUARANTINE];
  static size_t next;
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
  }
  size_t* const oldest = waiting[next % QUARANTINE];
  waiting[next++ % QUARANTINE] = head;
  __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
  return oldest;
#else
  return head;
#endif
}

void free(void* block) {
  if (block == NULL) return;
  size_t* head = (size_t*)((char*)block - kHead);
  if (*head < kLarge) return;
  head = put_into_quarantine(head);
  if (head != NULL) kernel(NUMBER(SYS_munmap), (long)head, (long)*head, 0, 0, 0, 0);
}

void* calloc(size_t count, size_t length) {
  if (length != 0 && count > SIZE_MAX / length) {
    errno = ENOMEM;
    return NULL;
  }
  void* const block = malloc(count * length);
  if (block != NULL) memset(block, 0, count * length);
  return block;
}

void* realloc(void* block, size_t length) {
  void* const grown = malloc(length);
  if (grown == NULL || block == NULL) return grown;
  const size_t had = *(size_t*)((char*)block - kHead) - kHead;
  memcpy(grown, block, had < length ? had : length);
  free(block);
  return grown;
}

/* Never given back, so that free() finds no head that is not one: there is none in front of an aligned block. */
int posix_memalign(void** block_out, size_t alignment, size_t length) {
  char* const raw = cut(length + alignment + kHead);
  if (raw == NULL) return ENOMEM;
  char* const block = (char*)(((uintptr_t)raw + kHead + alignment - 1) & ~(uintptr_t)(alignment - 1));
  *(size_t*)(block - kHead) = kHead + 1;
  *block_out = block;
  return 0;
}

void* aligned_alloc(size_t alignment, size_t length) {
  void* block = NULL;
  const int status = posix_memalign(&block, alignment, length);
  if (status != 0) errno = status;
  return block;
}

void* memalign(size_t alignment, size_t length) { return aligned_alloc(alignment, length); }
