# SPDX-License-Identifier: BSD-3-Clause

# What make builds for the tests and then runs, too.
test_programs =
# Of programs that say no other.
LDADD = libpinrail.la -lgtest_main $(GTEST_LIBS)

# For contrib/run-tests, which runs several tests at once. These measure, or wait for a time, and run alone.
tests_alone = test/bench_test.sh test/mpool/gc_thread test/monitor/patcher_others
# These pin memory: they share what the system lets one user pin (RLIMIT_MEMLOCK), and run one after the other.
tests_that_pin = test/interpose_test.sh test/oracle_test.sh test/oracle_unpatchable_test.sh test/tools_info_test.sh \
	test/stress/iouring_flat test/stress/iouring_fork test/conform/iouring \
	test/fault/iouring_fault test/conform/mlock test/mpool/mrall test/conform/verbs test/tools_perf_test.sh \
	test/traces_test.sh test/readme_test.sh test/install_line_test.sh test/unit/tools/perf_test
# These take longest, and start first.
tests_first = test/model/pool_model test/interpose_test.sh test/model/mutants_test.sh test/stress/fork_stress test/attack/attack \
	test/gpu_soak_test.sh

# make smoke: of each layer what ends soonest, about a minute together.
smoke_tests = test/includes_test.sh test/headers_test.sh test/documents_test.sh \
	test/unit/base/base_test test/unit/base/sync_test test/model/references_model test/unit/rcache/vma_test test/mpool/grdma \
	test/attack/attack test/fault/grdma_fault test/unit/monitor/coverage_test test/unit/patch/patch_test test/monitor/patcher test/conform/iouring \
	test/conform/mlock test/unit/api/refusal_test test/unit/api/api_test test/gpu/gpusm test/readme_test.sh

# pinrail_perf: its parts, the program as users run it, and recorded traces.
if HAVE_GTEST
if HAVE_TOOLS
check_PROGRAMS += test/unit/tools/perf_test
test_unit_tools_perf_test_SOURCES = $(pinrail_perf_sources) $(advise_sources) test/unit/tools/perf_test.cc test/support/library.h
test_unit_tools_perf_test_LDADD = libpinrail.la $(LZMA_LIBS) -lgtest_main $(GTEST_LIBS)
TESTS += test/unit/tools/perf_test
endif
endif
TESTS += test/tools_perf_test.sh test/tools_advise_test.sh test/traces_test.sh
# Components that are built against an installation.
TESTS += test/stranger_test.sh
EXTRA_DIST += test/stranger_test.sh test/stranger/stranger.c
# What was published stays as it is.
TESTS += test/abi_test.sh
EXTRA_DIST += test/abi_test.sh test/abi/layout test/abi/rcache_2.c
# A runtime that embeds Pinrail. It compiles the library four times: not a part of make check.
EXTRA_DIST += test/embed_test.sh test/embed/host.c test/embed/two.c
phony_targets += embed-check
embed-check:
	CC='$(CC)' srcdir='$(srcdir)' $(SHELL) $(srcdir)/test/embed_test.sh
# Its short form, with what the tarball has.
distcheck-hook:
	CC='$(CC)' srcdir='$(srcdir)' $(SHELL) $(srcdir)/test/embed_test.sh --short $(distdir) || test $$? -eq 77
# Debian's packages and Spack's recipe; the pages that Doxygen makes.
TESTS += test/package_test.sh test/pages_test.sh
EXTRA_DIST += test/package_test.sh test/pages_test.sh
# Whether pinrail_conform names the rule that a component breaks.
TESTS += test/conform_test.sh
EXTRA_DIST += test/conform_test.sh test/conform/broken/list test/conform/broken/monitor_got.c

EXTRA_DIST += test/support/script.sh test/tools_perf_test.sh test/tools_advise_test.sh test/traces_test.sh test/traces/README.md \
	test/traces/lammps.r0.trace.xz test/traces/nwchem.r0.trace.xz test/traces/ptscotch.r0.trace.xz \
	test/traces/ptscotch.r1.trace.xz test/traces/ptscotch.r2.trace.xz test/traces/ptscotch.r3.trace.xz

# The index, the pool, and what goes wrong, many at once or on purpose.
fake_registrar_sources = test/fake/fake_registrar.h test/fake/fake_registrar.cc
if HAVE_GTEST
test_programs += test/unit/rcache/vma_test test/mpool/grdma test/fault/grdma_fault test/stress/grdma_stress \
	test/stress/references_stress test/unit/mpool/lists_test test/mpool/alloc test/mpool/record test/mpool/hit_check \
	test/mpool/odp test/mpool/mrall test/mpool/prepin test/adopt/nccl_net test/adopt/nixl \
	test/adopt/mooncake test/adopt/ofi_mr_cache test/adopt/rcache_grdma test/adopt/ucs_rcache
vma_sources = components/rcache/vma/vma_index.cc \
	components/rcache/vma/vma_tree.cc
test_unit_rcache_vma_test_SOURCES = test/unit/rcache/vma_index_test.cc $(vma_sources)
test_unit_rcache_vma_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_unit_mpool_lists_test_SOURCES = test/unit/mpool/pool_registrations_test.cc \
	test/unit/mpool/pool_parts_test.cc test/unit/mpool/unpark_test.cc
test_unit_mpool_lists_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_stress_references_stress_SOURCES = test/stress/references_stress_test.cc $(vma_sources)
test_stress_references_stress_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_mpool_hit_check_SOURCES = test/mpool/hit_check_test.cc test/support/library.h $(fake_registrar_sources)
test_mpool_hit_check_LDADD = test/libtest_support.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_mpool_record_SOURCES = test/mpool/record_test.cc test/support/library.h test/support/threads.h test/support/files.h \
	$(fake_registrar_sources) $(replayed_memory_sources) contrib/tools/common/text.h contrib/tools/common/text.cc
