# SPDX-License-Identifier: BSD-3-Clause

# pinrail_perf: its parts, the program as users run it, and recorded traces.
if HAVE_GTEST
check_PROGRAMS += test/unit/tools/perf_test
test_unit_tools_perf_test_SOURCES = $(pinrail_perf_sources) \
	test/unit/tools/perf_byte_check_test.cc test/unit/tools/perf_layout_test.cc \
	test/unit/tools/perf_memory_test.cc test/unit/tools/perf_options_test.cc \
	test/unit/tools/perf_text_test.cc test/unit/tools/perf_trace_file_test.cc \
	test/unit/tools/perf_trace_test.cc
test_unit_tools_perf_test_LDADD = libpinrail.la $(LZMA_LIBS) -lgtest_main $(GTEST_LIBS)
TESTS += test/unit/tools/perf_test
endif
TESTS += test/tools_perf_test.sh test/traces_test.sh
EXTRA_DIST += test/tools_perf_test.sh test/traces_test.sh test/traces/README.md \
	test/traces/lammps.r0.trace.xz test/traces/nwchem.r0.trace.xz test/traces/ptscotch.r0.trace.xz \
	test/traces/ptscotch.r1.trace.xz test/traces/ptscotch.r2.trace.xz test/traces/ptscotch.r3.trace.xz

# The index, the pool, and what goes wrong, many at once or on purpose.
if HAVE_GTEST
check_PROGRAMS += test/unit/rcache/vma_test test/stress/vma_stress test/conform/grdma test/fault/grdma_fault \
	test/stress/grdma_stress test/stress/references_stress
TESTS += test/unit/rcache/vma_test test/stress/vma_stress test/conform/grdma test/fault/grdma_fault \
	test/stress/grdma_stress test/stress/references_stress
vma_sources = components/rcache/vma/vma_index.cc components/rcache/vma/vma_invalidate_hook.cc \
	components/rcache/vma/vma_find.cc components/rcache/vma/vma_tree.cc
fake_registrar_sources = test/fake/fake_registrar.h test/fake/fake_registrar.cc
test_unit_rcache_vma_test_SOURCES = test/unit/rcache/vma_index_test.cc $(vma_sources)
test_unit_rcache_vma_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_stress_vma_stress_SOURCES = test/stress/vma_stress_test.cc $(vma_sources)
test_stress_vma_stress_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_stress_references_stress_SOURCES = test/stress/references_stress_test.cc
test_stress_references_stress_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_conform_grdma_SOURCES = test/conform/grdma_test.cc test/support/house.h $(fake_registrar_sources)
test_conform_grdma_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
test_fault_grdma_fault_SOURCES = test/fault/grdma_fault_test.cc $(fake_registrar_sources)
test_fault_grdma_fault_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
test_stress_grdma_stress_SOURCES = test/stress/grdma_stress_test.cc $(fake_registrar_sources)
test_stress_grdma_stress_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
endif

# The shape of the house, and its border.
TESTS += test/includes_test.sh test/headers_test.sh
EXTRA_DIST += test/includes_test.sh test/headers_test.sh test/mutants/run test/mutants/list

# Registrars: one suite, one program for each that joins it.
if HAVE_GTEST
check_LTLIBRARIES += test/libtest_support.la
test_libtest_support_la_SOURCES = \
	test/support/child.h test/support/child.cc test/support/proc_status.h test/support/proc_status.cc \
	test/support/mapping.h test/support/component_under_test.h test/support/component_under_test.cc \
	test/fake/fake_host.h test/fake/fake_host.cc
test_libtest_support_la_CPPFLAGS = $(AM_CPPFLAGS) \
	-DPINRAIL_TEST_COMPONENTS='"$(abs_top_builddir)/components/.libs"'
registrar_conformance_sources = test/conform/registrar_conformance.h test/conform/registrar_conformance.cc \
	test/conform/registrar_subject.cc test/support/skip_main.cc
registrar_conformance_libs = test/libtest_support.la libpinrail_internal.la $(GTEST_LIBS)

check_PROGRAMS += test/unit/base/page_counts_test test/fault/page_counts_fault test/conform/fake \
	test/conform/mlock
TESTS += test/unit/base/page_counts_test test/fault/page_counts_fault test/conform/fake test/conform/mlock
test_unit_base_page_counts_test_SOURCES = test/unit/base/page_counts_test.cc
test_unit_base_page_counts_test_LDADD = -lgtest_main $(GTEST_LIBS)
test_fault_page_counts_fault_SOURCES = test/fault/page_counts_fault_test.cc
test_fault_page_counts_fault_LDADD = -lgtest_main $(GTEST_LIBS)
test_conform_fake_SOURCES = test/conform/fake_test.cc $(fake_registrar_sources) $(registrar_conformance_sources)
test_conform_fake_LDADD = $(registrar_conformance_libs)
test_conform_mlock_SOURCES = test/conform/mlock_test.cc $(registrar_conformance_sources)
test_conform_mlock_LDADD = $(registrar_conformance_libs)

