# SPDX-License-Identifier: BSD-3-Clause
# Status, ranges, guards; nothing about caching.
libpinrail_internal_la_SOURCES += base/core/status.h base/core/status.cc base/core/span.h base/core/own_component.h \
	base/core/compiler.h base/core/kernel.h base/core/files.h base/core/thread_record.h \
	base/core/calling_thread.h base/core/files.cc base/core/page_counts.h base/cuda/cuda_driver.h

# Locks and their ranks, the hook wall, the gate, forked children.
libpinrail_internal_la_SOURCES += \
	base/sync/futex_lock.h base/sync/lock.h base/sync/lock_rank.h \
	base/sync/hook_scope.h base/sync/deferred_hook.h \
	base/sync/deferred_hook.cc base/sync/call_scope.h base/sync/gate.h base/sync/gate.cc \
	base/sync/fork_reinit.h base/sync/own_file.h base/sync/own_threads.h \
	base/sync/own_threads.cc

# The registration: its memory, its state word, the records of threads.
libpinrail_internal_la_SOURCES += base/registration/registration.h base/registration/registration_arena.h \
	base/registration/registration_arena.cc base/registration/shortcut.h base/registration/thread.h \
	base/registration/thread.cc

# What a hit reads without a lock.
libpinrail_internal_la_SOURCES += \
	base/hit/recent.h base/hit/hints.h base/hit/start_hints.h base/hit/start_hints.cc \
	base/hit/pool_counts.h
libpinrail_internal_la_CXXFLAGS = $(room_cxxflags)
nodist_libpinrail_internal_la_SOURCES = base/loader/static_components.c
BUILT_SOURCES += base/loader/static_components.c
CLEANFILES += base/loader/static_components.c

# The table of the components that are linked in; empty in a DSO build.
base/loader/static_components.c: Makefile
	$(AM_V_GEN)$(MKDIR_P) base/loader && { \
	echo '#include <pinrail/component.h>'; \
	for c in $(PINRAIL_STATIC_LIST); do echo "extern const pinrail_component_t pinrail_$${c}_component;"; done; \
	echo 'extern const pinrail_component_t *const pinrail_static_components[];'; \
	echo 'const pinrail_component_t *const pinrail_static_components[] = {'; \
	for c in $(PINRAIL_STATIC_LIST); do echo "    &pinrail_$${c}_component,"; done; \
	echo '    NULL};'; } > $@.tmp && mv $@.tmp $@

libpinrail_internal_la_SOURCES += base/report/report.h base/report/report.cc base/param/param.h \
	base/param/registry.cc base/param/declare.cc base/param/settings.cc \
	base/param/text.cc base/loader/loader.h base/loader/discover.cc \
	base/loader/load.cc base/loader/check.cc
EXTRA_DIST += base/report/base_help.txt

# Patching of code. Components that patch link it, because they use no symbols of the library.
noinst_LTLIBRARIES += base/libmaps.la base/libpatch.la
base_libmaps_la_CXXFLAGS = $(room_cxxflags)
base_libmaps_la_SOURCES = base/patch/system_call.h base/patch/maps.h base/patch/maps.cc
base_libpatch_la_CXXFLAGS = $(room_cxxflags)
base_libpatch_la_SOURCES = base/patch/patch.h base/patch/patch.cc base/patch/island.h base/patch/island.cc \
	base/patch/places_x86_64.cc base/patch/code_x86_64.cc base/patch/code_aarch64.cc
base_libpatch_la_LIBADD = base/libmaps.la
if STATIC_COMPONENTS
libpinrail_internal_la_LIBADD += base/libpatch.la
else
libpinrail_internal_la_LIBADD += base/libmaps.la
component_patch_libs = base/libpatch.la
component_maps_libs = base/libmaps.la
endif

# Validity of memory that other processes have open; the components of GPU memory link it.
noinst_LTLIBRARIES += base/libslots.la
base_libslots_la_CXXFLAGS = $(room_cxxflags)
base_libslots_la_SOURCES = \
	base/slots/slots.h base/slots/segment.h base/slots/process.h base/slots/process.cc \
	base/slots/exporter.cc
if STATIC_COMPONENTS
libpinrail_internal_la_LIBADD += base/libslots.la
endif

# Descriptors that go to other processes; the registrar of GPU memory links it, with base/libslots.la.
noinst_LTLIBRARIES += base/libdescriptors.la
base_libdescriptors_la_CXXFLAGS = $(room_cxxflags)
base_libdescriptors_la_SOURCES = \
	base/descriptors/descriptors.h base/descriptors/wire.h base/descriptors/server.cc \
	base/descriptors/fetch.cc
if STATIC_COMPONENTS
libpinrail_internal_la_LIBADD += base/libdescriptors.la
else
component_descriptor_libs = base/libdescriptors.la base/libslots.la
endif

# Processors and memory of the machine.
libpinrail_internal_la_SOURCES += base/core/machine.h base/core/machine.cc
libpinrail_internal_la_LIBADD += $(HWLOC_LIBS)