test_mpool_record_LDADD = libpinrail.la $(LZMA_LIBS) -lgtest_main $(GTEST_LIBS)
test_mpool_alloc_SOURCES = test/mpool/alloc_test.cc test/support/library.h $(fake_registrar_sources)
test_mpool_odp_SOURCES = test/mpool/odp_test.cc test/mpool/mrall_and_odp.h test/support/registrars.h \
	test/support/library.h $(fake_registrar_sources)
test_mpool_odp_LDFLAGS = $(hook_wall_ldflags)
test_mpool_mrall_SOURCES = test/mpool/mrall_test.cc test/mpool/mrall_process_test.cc test/mpool/mrall_and_odp.h \
	components/mpool/mrall/mrall_maps.cc test/support/registrars.h test/support/library.h test/support/threads.h \
	test/support/memory.h $(fake_registrar_sources)
test_mpool_mrall_LDFLAGS = $(hook_wall_ldflags)
test_mpool_mrall_LDADD = base/libmaps.la libpinrail.la -lgtest_main $(GTEST_LIBS)

test_mpool_prepin_SOURCES = test/mpool/prepin_test.cc test/mpool/prepin_start_test.cc \
	test/mpool/pinning.h test/mpool/options_test.cc test/support/library.h $(fake_registrar_sources)
test_mpool_prepin_LDADD = test/libtest_support.la libpinrail.la -lgtest_main $(GTEST_LIBS)

# What other libraries hand over when they register memory, each in a small program.
test_adopt_nccl_net_SOURCES = test/adopt/nccl_net.c test/adopt/device.h
test_adopt_nccl_net_LDADD = libpinrail.la
test_adopt_nixl_SOURCES = test/adopt/nixl.cc test/adopt/device.h
test_adopt_nixl_LDADD = libpinrail.la
test_adopt_mooncake_SOURCES = test/adopt/mooncake.cc test/adopt/device.h
test_adopt_mooncake_LDADD = libpinrail.la
test_adopt_ofi_mr_cache_SOURCES = test/adopt/ofi_mr_cache.cc test/adopt/device.h
test_adopt_ofi_mr_cache_LDADD = libpinrail.la
test_adopt_rcache_grdma_SOURCES = test/adopt/rcache_grdma.c test/adopt/device.h
test_adopt_rcache_grdma_LDADD = libpinrail.la
test_adopt_ucs_rcache_SOURCES = test/adopt/ucs_rcache_test.cc test/adopt/ucs_rcache.cc test/adopt/ucs_rcache.h
test_adopt_ucs_rcache_LDADD = libpinrail.la $(GTEST_LIBS)
test_mpool_grdma_SOURCES = test/mpool/grdma_test.cc test/mpool/grdma_reasons_test.cc \
	test/mpool/grdma_ft_test.cc test/mpool/grdma_cache_test.cc \
	test/mpool/grdma_extent_test.cc test/support/library.h test/support/host_table.h \
	$(fake_registrar_sources) $(hook_wall_sources)
test_mpool_grdma_LDFLAGS = $(hook_wall_ldflags)
test_mpool_grdma_LDADD = test/libtest_support.la libpinrail.la -lgtest_main $(GTEST_LIBS)
nth_allocation_sources = test/support/cases.h test/support/nth_allocation.cc
test_fault_grdma_fault_SOURCES = test/fault/grdma_fault_test.cc $(nth_allocation_sources) $(fake_registrar_sources)
test_stress_grdma_stress_SOURCES = test/stress/grdma_stress_test.cc $(fake_registrar_sources)
endif

# Random calls beside a model of the rules: test/attack/README. "make attack SECONDS_OF_EACH=60 SEED=7".
attack_sources = test/attack/attack.cc test/attack/world.h test/attack/model.cc \
	test/attack/world.cc test/fake/fake_registrar.h test/fake/fake_registrar.cc
check_PROGRAMS += test/attack/attack
test_attack_attack_SOURCES = $(attack_sources)
test_attack_attack_LDADD = libpinrail.la -lpthread
TESTS += test/attack/attack
EXTRA_DIST += test/attack/README
attack: all test/attack/attack
	test/attack/attack --seconds $(or $(SECONDS_OF_EACH),300) --seed $(or $(SEED),1000) --minimise
	test/attack/attack --seconds $(or $(SECONDS_OF_EACH),300) --seed $(or $(SEED),1000) --threads 6 --steps 20000

# The layers, the installed headers and the rules.
TESTS += test/includes_test.sh test/headers_test.sh test/help_test.sh
mutants-random: Makefile
	$(srcdir)/test/mutants/random --seed $(or $(SEED),1) --count $(or $(COUNT),40)
EXTRA_DIST += test/includes_test.sh test/headers_test.sh test/help_test.sh test/mutants/run test/mutants/list \
	test/mutants/random test/mutants/equivalent

# Registrars: one suite, one program for each that joins it.
test_support_sources = test/support/process.h test/support/process.cc test/support/cases.h test/support/memory.h \
	test/support/host_table.h test/support/threads.h test/fake/fake_host.h test/fake/fake_host.cc
registrar_subject_sources = test/conform/suite/component.h test/conform/suite/registrar.h \
	test/conform/suite/registrar_subject.cc test/conform/suite/registrar_checks.cc
check_LTLIBRARIES += test/libtest_support.la
test_libtest_support_la_SOURCES = $(test_support_sources)
if HAVE_GTEST
registrar_conformance_sources = test/conform/registrar_conformance.h $(registrar_subject_sources) \
	test/support/skip_main.cc
registrar_conformance_libs = test/libtest_support.la libpinrail_internal.la $(GTEST_LIBS)

test_programs += test/conform/mlock
test_conform_mlock_SOURCES = test/conform/mlock_test.cc $(fake_registrar_sources) $(registrar_conformance_sources)
test_conform_mlock_LDADD = $(registrar_conformance_libs)

