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
	test/stress/grdma_stress
TESTS += test/unit/rcache/vma_test test/stress/vma_stress test/conform/grdma test/fault/grdma_fault \
	test/stress/grdma_stress
vma_sources = components/rcache/vma/vma_index.cc components/rcache/vma/vma_invalidate_hook.cc \
	components/rcache/vma/vma_find.cc components/rcache/vma/vma_tree.cc
fake_registrar_sources = test/fake/fake_registrar.h test/fake/fake_registrar.cc
test_unit_rcache_vma_test_SOURCES = test/unit/rcache/vma_index_test.cc $(vma_sources)
test_unit_rcache_vma_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_stress_vma_stress_SOURCES = test/stress/vma_stress_test.cc $(vma_sources)
test_stress_vma_stress_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_conform_grdma_SOURCES = test/conform/grdma_test.cc test/support/house.h $(fake_registrar_sources)
test_conform_grdma_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
test_fault_grdma_fault_SOURCES = test/fault/grdma_fault_test.cc $(fake_registrar_sources)
test_fault_grdma_fault_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
test_stress_grdma_stress_SOURCES = test/stress/grdma_stress_test.cc $(fake_registrar_sources)
test_stress_grdma_stress_LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)
endif
