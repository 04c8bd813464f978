/* SPDX-License-Identifier: BSD-3-Clause
 * provider_double.h - a provider of libfabric's without a device: memory regions that are only counted.
 *
 * As seen with libfabric 1.17: when the process exits, providers that libfabric knows by name are cleaned up before a
 * hook, and those that are files have been unloaded by then. So the double has the name of one that is for another
 * system, and ends the process if a region is closed after its cleanup.
 */
#ifndef PINRAIL_TEST_LIBFABRIC_PROVIDER_DOUBLE_H
#define PINRAIL_TEST_LIBFABRIC_PROVIDER_DOUBLE_H

#include <stddef.h>
#include <stdint.h>

#define PROVIDER_DOUBLE "netdir"

#ifdef __cplusplus
extern "C" {
#endif

uint64_t provider_double_made(void);             // regions made so far
uint64_t provider_double_access(uint64_t key);   // FI_* of the region of that key; of the latest 64 regions
size_t provider_double_length(uint64_t key);     // its length in bytes, likewise
void provider_double_most_live(uint64_t count);  // while so many regions exist, registrations fail with FI_ENOMEM
void provider_double_slow(unsigned ms);          // what the end of each region takes
uint64_t provider_double_leaving(void);          // regions that are ending
uint64_t provider_double_live(void);             // regions that exist

// Functions of the provider's own, from a domain (fi_open_ops).
#define PROVIDER_DOUBLE_FUNCTIONS "functions of the double"
struct fid_mr;
struct provider_double_functions {
  int (*is_own)(const struct fid_mr* mr);  // whether it is a region of the provider's; others would read beyond its end
};

#ifdef __cplusplus
}
#endif

#endif
