# SPDX-License-Identifier: BSD-3-Clause
public_headers = \
	framework/include/pinrail/types.h framework/include/pinrail/registrar.h framework/include/pinrail/params.h \
	framework/include/pinrail/stats.h framework/include/pinrail/events.h framework/include/pinrail/figures.h framework/include/pinrail/pinrail.h framework/include/pinrail/component.h \
	framework/include/pinrail/component_rcache.h framework/include/pinrail/component_mpool.h

libpinrail_internal_la_SOURCES += framework/registrar/registrar.h framework/registrar/registrar.cc \
	framework/registrar/registrar_bind.cc framework/registrar/request.h \
	framework/monitor/monitor.h framework/monitor/monitor.cc \
	framework/monitor/loaded_objects.h framework/monitor/loaded_objects.cc framework/monitor/own_calls.h \
	framework/monitor/own_calls.cc framework/monitor/findings.h framework/monitor/findings.cc \
	framework/monitor/selection.cc framework/monitor/started_hook.h framework/monitor/started_hook.cc \
	framework/monitor/subscriptions_hook.h framework/monitor/subscriptions_hook.cc \
	framework/monitor/known_mappings_hook.h framework/monitor/known_mappings_hook.cc framework/monitor/mapping.h \
	framework/monitor/mapping.cc framework/monitor/coverage.h framework/monitor/coverage.cc \
	framework/rcache/rcache.h framework/rcache/rcache.cc framework/mpool/recorder.h framework/mpool/recorder.cc \
	framework/mpool/mpool.h framework/mpool/mpool.cc \
	framework/mpool/forward.h \
	framework/mpool/params.h framework/mpool/budget.h framework/mpool/engine.h \
	framework/mpool/pool_base.h framework/mpool/indexed_pool.h framework/mpool/pool_cache.h \
	framework/mpool/pool_area.h framework/mpool/pool_registrations.h framework/mpool/gc_list.h \
	framework/mpool/allocator.h framework/mpool/allocator.cc \
	framework/mpool/allocator_slabs.cc \
	framework/mpool/gc_thread.h framework/mpool/gc_thread.cc \
	framework/mpool/pool_works.h framework/mpool/hit_check.h framework/mpool/hit_check.cc framework/api/api.h \
	framework/api/api_init.cc framework/api/api_services.cc framework/api/api_pool.cc \
	framework/api/api_fork.cc framework/api/api_events.cc framework/api/api_call.cc framework/api/api_control.cc \
	framework/api/api_chunks.cc

EXTRA_DIST += \
	framework/registrar/registrar_help.txt framework/monitor/monitor_help.txt framework/rcache/rcache_help.txt \
	framework/mpool/mpool_help.txt framework/api/api_help.txt

public_headers += framework/include/pinrail/pin.h framework/include/pinrail/alloc.h
libpinrail_internal_la_SOURCES += framework/api/api_pin.cc framework/api/pin_job.h framework/api/pin_job.cc \
	framework/api/pin_plan.cc

public_headers += framework/include/pinrail/listing.h
libpinrail_internal_la_SOURCES += framework/api/api_listing.cc
libpinrail_internal_la_SOURCES += framework/api/record.cc

# GPU memory across processes.
public_headers += framework/include/pinrail/gpu.h

# What the pools of allocations of GPU memory share; gpusm and rgpusm link it, because they use no symbol of the library.
noinst_LTLIBRARIES += framework/libgpu_pool.la
framework_libgpu_pool_la_CXXFLAGS = $(room_cxxflags)
framework_libgpu_pool_la_SOURCES = framework/mpool/gpu_pool.h \
	framework/mpool/gpu_pool_register.cc framework/mpool/gpu_pool_close.cc
if STATIC_COMPONENTS
libpinrail_internal_la_LIBADD += framework/libgpu_pool.la
endif
