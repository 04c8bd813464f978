# SPDX-License-Identifier: BSD-3-Clause
# The MPI program of ours, for contrib/openmpi/run-tests, which makes it: it needs an MPI to run.
EXTRA_PROGRAMS = test/openmpi/jobs
CLEANFILES += test/openmpi/jobs
openmpi_program_flags = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS)
test_openmpi_jobs_SOURCES = test/openmpi/jobs.c test/openmpi/transfers.c test/openmpi/common.h test/openmpi/common.c
test_openmpi_jobs_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_jobs_LDADD = $(OPENMPI_MPI_LIBS)

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
EXTRA_DIST += test/openmpi/device.c
