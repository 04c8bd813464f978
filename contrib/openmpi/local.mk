# SPDX-License-Identifier: BSD-3-Clause
# Pinrail as a component of Open MPI, in a folder of its own beside Pinrail's components.
EXTRA_DIST += contrib/openmpi/README contrib/openmpi/run-tests contrib/openmpi/run-guest \
	contrib/openmpi/run-applications contrib/openmpi/check-headers contrib/openmpi/get \
	contrib/openmpi/applications/program.py contrib/openmpi/lib/jobs.sh \
	contrib/openmpi/lib/in-system contrib/openmpi/run-smcuda $(openmpi_gpu_sources) \
	contrib/openmpi/gpusm_component.c contrib/openmpi/rgpusm_component.c
openmpi_shared_sources = contrib/openmpi/open_mpi.h contrib/openmpi/tell.c contrib/openmpi/settings.h contrib/openmpi/settings.c
openmpi_gpu_sources = contrib/openmpi/gpu_pool.h contrib/openmpi/gpu_pool.c \
	contrib/openmpi/gpu_ticket.h contrib/openmpi/gpu_ticket.c

# Open MPI reads every file of the folder whose name begins with mca_, so names of objects must not.
contrib_openmpi_mca_rcache_grdma_la_SHORTNAME = grdma
contrib_openmpi_mca_rcache_gpusm_la_SHORTNAME = gpusm
contrib_openmpi_mca_rcache_rgpusm_la_SHORTNAME = rgpusm
contrib_openmpi_mca_rcache_pinrail_la_SHORTNAME = whose
contrib_openmpi_mca_mpool_pinrail_la_SHORTNAME = mpool

if OPENMPI_COMPONENT
openmpidir = $(pkglibdir)/openmpi
openmpi_LTLIBRARIES = contrib/openmpi/mca_rcache_pinrail.la
dist_openmpi_SCRIPTS = contrib/openmpi/mpirun-args
# Open MPI unloads components while it still keeps what leads to them: variables, and at MPI_Finalize free lists in
# memory of an mpool. So their code stays.
openmpi_module_ldflags = $(AM_LDFLAGS) -module -avoid-version -shared -Wl,-Bsymbolic -Wl,-z,nodelete \
	-Wl,--version-script=$(top_srcdir)/contrib/openmpi/component.map $(PINRAIL_NO_UNDEFINED)
openmpi_grdma_sources = $(openmpi_shared_sources) contrib/openmpi/grdma.h contrib/openmpi/grdma_module.c \
	contrib/openmpi/grdma_calls.c contrib/openmpi/grdma_invalidate_hook.c

contrib_openmpi_mca_rcache_pinrail_la_CPPFLAGS = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS) -D_GNU_SOURCE
EXTRA_contrib_openmpi_mca_rcache_pinrail_la_DEPENDENCIES = contrib/openmpi/component.map
if OPENMPI_TAKEOVER
contrib_openmpi_mca_rcache_pinrail_la_SOURCES = contrib/openmpi/takeover_component.c $(openmpi_grdma_sources)
contrib_openmpi_mca_rcache_pinrail_la_LDFLAGS = $(openmpi_module_ldflags)
contrib_openmpi_mca_rcache_pinrail_la_LIBADD = libpinrail.la $(OPENMPI_LIBS)
# For GPU memory: with CUDA, Open MPI 5 loads its own from files of these names; without, its transports ask for none.
openmpi_LTLIBRARIES += contrib/openmpi/mca_rcache_gpusm.la contrib/openmpi/mca_rcache_rgpusm.la
contrib_openmpi_mca_rcache_gpusm_la_SOURCES = contrib/openmpi/gpusm_component.c $(openmpi_shared_sources) \
	$(openmpi_gpu_sources)
