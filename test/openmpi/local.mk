# SPDX-License-Identifier: BSD-3-Clause
# MPI programs of ours, for contrib/openmpi/run-tests, which makes them: they need an MPI to run.
openmpi_programs = test/openmpi/rma test/openmpi/two_sided test/openmpi/remap test/openmpi/threads \
	test/openmpi/windows test/openmpi/many test/openmpi/pvars test/openmpi/evict \
	test/openmpi/forked test/openmpi/alloc_mem
EXTRA_PROGRAMS = $(openmpi_programs)
CLEANFILES += $(openmpi_programs)
openmpi_program_flags = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS)
openmpi_common = test/openmpi/common.h test/openmpi/common.c
test_openmpi_rma_SOURCES = test/openmpi/rma.c $(openmpi_common)
test_openmpi_two_sided_SOURCES = test/openmpi/two_sided.c $(openmpi_common)
test_openmpi_remap_SOURCES = test/openmpi/remap.c $(openmpi_common)
test_openmpi_threads_SOURCES = test/openmpi/threads.c $(openmpi_common)
test_openmpi_windows_SOURCES = test/openmpi/windows.c $(openmpi_common)
test_openmpi_many_SOURCES = test/openmpi/many.c $(openmpi_common)
test_openmpi_pvars_SOURCES = test/openmpi/pvars.c $(openmpi_common)
test_openmpi_rma_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_rma_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_two_sided_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_two_sided_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_remap_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_remap_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_threads_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_threads_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_windows_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_windows_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_many_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_many_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_pvars_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_pvars_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_evict_SOURCES = test/openmpi/evict.c $(openmpi_common)
test_openmpi_evict_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_evict_LDADD = $(OPENMPI_MPI_LIBS)
test_openmpi_forked_SOURCES = test/openmpi/forked.c $(openmpi_common)
test_openmpi_forked_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_forked_LDADD = $(OPENMPI_MPI_LIBS)

# These need no MPI to run: make check runs them. Open MPI 5 has no such components of Pinrail's.
if OPENMPI_COMPONENT
if !OPENMPI_TAKEOVER
check_PROGRAMS += test/openmpi/mpool_calls test/openmpi/grdma_alone
TESTS += test/openmpi/mpool_calls test/openmpi/grdma_alone
test_openmpi_grdma_alone_SOURCES = test/openmpi/grdma_alone.c
test_openmpi_grdma_alone_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_grdma_alone_LDADD = $(OPENMPI_LIBS)
test_openmpi_mpool_calls_SOURCES = test/openmpi/mpool_calls.c
test_openmpi_mpool_calls_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
endif
endif

# Compiled by contrib/openmpi/run-smcuda, for an Open MPI of its own.
EXTRA_DIST += test/openmpi/device.h test/openmpi/device.c test/openmpi/device_messages.c \
	test/openmpi/device_reallocated.c test/openmpi/device_many.c
test_openmpi_alloc_mem_SOURCES = test/openmpi/alloc_mem.c $(openmpi_common)
test_openmpi_alloc_mem_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_alloc_mem_LDADD = $(OPENMPI_MPI_LIBS)
