# SPDX-License-Identifier: BSD-3-Clause
# libfabric's cache with Pinrail's monitor.
EXTRA_DIST += contrib/libfabric/README contrib/libfabric/run-guest

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
test_libfabric_import_LDADD = libpinrail-libfabric.la libpinrail.la $(FABRIC_LIBS)
endif