contrib_openmpi_mca_rcache_gpusm_la_CPPFLAGS = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS) -D_GNU_SOURCE
contrib_openmpi_mca_rcache_gpusm_la_LDFLAGS = $(openmpi_module_ldflags)
contrib_openmpi_mca_rcache_gpusm_la_LIBADD = libpinrail.la $(OPENMPI_LIBS)
EXTRA_contrib_openmpi_mca_rcache_gpusm_la_DEPENDENCIES = contrib/openmpi/component.map
contrib_openmpi_mca_rcache_rgpusm_la_SOURCES = contrib/openmpi/rgpusm_component.c $(openmpi_shared_sources) \
	$(openmpi_gpu_sources)
contrib_openmpi_mca_rcache_rgpusm_la_CPPFLAGS = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS) -D_GNU_SOURCE
contrib_openmpi_mca_rcache_rgpusm_la_LDFLAGS = $(openmpi_module_ldflags)
contrib_openmpi_mca_rcache_rgpusm_la_LIBADD = libpinrail.la $(OPENMPI_LIBS)
EXTRA_contrib_openmpi_mca_rcache_rgpusm_la_DEPENDENCIES = contrib/openmpi/component.map
else
openmpi_LTLIBRARIES += contrib/openmpi/mca_rcache_grdma.la
contrib_openmpi_mca_rcache_grdma_la_SOURCES = contrib/openmpi/grdma_component.c $(openmpi_grdma_sources)
contrib_openmpi_mca_rcache_grdma_la_CPPFLAGS = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS)
contrib_openmpi_mca_rcache_grdma_la_LDFLAGS = $(openmpi_module_ldflags)
contrib_openmpi_mca_rcache_grdma_la_LIBADD = libpinrail.la $(OPENMPI_LIBS)
EXTRA_contrib_openmpi_mca_rcache_grdma_la_DEPENDENCIES = contrib/openmpi/component.map
openmpi_LTLIBRARIES += contrib/openmpi/mca_mpool_pinrail.la
contrib_openmpi_mca_mpool_pinrail_la_SOURCES = contrib/openmpi/mpool_component.c contrib/openmpi/open_mpi.h
contrib_openmpi_mca_mpool_pinrail_la_CPPFLAGS = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS) -D_GNU_SOURCE
contrib_openmpi_mca_mpool_pinrail_la_LDFLAGS = $(openmpi_module_ldflags)
contrib_openmpi_mca_mpool_pinrail_la_LIBADD = $(OPENMPI_LIBS)
EXTRA_contrib_openmpi_mca_mpool_pinrail_la_DEPENDENCIES = contrib/openmpi/component.map

contrib_openmpi_mca_rcache_pinrail_la_SOURCES = contrib/openmpi/open_mpi.h contrib/openmpi/tell.c contrib/openmpi/whose_component.c
contrib_openmpi_mca_rcache_pinrail_la_LDFLAGS = $(openmpi_module_ldflags)
contrib_openmpi_mca_rcache_pinrail_la_LIBADD = $(OPENMPI_LIBS)
endif
# libtool links it again against the installed library. The name is hidden from automake, which would take this for a
# rule of ours, omit its own, and append its commands to the rule before, so that make clean would install.
openmpi_installed = install-openmpiLTLIBRARIES
$(openmpi_installed): install-libLTLIBRARIES
else
EXTRA_DIST += contrib/openmpi/mpirun-args
endif
EXTRA_DIST += contrib/openmpi/component.map

if !EMBEDDED
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
check_PROGRAMS += test/openmpi/components_alone
TESTS += test/openmpi/components_alone
test_openmpi_components_alone_SOURCES = test/openmpi/components_alone.c
test_openmpi_components_alone_CPPFLAGS = $(openmpi_program_flags) -D_GNU_SOURCE
test_openmpi_components_alone_LDFLAGS = $(AM_LDFLAGS) -export-dynamic
test_openmpi_components_alone_LDADD = $(OPENMPI_LIBS)
endif
endif

# Compiled by contrib/openmpi/run-smcuda, for an Open MPI of its own.
EXTRA_DIST += test/openmpi/device.c
endif