if HAVE_URING
test_programs += test/conform/iouring test/fault/iouring_fault
test_conform_iouring_SOURCES = test/conform/iouring_test.cc $(registrar_conformance_sources)
test_conform_iouring_LDADD = $(registrar_conformance_libs)
test_fault_iouring_fault_SOURCES = test/fault/iouring_fault_test.cc $(registrar_conformance_sources)
test_fault_iouring_fault_LDFLAGS = $(AM_LDFLAGS) -Wl,--export-dynamic
test_fault_iouring_fault_LDADD = $(registrar_conformance_libs)
endif

# Skipped where there is no RDMA device; contrib/workshop/rdma-vm runs it beside one.
if HAVE_VERBS
test_programs += test/conform/verbs test/unit/verbs/device_test
test_conform_verbs_SOURCES = test/conform/verbs_test.cc $(registrar_conformance_sources)
test_conform_verbs_LDADD = $(registrar_conformance_libs)
test_unit_verbs_device_test_SOURCES = test/unit/verbs/device_test.cc components/registrar/verbs/verbs_device.cc \
	components/registrar/verbs/verbs_loopback.cc components/registrar/verbs/verbs_odp.cc
test_unit_verbs_device_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
endif
endif

# The suites, as a tool that is installed: pinrail_conform(1). It drives components as the library does, with its own
# copy of it.
if HAVE_TOOLS
bin_PROGRAMS += test/conform/pinrail_conform
test_conform_pinrail_conform_SOURCES = test/conform/suite/pinrail_conform.cc test/conform/suite/component.h \
	test/support/libc_allocator.h \
	test/conform/suite/component_checks.cc test/conform/suite/rcache_checks.cc test/conform/suite/mpool_checks.cc \
	test/conform/suite/monitor_checks.cc $(registrar_subject_sources) $(fake_registrar_sources) \
	$(program_sources) $(memory_events_sources)
test_conform_pinrail_conform_LDFLAGS = $(PINRAIL_SANITIZE)
test_conform_pinrail_conform_LDADD = test/libtest_support.la libpinrail_internal.la
dist_man_MANS += contrib/man/pinrail_conform.1
else
EXTRA_DIST += contrib/man/pinrail_conform.1
endif

# The base, with component files made to order, and the listing tool.
if HAVE_GTEST
check_LTLIBRARIES += test/unit/base/tiny_component.la
test_unit_base_tiny_component_la_SOURCES = test/unit/base/dso/tiny_component.cc
# Without sanitizers: the tests change its bytes, and expect a component such as others write.
test_unit_base_tiny_component_la_CXXFLAGS = $(PINRAIL_WARNINGS) $(PINRAIL_OPTIMIZE) -std=c++17 -fvisibility=hidden
test_unit_base_tiny_component_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
test_programs += test/unit/base/base_test test/unit/base/sync_test
test_unit_base_sync_test_SOURCES = test/unit/base/sync_test.cc
test_unit_base_sync_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_unit_base_base_test_SOURCES = test/support/files.h test/unit/base/fixtures.h \
	test/unit/base/param_parse_test.cc \
	test/unit/base/param_registry_test.cc test/unit/base/files_test.cc test/unit/base/loader_test.cc \
	test/unit/base/registration_test.cc test/unit/base/core_test.cc \
	$(nth_allocation_sources)
test_unit_base_base_test_LDADD = test/libtest_support.la libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
EXTRA_test_unit_base_base_test_DEPENDENCIES = test/unit/base/tiny_component.la
if HAVE_TOOLS
test_programs += test/unit/tools/tools_test
test_unit_tools_tools_test_SOURCES = $(pinrail_info_sources) test/unit/tools/command_line_test.cc
endif
test_programs += test/unit/api/api_test test/conform/contract test/unit/api/refusal_test
test_unit_api_api_test_SOURCES = test/unit/api/api_test.cc $(fake_registrar_sources)
check_LTLIBRARIES += test/conform/registrar_contract.la
test_conform_registrar_contract_la_SOURCES = test/conform/dso/contract_registrar.cc
test_conform_registrar_contract_la_CXXFLAGS = $(PINRAIL_WARNINGS) -std=c++17 -fvisibility=hidden
test_conform_registrar_contract_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
test_conform_contract_SOURCES = test/conform/contract_test.cc $(fake_registrar_sources)
EXTRA_test_conform_contract_DEPENDENCIES = test/conform/registrar_contract.la
test_unit_api_refusal_test_SOURCES = test/unit/api/refusal_test.cc $(fake_registrar_sources)
endif
TESTS += test/tools_info_test.sh test/completion_test.sh test/tools_top_test.sh
check_PROGRAMS += test/top_subject
test_top_subject_SOURCES = test/top_subject.cc
test_top_subject_LDADD = libpinrail.la
# As for bench_test.sh below.
top_test_log = test/tools_top_test.sh.log
$(top_test_log): test/top_subject
EXTRA_DIST += test/tools_top_test.sh test/tools_info_test.sh test/completion_test.sh

# Not a part of make check, for it needs an RDMA device: contrib/workshop/rdma-vm -- test/verbs/rdma_pingpong
if HAVE_VERBS
rdma_device_sources = test/verbs/rdma_device.h
# What a message costs from end to end: test/bench/README.
if HAVE_TOOLS
check_PROGRAMS += test/verbs/rdma_pingpong
test_verbs_rdma_pingpong_SOURCES = test/verbs/rdma_pingpong.cc test/bench/measure.h $(program_sources) \
	$(rdma_device_sources)
test_verbs_rdma_pingpong_LDADD = libpinrail.la $(VERBS_LIBS)
endif
endif

# What a process can do to its memory.
if HAVE_GTEST
test_programs += test/unit/tools/memory_events_test
test_unit_tools_memory_events_test_SOURCES = test/unit/tools/memory_events_test.cc test/support/memory.h \
	$(memory_events_sources)
test_unit_tools_memory_events_test_LDADD = -lgtest_main $(GTEST_LIBS)
endif

