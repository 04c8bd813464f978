# SPDX-License-Identifier: BSD-3-Clause
# A launcher that gives a program of libibverbs the cache.
EXTRA_DIST += contrib/pinrun/README contrib/pinrun/pinrun.in contrib/pinrun/libpinrun.map contrib/pinrun/run-guest contrib/pinrun/run-suites contrib/man/pinrun.1

if PINRUN
pinrundir = $(pkglibdir)/pinrun
pinrun_LTLIBRARIES = contrib/pinrun/libpinrun.la
contrib_pinrun_libpinrun_la_SOURCES = contrib/pinrun/pinrun.h contrib/pinrun/interpose.cc \
	contrib/pinrun/dlsym.cc contrib/pinrun/domains.cc contrib/pinrun/registrar.cc
contrib_pinrun_libpinrun_la_CXXFLAGS = $(room_cxxflags)
contrib_pinrun_libpinrun_la_LIBADD = libpinrail.la
contrib_pinrun_libpinrun_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -Wl,-z,nodelete \
	-Wl,--version-script=$(top_srcdir)/contrib/pinrun/libpinrun.map $(PINRAIL_NO_UNDEFINED)
EXTRA_contrib_pinrun_libpinrun_la_DEPENDENCIES = contrib/pinrun/libpinrun.map

bin_SCRIPTS = contrib/pinrun/pinrun
dist_man_MANS += contrib/man/pinrun.1
contrib/pinrun/pinrun: $(srcdir)/contrib/pinrun/pinrun.in Makefile
	$(AM_V_GEN)$(MKDIR_P) contrib/pinrun && sed -e 's|@pkglibdir[@]|$(pkglibdir)|' \
		-e 's|@PACKAGE_VERSION[@]|$(PACKAGE_VERSION)|' $(srcdir)/contrib/pinrun/pinrun.in >$@.new && \
		chmod +x $@.new && mv $@.new $@
CLEANFILES += contrib/pinrun/pinrun
endif

# test/pinrun/per_transfer needs an RDMA device: contrib/pinrun/run-guest.
EXTRA_DIST += test/pinrun_test.sh test/fake/verbs/libibverbs.map
TESTS += test/pinrun_test.sh
# What test/pinrun_sanitizers_test.sh builds.
EXTRA_DIST += test/pinrun_sanitizers_test.sh test/pinrun/sanitized.cc
TESTS += test/pinrun_sanitizers_test.sh
if PINRUN
check_PROGRAMS += test/pinrun/per_transfer
test_pinrun_per_transfer_SOURCES = test/pinrun/per_transfer.cc $(rdma_device_sources)
test_pinrun_per_transfer_LDADD = $(VERBS_LIBS)

check_PROGRAMS += test/pinrun/by_name
test_pinrun_by_name_SOURCES = test/pinrun/by_name.cc

check_LTLIBRARIES += test/fake/verbs/libibverbs.la
test_fake_verbs_libibverbs_la_SOURCES = test/fake/verbs/verbs_double.h test/fake/verbs/verbs_double.cc
test_fake_verbs_libibverbs_la_LDFLAGS = -version-info 1:0:0 -rpath /nonexistent \
	-Wl,-z,now,-z,relro,--version-script=$(top_srcdir)/test/fake/verbs/libibverbs.map

check_LTLIBRARIES += test/pinrun/plugin.la test/pinrun/wrapper.la
test_pinrun_plugin_la_SOURCES = test/pinrun/plugin.h test/pinrun/plugin.cc
test_pinrun_plugin_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
test_pinrun_plugin_la_LIBADD = test/fake/verbs/libibverbs.la
test_pinrun_wrapper_la_SOURCES = test/pinrun/wrapper.cc
test_pinrun_wrapper_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent

check_PROGRAMS += test/pinrun/fork_children
test_pinrun_fork_children_SOURCES = test/pinrun/fork_children.cc test/support/pinned_heap.h
test_pinrun_fork_children_LDADD = test/fake/verbs/libibverbs.la
if HAVE_GTEST
check_PROGRAMS += test/pinrun/doors
test_pinrun_doors_SOURCES = test/pinrun/plugin.h test/pinrun/doors.cc
test_pinrun_doors_LDADD = test/fake/verbs/libibverbs.la -lgtest_main $(GTEST_LIBS)
EXTRA_test_pinrun_doors_DEPENDENCIES = test/pinrun/plugin.la test/pinrun/wrapper.la

check_PROGRAMS += test/pinrun/calls
test_pinrun_calls_SOURCES = test/pinrun/calls.cc test/support/gpu_memory.h
test_pinrun_calls_LDADD = test/fake/libcuda.la test/fake/verbs/libibverbs.la -lgtest_main $(GTEST_LIBS)
endif
endif
