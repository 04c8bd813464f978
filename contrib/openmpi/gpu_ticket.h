// SPDX-License-Identifier: BSD-3-Clause
// gpu_ticket.h - how the block of Pinrail's gpusm (256 bytes) reaches the peer: Open MPI's transport smcuda hands over
// the 64 bytes of a driver's handle and nothing else. So the exporter writes its blocks into a table in shared memory,
// and a ticket of 64 bytes names the table and a place in it.
//
// Owns     the exporter's table, one per process, until the process ends; and each reader's mapping of a table.
// Threads  write_ticket(): any. read_ticket() and close_table() of one reader: one at a time.
//
// A place holds the block of the exporter's validity slot with that number, so places need no list of free ones. A
// ticket carries its block's checksum. A reader gets NOT_FOUND if the place holds another block by now or is being
// written: the memory was freed.
#ifndef PINRAIL_OPENMPI_GPU_TICKET_H
#define PINRAIL_OPENMPI_GPU_TICKET_H

#include <pinrail/pinrail.h>

enum { PINRAIL_TICKET_BYTES = 64 };

// A mapping of another process's table. All zeros: none.
typedef struct gpu_table {
  const void* mapped;
  uint64_t id;
} gpu_table_t;

// The ticket of a block of this process, 64 bytes. NOT_SUPPORTED: the block has no validity slot. OUT_OF_RESOURCE:
// there is no memory for the table, or no place.
pinrail_status_t write_ticket(const pinrail_gpu_block_t* block, void* ticket_out);

// The block of a ticket. BAD_PARAM: these bytes are no ticket. NOT_FOUND: the block's memory or its process is gone.
// PERM: this process may not read the exporter's table.
pinrail_status_t read_ticket(gpu_table_t* table, const void* ticket, pinrail_gpu_block_t* block_out);

void close_table(gpu_table_t* table);

#endif
