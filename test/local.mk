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
