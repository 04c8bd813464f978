/* SPDX-License-Identifier: BSD-3-Clause */
/* An object with a page of data, which dlclose() unmaps. */
extern __attribute__((visibility("default"))) int data_of_an_object;

int data_of_an_object = 1;