# The oracle: contrib/workshop/oracle, test/oracle/README. The second program can leave out what monitors report.
oracle_sources = test/oracle/buffers.h test/oracle/buffers.cc \
	test/oracle/worker.h test/oracle/worker.cc test/oracle/oracle.cc $(program_sources) $(memory_events_sources)
if HAVE_TOOLS
check_PROGRAMS += test/oracle/oracle test/oracle/oracle_mutants
test_oracle_oracle_SOURCES = $(oracle_sources)
test_oracle_oracle_LDADD = test/libtest_support.la libpinrail.la -lpthread
test_oracle_oracle_mutants_SOURCES = $(oracle_sources) test/oracle/deaf_wrap.cc
test_oracle_oracle_mutants_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=_ZN7pinrail7monitor11report_hookEjmm
test_oracle_oracle_mutants_LDADD = test/libtest_support.la libpinrail_internal.la -lpthread
endif
TESTS += test/oracle_test.sh test/oracle_unpatchable_test.sh
# As for bench_test.sh below.
if HAVE_TOOLS
oracle_test_log = test/oracle_test.sh.log test/oracle_unpatchable_test.sh.log
$(oracle_test_log): test/oracle/oracle test/oracle/oracle_mutants
endif
EXTRA_DIST += test/oracle_test.sh test/oracle_unpatchable_test.sh test/oracle/README \
	contrib/workshop/oracle
oracle-mutants: all
	$(srcdir)/contrib/workshop/oracle --build . --mutant all

# The machine's shape.
if HAVE_GTEST
endif

# The hook wall. Tests of hooks take its allocator's part in, and show components where it stands.
if HAVE_GTEST
hook_wall_sources = test/support/hook_wall.cc test/support/libc_allocator.h
hook_wall_ldflags = $(AM_LDFLAGS) -Wl,--export-dynamic -Wl,-u,pinrail_debug_hook_depth
test_programs += test/unit/base/hook_scope_test
test_unit_base_hook_scope_test_SOURCES = test/unit/base/hook_scope_test.cc test/support/skip_main.cc $(hook_wall_sources)
test_unit_base_hook_scope_test_LDFLAGS = $(hook_wall_ldflags)
test_unit_base_hook_scope_test_LDADD = libpinrail_internal.la $(GTEST_LIBS)
endif

# Patched code: the base's part, and the monitor that lives on it.
if HAVE_GTEST
check_PROGRAMS += test/unit/patch/patch_test test/monitor/patcher test/monitor/patcher_others \
	test/monitor/patcher_pool test/stress/patcher_stress
TESTS += test/unit/patch/patch_test test/monitor/patcher test/monitor/patcher_others test/monitor/patcher_pool \
	test/stress/patcher_stress
test_monitor_patcher_pool_SOURCES = test/monitor/patcher_pool_test.cc test/monitor/foreign_patches.h test/support/threads.h \
	test/support/library.h test/support/skip_main.cc $(fake_registrar_sources) $(hook_wall_sources)
test_monitor_patcher_pool_LDFLAGS = $(hook_wall_ldflags)
test_monitor_patcher_pool_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
test_programs += test/fault/finalize_fault test/monitor/patcher_race
test_fault_finalize_fault_SOURCES = test/fault/finalize_fault_test.cc test/mpool/mrall_and_odp.h test/support/library.h \
	test/support/skip_main.cc $(nth_allocation_sources) $(fake_registrar_sources)
test_fault_finalize_fault_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
test_monitor_patcher_race_SOURCES = test/monitor/patcher_race_test.cc test/support/library.h test/support/skip_main.cc \
	$(fake_registrar_sources) $(hook_wall_sources)
test_monitor_patcher_race_LDFLAGS = $(hook_wall_ldflags)
test_monitor_patcher_race_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
EXTRA_test_monitor_patcher_race_DEPENDENCIES = test/monitor/dso/unloaded.la
check_LTLIBRARIES += test/monitor/dso/unloaded.la
test_monitor_dso_unloaded_la_SOURCES = test/monitor/dso/unloaded.c
test_monitor_dso_unloaded_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
check_LTLIBRARIES += test/monitor/dso/libpthread.la
test_monitor_dso_libpthread_la_SOURCES = test/monitor/dso/libpthread.c
test_monitor_dso_libpthread_la_LDFLAGS = -version-info 0 -shared -rpath /nonexistent
# A working set larger than the guest's memory, with a disk as swap, written and read by RDMA on demand and pinned.
odp-soak: contrib/tools/pinrail_perf components/mpool_odp.la components/mpool_grdma.la components/registrar_verbs.la
	$(top_srcdir)/contrib/workshop/rdma-vm --kernel odp --timeout 1200 --memory 768M --disk 4G --memlock 16384 -- \
		sh -c 'mkswap $$RDMA_VM_DISK && swapon $$RDMA_VM_DISK && contrib/tools/pinrail_perf --scenario odp --size 1280M'
race-soak: test/monitor/patcher_race
	PINRAIL_TEST_RACES=100000 $(builddir)/test/monitor/patcher_race
test_unit_patch_patch_test_SOURCES = test/unit/patch/patch_test.cc test/unit/patch/places_test.cc \
	test/unit/patch/libc_functions.h test/support/skip_main.cc
test_unit_patch_patch_test_LDFLAGS = -export-dynamic
test_unit_patch_patch_test_LDADD = base/libpatch.la $(GTEST_LIBS)
test_monitor_patcher_SOURCES = test/monitor/patcher_test.cc test/monitor/patcher_life_test.cc \
	test/monitor/patcher_host.h test/monitor/foreign_patches.h test/support/threads.h test/support/skip_main.cc \
	$(hook_wall_sources)
