/* SPDX-License-Identifier: BSD-3-Clause
 * nccl_net.c - the calls regMr, regMrDmaBuf and deregMr of a network plug-in of NCCL, such as aws-ofi-nccl, in their
 * shape: data, size and type; for a dmabuf also its offset and descriptor; and a handle that deregMr gets back.
 */
#include <stdint.h>
#include <stdlib.h>

#include "test/adopt/device.h"

enum { PTR_HOST = 0x1, PTR_CUDA = 0x2, PTR_DMABUF = 0x4 };

typedef struct comm {
  pinrail_mpool_t* pool;
  int device; /* an argument for the registrar */
} comm_t;

static const uint32_t kAccess = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;

static int reg_mr_dmabuf(comm_t* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle) {
  pinrail_register_options_t options = PINRAIL_REGISTER_OPTIONS_INIT;
  pinrail_handle_t* handle = (pinrail_handle_t*)malloc(sizeof(*handle));
  pinrail_status_t status;
  if (handle == NULL) return 1;
  options.dmabuf_fd = fd;
  options.dmabuf_offset = fd < 0 ? 0 : offset;
  options.argument = comm;
  options.user_value = (uint64_t)type;
  status = pinrail_mpool_register_with(comm->pool, data, size, kAccess, 0, &options, handle);
  if (status != PINRAIL_SUCCESS) {
    free(handle);
    return 1;
  }
  *mhandle = handle;
  return 0;
}

static int reg_mr(comm_t* comm, void* data, size_t size, int type, void** mhandle) {
  return reg_mr_dmabuf(comm, data, size, type, 0, -1, mhandle);
}

static int dereg_mr(void* mhandle) {
  pinrail_handle_t* handle = (pinrail_handle_t*)mhandle;
  const pinrail_status_t status = pinrail_mpool_deregister(*handle);
  free(handle);
  return status == PINRAIL_SUCCESS ? 0 : 1;
}

/* fi_mr_key(): 64 bits. */
static uint64_t mr_key(void* mhandle) {
  pinrail_registration_details_t details;
  EXPECT(pinrail_registration_read_details(((pinrail_handle_t*)mhandle)->reg, &details) == PINRAIL_SUCCESS);
  EXPECT(details.user_value == PTR_CUDA || details.user_value == PTR_HOST);
  return details.rkey;
}

int main(void) {
  device_t device = {{0}, 0, 0};
  const pinrail_registrar_t table = device_table(&device);
  comm_t comm = {device_pool(&table), 3};
  char* const gpu = (char*)0x7f0000200000; /* memory of a GPU: never read here */
  void *mhandle = NULL, *other = NULL;
  /* A buffer in the middle of an allocation, whose dmabuf begins 64 KiB before it. */
  EXPECT(reg_mr_dmabuf(&comm, gpu + 0x100, 8192, PTR_CUDA, 0x10100, 42, &mhandle) == 0);
  EXPECT(device.last.kind == PINRAIL_KIND_DMABUF && device.last.fd == 42);
  EXPECT(device.last.addr == gpu && device.last.fd_offset == 0x10000 && device.last.length == 3 * 4096);
  EXPECT(device.last.argument == &comm);
  EXPECT(mr_key(mhandle) == UINT64_C(0xabcd00000001));
  /* Host memory by the same call. */
  EXPECT(reg_mr(&comm, gpu + 0x100000, 4096, PTR_HOST, &other) == 0);
  EXPECT(device.last.kind == PINRAIL_KIND_HOST && device.last.fd == -1);
  EXPECT(mr_key(other) == UINT64_C(0xabcd00000002));
  /* The rounded range would begin before the dmabuf. */
  EXPECT(reg_mr_dmabuf(&comm, gpu + 0x100, 1, PTR_CUDA, 0x10, 42, &mhandle) == 1);
  EXPECT(device.registered == 2);
  EXPECT(dereg_mr(mhandle) == 0);
  EXPECT(dereg_mr(other) == 0);
  device_close(comm.pool, &device);
  return 0;
}
