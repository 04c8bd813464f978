# SPDX-License-Identifier: BSD-3-Clause
# libfabric's cache with Pinrail's monitor, and a hook provider that gives its programs Pinrail's cache.
EXTRA_DIST += contrib/libfabric/README contrib/libfabric/run-guest contrib/libfabric/hook-cases \
	contrib/libfabric/get-mpich test/libfabric/mpi_transfers.c

if HAVE_FABRIC
lib_LTLIBRARIES += libpinrail-libfabric.la
libfabricincludedir = $(includedir)/pinrail
libfabricinclude_HEADERS = contrib/libfabric/pinrail_libfabric.h
libpinrail_libfabric_la_SOURCES = contrib/libfabric/import.c
libpinrail_libfabric_la_LIBADD = libpinrail.la $(FABRIC_LIBS)
libpinrail_libfabric_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -Wl,-z,nodelete $(PINRAIL_NO_UNDEFINED)

# Needs an RDMA device: contrib/libfabric/run-guest.
check_PROGRAMS += test/libfabric/import
test_libfabric_import_SOURCES = test/libfabric/import.c
test_libfabric_import_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
test_libfabric_import_LDADD = libpinrail-libfabric.la libpinrail.la $(FABRIC_LIBS)
endif

EXTRA_DIST += test/libfabric_hook_test.sh
TESTS += test/libfabric_hook_test.sh
if FABRIC_HOOK
# libfabric loads what ends in -fi.so from FI_PROVIDER_PATH.
fabricdir = $(pkglibdir)/libfabric
fabric_LTLIBRARIES = contrib/libfabric/libpinrail-fi.la
contrib_libfabric_libpinrail_fi_la_SOURCES = contrib/libfabric/hook.h contrib/libfabric/hook.c \
	contrib/libfabric/hook_mr.c
contrib_libfabric_libpinrail_fi_la_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
contrib_libfabric_libpinrail_fi_la_LIBADD = libpinrail.la $(FABRIC_LIBS)
contrib_libfabric_libpinrail_fi_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -Wl,-z,nodelete \
	$(PINRAIL_NO_UNDEFINED)
# libtool links it again against the installed library; see contrib/openmpi/local.mk.
fabric_installed = install-fabricLTLIBRARIES
$(fabric_installed): install-libLTLIBRARIES

# An unchanged program of libfabric's.
check_PROGRAMS += test/libfabric/per_transfer
test_libfabric_per_transfer_SOURCES = test/libfabric/per_transfer.c
test_libfabric_per_transfer_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
test_libfabric_per_transfer_LDADD = $(FABRIC_LIBS)

check_LTLIBRARIES += test/libfabric/libdouble-fi.la
test_libfabric_libdouble_fi_la_SOURCES = test/libfabric/provider_double.h test/libfabric/provider_double.c
test_libfabric_libdouble_fi_la_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
test_libfabric_libdouble_fi_la_LIBADD = $(FABRIC_LIBS)
test_libfabric_libdouble_fi_la_LDFLAGS = -avoid-version -shared -rpath /nonexistent
if HAVE_GTEST
check_PROGRAMS += test/libfabric/hook_calls
test_libfabric_hook_calls_SOURCES = test/libfabric/hook_calls.cc test/libfabric/provider_double.h
test_libfabric_hook_calls_LDADD = test/libfabric/libdouble-fi.la -lgtest_main $(GTEST_LIBS) $(FABRIC_LIBS)
endif
endif