test_monitor_patcher_LDFLAGS = $(hook_wall_ldflags)
test_monitor_patcher_LDADD = test/libtest_support.la libpinrail_internal.la $(GTEST_LIBS)
EXTRA_test_monitor_patcher_DEPENDENCIES = test/monitor/dso/unloaded.la
test_monitor_patcher_others_SOURCES = test/monitor/patcher_others_test.cc test/monitor/patcher_torn_test.cc \
	test/monitor/patcher_host.h test/support/skip_main.cc $(hook_wall_sources)
test_monitor_patcher_others_LDFLAGS = $(hook_wall_ldflags)
test_monitor_patcher_others_LDADD = test/libtest_support.la libpinrail_internal.la $(GTEST_LIBS)
EXTRA_test_monitor_patcher_others_DEPENDENCIES = test/monitor/dso/libpthread.la
test_stress_patcher_stress_SOURCES = test/stress/patcher_stress_test.cc test/monitor/patcher_host.h \
	test/support/skip_main.cc $(hook_wall_sources)
test_stress_patcher_stress_LDFLAGS = $(hook_wall_ldflags)
test_stress_patcher_stress_LDADD = test/libtest_support.la libpinrail_internal.la $(GTEST_LIBS)
endif

# Allocators with system calls of their own. Programs under sanitizers are built by the script.
check_PROGRAMS += test/own_calls/rounds
check_LTLIBRARIES += test/own_calls/raw_malloc.la test/own_calls/raw_quarantine.la test/own_calls/raw_hidden.la \
	test/own_calls/raw_hidden_now.la test/own_calls/go_note.la
test_own_calls_rounds_SOURCES = test/own_calls/rounds.cc
test_own_calls_rounds_LDADD = libpinrail.la -ldl
test_own_calls_raw_malloc_la_SOURCES = test/own_calls/raw_malloc.c
test_own_calls_raw_malloc_la_CFLAGS = $(PINRAIL_WARNINGS) -std=gnu11 -fno-builtin
test_own_calls_raw_malloc_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
test_own_calls_go_note_la_SOURCES = test/own_calls/go_note.c
test_own_calls_go_note_la_LDFLAGS = $(test_own_calls_raw_malloc_la_LDFLAGS)
test_own_calls_raw_quarantine_la_SOURCES = test/own_calls/raw_malloc.c
test_own_calls_raw_quarantine_la_CFLAGS = $(test_own_calls_raw_malloc_la_CFLAGS) -DQUARANTINE=40
test_own_calls_raw_quarantine_la_LDFLAGS = $(test_own_calls_raw_malloc_la_LDFLAGS)
test_own_calls_raw_hidden_la_SOURCES = test/own_calls/raw_malloc.c
test_own_calls_raw_hidden_la_CFLAGS = $(test_own_calls_raw_malloc_la_CFLAGS) -DQUARANTINE=40 -DHIDDEN
test_own_calls_raw_hidden_la_LDFLAGS = $(test_own_calls_raw_malloc_la_LDFLAGS)
test_own_calls_raw_hidden_now_la_SOURCES = test/own_calls/raw_malloc.c
test_own_calls_raw_hidden_now_la_CFLAGS = $(test_own_calls_raw_malloc_la_CFLAGS) -DHIDDEN
test_own_calls_raw_hidden_now_la_LDFLAGS = $(test_own_calls_raw_malloc_la_LDFLAGS)
TESTS += test/own_calls_test.sh
if HAVE_GTEST
test_programs += test/monitor/own_calls
test_monitor_own_calls_SOURCES = test/monitor/own_calls_test.cc test/monitor/uffd_library.h test/support/skip_main.cc \
	test/support/library.h $(fake_registrar_sources) $(nth_allocation_sources)
test_monitor_own_calls_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
EXTRA_test_monitor_own_calls_DEPENDENCIES = test/own_calls/raw_malloc.la test/own_calls/raw_hidden_now.la
endif
EXTRA_DIST += test/own_calls_test.sh test/own_calls/rounds.go

# Hooks under allocators that others brought along, and beside other runtimes: test/interpose_test.sh.
if HAVE_URING
check_LTLIBRARIES += test/interpose/free_madvises.la
test_interpose_free_madvises_la_SOURCES = test/interpose/free_madvises.cc
test_interpose_free_madvises_la_CXXFLAGS = $(PINRAIL_WARNINGS) $(PINRAIL_OPTIMIZE) -std=c++17 -fno-builtin
test_interpose_free_madvises_la_LDFLAGS = -module -avoid-version -shared -rpath /nonexistent
check_PROGRAMS += test/interpose/interpose
test_interpose_interpose_SOURCES = test/interpose/interpose.cc
test_interpose_interpose_LDFLAGS = $(AM_LDFLAGS) -Wl,--export-dynamic
test_interpose_interpose_LDADD = libpinrail.la
EXTRA_test_interpose_interpose_DEPENDENCIES = test/interpose/free_madvises.la
endif
TESTS += test/interpose_test.sh
EXTRA_DIST += test/interpose_test.sh

# What the kernel reports, and which mappings are covered.
if HAVE_GTEST
test_programs += test/unit/monitor/coverage_test test/monitor/uffd test/monitor/uffd_reader test/stress/uffd_stress
test_unit_monitor_coverage_test_SOURCES = test/unit/monitor/coverage_test.cc \
	test/unit/monitor/monitor_test.cc $(nth_allocation_sources)
test_unit_monitor_coverage_test_LDADD = libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
EXTRA_test_unit_monitor_coverage_test_DEPENDENCIES = test/own_calls/raw_malloc.la test/own_calls/go_note.la
test_stress_uffd_stress_SOURCES = test/stress/uffd_stress_test.cc test/monitor/uffd_library.h \
	test/support/skip_main.cc test/support/library.h $(fake_registrar_sources)
test_stress_uffd_stress_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
test_monitor_uffd_SOURCES = test/monitor/uffd_test.cc test/monitor/uffd_life_test.cc test/monitor/uffd_library.h \
	test/support/skip_main.cc test/support/library.h $(fake_registrar_sources)