if HAVE_URING
check_PROGRAMS += test/conform/iouring
TESTS += test/conform/iouring
test_conform_iouring_SOURCES = test/conform/iouring_test.cc $(registrar_conformance_sources)
test_conform_iouring_LDADD = $(registrar_conformance_libs)
endif

# Skipped where there is no RDMA device; contrib/rdma-vm runs it beside one.
if HAVE_VERBS
check_PROGRAMS += test/conform/verbs test/conform/verbs_absent
TESTS += test/conform/verbs test/conform/verbs_absent
test_conform_verbs_absent_SOURCES = test/conform/verbs_absent_test.cc test/conform/registrar_conformance.h \
	test/conform/registrar_subject.cc test/support/skip_main.cc
test_conform_verbs_absent_LDADD = $(registrar_conformance_libs)
test_conform_verbs_SOURCES = test/conform/verbs_test.cc $(registrar_conformance_sources)
test_conform_verbs_LDADD = $(registrar_conformance_libs)
endif
endif

# The base, with component files made to order, and the listing tool.
if HAVE_GTEST
check_LTLIBRARIES += test/unit/base/tiny_component.la
test_unit_base_tiny_component_la_SOURCES = test/unit/base/dso/tiny_component.cc
# Without sanitizers: the tests change its bytes, and expect a component such as others write.
test_unit_base_tiny_component_la_CXXFLAGS = $(PINRAIL_WARNINGS) -std=c++17 -fvisibility=hidden
test_unit_base_tiny_component_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
check_PROGRAMS += test/unit/base/base_test test/unit/tools/tools_test
TESTS += test/unit/base/base_test test/unit/tools/tools_test
test_unit_base_base_test_SOURCES = \
	test/support/said.h test/support/temp_folder.h test/unit/base/param_fixture.h test/unit/base/loader_fixture.h \
	test/unit/base/report_test.cc test/unit/base/param_parse_test.cc test/unit/base/param_file_test.cc \
	test/unit/base/param_sources_test.cc test/unit/base/param_registry_test.cc test/unit/base/selection_test.cc \
	test/unit/base/check_elf_test.cc test/unit/base/loader_test.cc test/unit/base/loader_open_test.cc
test_unit_base_base_test_CPPFLAGS = $(AM_CPPFLAGS) \
	-DPINRAIL_TEST_TINY_COMPONENT='"$(abs_top_builddir)/test/unit/base/.libs/tiny_component.so"'
test_unit_base_base_test_LDADD = test/libtest_support.la libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
EXTRA_test_unit_base_base_test_DEPENDENCIES = test/unit/base/tiny_component.la
test_unit_tools_tools_test_SOURCES = $(pinrail_info_sources) test/unit/tools/json_test.cc \
	test/unit/tools/mca_options_test.cc test/unit/tools/info_options_test.cc test/unit/tools/info_print_test.cc
test_unit_tools_tools_test_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
check_PROGRAMS += test/unit/front/params_face_test
TESTS += test/unit/front/params_face_test
test_unit_front_params_face_test_SOURCES = test/unit/front/params_face_test.cc
test_unit_front_params_face_test_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
endif
TESTS += test/tools_info_test.sh
EXTRA_DIST += test/tools_info_test.sh

# Every byte, over a real pin: the host's io_uring here, RDMA in a guest below.
integrity_sources = test/integrity/integrity.h test/integrity/integrity.cc
if HAVE_GTEST
if HAVE_URING
check_PROGRAMS += test/integrity/iouring_integrity
TESTS += test/integrity/iouring_integrity
test_integrity_iouring_integrity_SOURCES = test/integrity/iouring_integrity.cc test/support/skip_main.cc \
	$(integrity_sources)
test_integrity_iouring_integrity_LDADD = libpinrail.la $(GTEST_LIBS)
endif
endif

# Not a part of make check, for it needs an RDMA device: contrib/rdma-vm --memlock 16384 -- test/verbs/rdma_integrity
if HAVE_VERBS
check_PROGRAMS += test/verbs/rdma_integrity
test_verbs_rdma_integrity_SOURCES = test/verbs/rdma_integrity.cc test/verbs/rdma_pair.h test/verbs/rdma_pair.cc \
	$(integrity_sources)
test_verbs_rdma_integrity_LDADD = libpinrail.la $(VERBS_LIBS) -lpthread
endif

# The machine's shape.
if HAVE_GTEST
check_PROGRAMS += test/unit/base/machine_test
TESTS += test/unit/base/machine_test
test_unit_base_machine_test_SOURCES = test/unit/base/machine_test.cc
test_unit_base_machine_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
endif

# What the documents say.
TESTS += test/readme_test.sh test/paths_test.sh test/count_test.sh
EXTRA_DIST += test/install_test.sh test/readme_test.sh test/paths_test.sh test/count_test.sh