test_monitor_uffd_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
test_monitor_uffd_reader_SOURCES = test/monitor/uffd_reader_test.cc test/support/threads.h test/support/skip_main.cc
test_monitor_uffd_reader_LDADD = test/libtest_support.la libpinrail_internal.la $(GTEST_LIBS)
endif

# References under every interleaving: test/model/README. Built without sanitizers, for it takes the place of one.
if HAVE_GTEST
model_wraps = -Wl,--wrap=pthread_mutex_lock,--wrap=pthread_mutex_trylock,--wrap=pthread_mutex_unlock,--wrap=free,--wrap=memcpy,--wrap=memmove,--wrap=memset
model_cppflags = -I$(top_srcdir)/framework/include -I$(top_srcdir) -I$(top_builddir)
model_cxxflags = $(PINRAIL_WARNINGS) -std=c++17 -O1 -fvisibility=hidden -fno-builtin -fsanitize=thread
# Linked without ThreadSanitizer's library, whose calls the explorer takes: loading it makes exploring three times slower.
model_link = $(LIBTOOL) $(AM_V_lt) --tag=CXX --mode=link $(CXX) $(model_wraps) -o $@
check_LTLIBRARIES += test/libmodel.la
test_libmodel_la_SOURCES = test/model/explorer.h test/model/explorer_state.h test/model/explorer.cc \
	test/model/explorer_memory.cc test/model/compiler_calls.cc
test_libmodel_la_CXXFLAGS = $(PINRAIL_WARNINGS) -std=c++17 -O2 -fvisibility=hidden
test_libmodel_la_LDFLAGS = -static
check_PROGRAMS += test/model/references_model test/model/pool_model
TESTS += test/model/references_model test/model/pool_model test/model/mutants_test.sh
test_model_references_model_SOURCES = test/model/litmus_test.cc test/model/references_model_test.cc \
	test/model/real_threads.h
test_model_references_model_CPPFLAGS = $(model_cppflags)
test_model_references_model_CXXFLAGS = $(model_cxxflags)
test_model_references_model_LINK = $(model_link)
test_model_references_model_LDADD = test/libmodel.la $(GTEST_LIBS)
test_model_pool_model_SOURCES = test/model/pool_model_test.cc test/model/real_pool.h test/model/real_threads.h
test_model_pool_model_CPPFLAGS = $(model_cppflags)
test_model_pool_model_CXXFLAGS = $(model_cxxflags)
test_model_pool_model_LINK = $(model_link)
test_model_pool_model_LDADD = test/libmodel.la $(GTEST_LIBS)
endif
# What make check shortens: every mutant.
phony_targets += model-soak
model-soak: all test/model/references_model test/model/pool_model
	PINRAIL_MODEL_ALL=1 CXX='$(CXX)' srcdir=$(srcdir) bash $(srcdir)/test/model/mutants_test.sh
EXTRA_DIST += test/hook_wall/check test/reading/draw contrib/workshop/layers/draw contrib/workshop/layers/layers.svg
EXTRA_DIST += test/model/README test/model/mutants test/model/mutants_test.sh

# Speed, beside the peers. The programs are small; "make bench" measures with them, make check only tries them.
bench_programs =
if HAVE_BENCHMARK
bench_sources = test/bench/measure.h test/bench/rows.h test/bench/team.h test/bench/team.cc test/bench/work.h \
	test/bench/work.cc
bench_programs += test/bench/bench_pinrail test/bench/bench_none
check_LTLIBRARIES += test/bench/libbench.la
test_bench_libbench_la_SOURCES = $(bench_sources)
test_bench_bench_pinrail_SOURCES = test/bench/bench_pinrail.cc
test_bench_bench_pinrail_LDADD = libpinrail.la test/bench/libbench.la $(BENCHMARK_LIBS)
test_bench_bench_none_SOURCES = test/bench/bench_none.cc
test_bench_bench_none_LDADD = test/bench/libbench.la $(BENCHMARK_LIBS)
if HAVE_UCX
bench_programs += test/bench/bench_ucx
test_bench_bench_ucx_SOURCES = test/bench/bench_ucx.cc test/bench/ucx_cache.h test/bench/ucx_cache.cc
test_bench_bench_ucx_LDADD = test/bench/libbench.la $(UCX_LIBS) $(BENCHMARK_LIBS)
endif
if OPENMPI_IN_CXX
bench_programs += test/bench/bench_ompi
test_bench_bench_ompi_SOURCES = test/bench/bench_ompi.cc
test_bench_bench_ompi_CPPFLAGS = $(AM_CPPFLAGS) $(OPENMPI_CPPFLAGS)
test_bench_bench_ompi_LDADD = test/bench/libbench.la $(OPENMPI_LIBS) $(BENCHMARK_LIBS)
endif
endif
if HAVE_UCX
if HAVE_TOOLS
bench_programs += test/bench/trace_ucx
test_bench_trace_ucx_SOURCES = test/bench/trace_ucx.cc test/bench/ucx_cache.h test/bench/ucx_cache.cc \
	$(replayed_memory_sources) contrib/tools/common/text.h contrib/tools/common/text.cc
test_bench_trace_ucx_LDADD = libpinrail.la $(UCX_LIBS) $(LZMA_LIBS)
endif
endif
check_PROGRAMS += $(bench_programs)
TESTS += test/bench_test.sh
# Also when check_PROGRAMS was replaced on the command line. By a variable, for automake takes its own rule back where
# it sees a target of that name.
bench_test_log = test/bench_test.sh.log
$(bench_test_log): $(bench_programs)
EXTRA_DIST += test/bench/run test/bench/compare test/bench/traces test/bench/README test/bench/xeon16.json test/bench_test.sh
CLEANFILES += test/bench/report.json test/bench/cost.svg test/bench/threads.svg

# What the documents say.
TESTS += test/readme_test.sh test/install_line_test.sh test/install_prefix_test.sh test/documents_test.sh \
	test/workshop_test.sh
EXTRA_DIST += test/README test/install_test.sh test/install_line_test.sh test/install_prefix_test.sh \
	test/readme_test.sh test/documents_test.sh test/workshop_test.sh

# Forked children: F1. And memory that is deregistered although the program makes no more calls: E4.
if HAVE_GTEST
test_programs += test/mpool/fork test/stress/fork_stress
test_mpool_fork_SOURCES = test/mpool/fork_test.cc test/mpool/fork_threads_test.cc test/support/threads.h \
	test/support/library.h test/support/registrars.h test/support/host_table.h $(fake_registrar_sources)
test_mpool_fork_LDADD = test/libtest_support.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_stress_fork_stress_SOURCES = test/stress/fork_stress_test.cc test/support/library.h test/support/registrars.h \
	test/support/host_table.h $(fake_registrar_sources)
if HAVE_URING
test_programs += test/stress/iouring_fork test/stress/iouring_flat
test_stress_iouring_flat_SOURCES = test/stress/iouring_flat_test.cc test/support/skip_main.cc
test_stress_iouring_flat_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
test_stress_iouring_fork_SOURCES = test/stress/iouring_fork_test.cc test/support/skip_main.cc
test_stress_iouring_fork_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
endif
# Not a part of make check, for it needs an RDMA device: contrib/workshop/rdma-vm -- test/verbs/rdma_fork
if HAVE_VERBS
check_PROGRAMS += test/verbs/rdma_fork
test_verbs_rdma_fork_SOURCES = test/stress/iouring_fork_test.cc test/support/skip_main.cc
test_verbs_rdma_fork_CPPFLAGS = $(AM_CPPFLAGS) -DPINRAIL_TEST_DEVICE='"verbs"' -DPINRAIL_TEST_REGISTRARS='"verbs"'
test_verbs_rdma_fork_LDADD = test/libtest_support.la libpinrail.la $(GTEST_LIBS)
endif
test_programs += test/mpool/gc_thread
test_mpool_gc_thread_SOURCES = test/mpool/gc_thread_test.cc test/support/library.h test/support/threads.h \
	$(fake_registrar_sources)
endif

# GPU memory. libcuda.so.1 as a double, for machines without a GPU; real ones: test/gpu.
check_LTLIBRARIES += test/fake/libcuda.la
test_fake_libcuda_la_SOURCES = test/fake/cuda/cuda_double.h test/fake/cuda/cuda_for_tests.h \
	test/fake/cuda/double_state.h test/fake/cuda/double_state.cc test/fake/cuda/double_context.cc \
	test/fake/cuda/double_memory.cc test/fake/cuda/double_ipc.cc test/fake/cuda/double_virtual.cc \
	test/fake/cuda/toolkit/cuda.h test/support/gpu_memory.h
EXTRA_DIST += test/fake/cuda/toolkit/cuda.h
test_fake_libcuda_la_CXXFLAGS = $(AM_CXXFLAGS) -fvisibility=default
test_fake_libcuda_la_LDFLAGS = -version-info 1:0:0 -rpath /nonexistent
if HAVE_GTEST
test_programs += test/unit/cuda/cuda_driver_test test/unit/openmpi/gpu_ticket_test \
	test/conform/cuda_ipc test/unit/base/slots_test test/gpu/rgpusm test/gpu/gpusm test/unit/base/descriptors_test \
	test/gpu/grdma_gpu test/gpu/gpu_locks test/gpu/gpu_ft test/gpu/gpu_events test/gpu/gpu_restart test/fault/gpu_fault \
	test/stress/gpu_stress
test_unit_cuda_cuda_driver_test_SOURCES = test/unit/cuda/cuda_driver_test.cc test/unit/cuda/facts.h \
	test/unit/cuda/facts.inc test/unit/cuda/facts_of_toolkit.cc
test_unit_cuda_cuda_driver_test_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_TOOLKIT_CPPFLAGS) \
	-DPINRAIL_TEST_CUDA_DRIVER_H='"$(abs_top_srcdir)/base/cuda/cuda_driver.h"' \
	-DPINRAIL_TEST_CUDA_FOR_TESTS_H='"$(abs_top_srcdir)/test/fake/cuda/cuda_for_tests.h"'
test_unit_cuda_cuda_driver_test_LDADD = -lgtest_main $(GTEST_LIBS)
test_unit_openmpi_gpu_ticket_test_SOURCES = test/unit/openmpi/gpu_ticket_test.cc contrib/openmpi/gpu_ticket.c
test_unit_openmpi_gpu_ticket_test_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
test_unit_openmpi_gpu_ticket_test_LDADD = -lgtest_main $(GTEST_LIBS)
test_conform_cuda_ipc_SOURCES = test/conform/cuda_ipc_test.cc test/conform/cuda_ipc_kinds_test.cc \
	test/support/gpu_memory.h $(registrar_subject_sources) test/support/skip_main.cc
test_conform_cuda_ipc_LDADD = test/fake/libcuda.la base/libslots.la $(registrar_conformance_libs)
test_unit_base_slots_test_SOURCES = test/unit/base/slots_test.cc
test_unit_base_slots_test_LDADD = test/libtest_support.la base/libslots.la -lgtest_main $(GTEST_LIBS)
test_unit_base_descriptors_test_SOURCES = test/unit/base/descriptors_test.cc
test_unit_base_descriptors_test_LDADD = test/libtest_support.la base/libdescriptors.la base/libslots.la -lgtest_main \
	$(GTEST_LIBS)
test_gpu_grdma_gpu_SOURCES = $(fake_registrar_sources) test/gpu/grdma_gpu_test.cc test/support/gpu_memory.h
test_gpu_grdma_gpu_LDADD = test/fake/libcuda.la test/libtest_support.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_gpu_rgpusm_SOURCES = $(fake_registrar_sources) test/gpu/rgpusm_test.cc test/gpu/rgpusm_slots_test.cc \
	test/gpu/gpu_library.h
test_gpu_rgpusm_LDADD = test/fake/libcuda.la base/libslots.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_gpu_gpu_locks_SOURCES = $(fake_registrar_sources) test/gpu/gpu_locks_test.cc test/gpu/gpu_library.h \
	test/support/gpu_memory.h
test_gpu_gpu_locks_LDADD = test/fake/libcuda.la base/libslots.la libpinrail_internal.la -lgtest_main $(GTEST_LIBS)
test_gpu_gpu_ft_SOURCES = $(fake_registrar_sources) test/gpu/gpu_ft_test.cc test/gpu/gpu_library.h
test_gpu_gpu_ft_LDADD = test/fake/libcuda.la base/libslots.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_gpu_gpu_events_SOURCES = $(fake_registrar_sources) test/gpu/gpu_events_test.cc test/gpu/gpu_library.h \
	test/support/gpu_memory.h
test_gpu_gpu_events_LDADD = test/fake/libcuda.la base/libslots.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_gpu_gpu_restart_SOURCES = $(fake_registrar_sources) test/gpu/gpu_restart_test.cc test/gpu/gpu_library.h \
	test/support/gpu_memory.h
test_gpu_gpu_restart_LDADD = test/fake/libcuda.la test/libtest_support.la base/libslots.la libpinrail.la \
	-lgtest_main $(GTEST_LIBS)
test_fault_gpu_fault_SOURCES = $(fake_registrar_sources) $(nth_allocation_sources) test/fault/gpu_fault_test.cc \
	test/support/registrars.h test/gpu/gpu_library.h
test_fault_gpu_fault_LDADD = test/fake/libcuda.la base/libslots.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_stress_gpu_stress_SOURCES = $(fake_registrar_sources) test/stress/gpu_stress_test.cc test/gpu/gpu_library.h
test_stress_gpu_stress_LDADD = test/fake/libcuda.la base/libslots.la libpinrail.la -lgtest_main $(GTEST_LIBS)
test_gpu_gpusm_SOURCES = $(fake_registrar_sources) test/gpu/gpusm_test.cc test/gpu/gpu_library.h
test_gpu_gpusm_LDADD = test/libtest_support.la test/fake/libcuda.la base/libslots.la libpinrail.la -lgtest_main $(GTEST_LIBS)
endif
# Runs itself with more rights than its caller, statically linked with the library: such a program is given no path.
test_programs += test/unit/base/setuid
test_unit_base_setuid_SOURCES = test/unit/base/setuid.cc
test_unit_base_setuid_LDFLAGS = $(AM_LDFLAGS) -export-dynamic
test_unit_base_setuid_LDADD = libpinrail_internal.la
EXTRA_test_unit_base_setuid_DEPENDENCIES = test/fake/libcuda.la
# They need no GoogleTest: a machine with a GPU may lack it.
check_PROGRAMS += test/gpu/soak test/gpu/story test/gpu/kinds
TESTS += test/gpu_soak_test.sh
test_gpu_soak_SOURCES = test/gpu/soak.cc test/gpu/driver.h
test_gpu_soak_LDADD = libpinrail.la
test_gpu_story_SOURCES = test/gpu/story.cc test/gpu/driver.h
test_gpu_story_LDADD = libpinrail.la
EXTRA_test_gpu_story_DEPENDENCIES = test/fake/libcuda.la
test_gpu_kinds_SOURCES = test/gpu/kinds.cc test/gpu/driver.h
test_gpu_kinds_LDADD = libpinrail.la
EXTRA_test_gpu_kinds_DEPENDENCIES = test/fake/libcuda.la
EXTRA_test_gpu_soak_DEPENDENCIES = test/fake/libcuda.la
# As for bench_test.sh above.
gpu_soak_test_log = test/gpu_soak_test.sh.log
$(gpu_soak_test_log): test/gpu/soak test/gpu/story test/gpu/kinds
EXTRA_DIST += test/gpu_soak_test.sh test/gpu/run test/gpu/README test/gpu/h200.json

# The instructions of a hit beside many threads, and of a miss, and the system calls of the start; a part of "make soak".
check_PROGRAMS += test/stress/cost
test_stress_cost_SOURCES = test/stress/cost.cc test/support/host_table.h
test_stress_cost_LDADD = libpinrail.la
# What test/attack/README gives figures of, at full length: half an hour on a quiet machine of two processors.
soak_programs = test/stress/cost test/stress/interrupted test/stress/grdma_stress test/monitor/patcher_race
soak: all $(soak_programs)
	PINRAIL_TEST_SOAK=1 test/stress/interrupted
	PINRAIL_TEST_LONG=1 test/stress/grdma_stress --gtest_filter='Scale*:HotBuffer*'
	$(srcdir)/test/stress/cost.sh hit
	$(srcdir)/test/stress/cost.sh miss || test $$? -eq 77
	test/stress/cost start || test $$? -eq 77
	ROUNDS=10000 srcdir=$(srcdir) bash $(srcdir)/test/own_calls_test.sh
	PINRAIL_TEST_RACES=100000 test/monitor/patcher_race
EXTRA_DIST += test/stress/cost.sh

# What the part systems of contrib/run-tests compares with.
EXTRA_DIST += test/systems/README test/systems/compare test/systems/tables.json

# Exits and signals in the middle of whatever threads do.
if HAVE_GTEST
test_programs += test/stress/interrupted
test_stress_interrupted_SOURCES = test/stress/interrupted_test.cc test/support/host_table.h test/support/cases.h \
	test/support/threads.h
endif

# Embedders' functions that do not return.
if HAVE_GTEST
test_programs += test/fault/unwind_fault
test_fault_unwind_fault_SOURCES = test/fault/unwind_fault_test.cc test/support/registrars.h test/support/threads.h \
	$(fake_registrar_sources)
endif

check_PROGRAMS += $(test_programs)
TESTS += $(test_programs)
