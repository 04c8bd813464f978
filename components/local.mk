# SPDX-License-Identifier: BSD-3-Clause
# Each component is a DSO in $(pkglibdir), or with --enable-static-components a part of libpinrail. It uses
# header-only parts of base/, so that a DSO needs none of the library's symbols.
component_libraries =

if !STATIC_COMPONENTS
component_gpu_pool_libs = framework/libgpu_pool.la base/libslots.la
endif

component_libraries += components/mpool_grdma.la
components_mpool_grdma_la_SOURCES = components/mpool/grdma/grdma_component.cc components/mpool/grdma/grdma.h \
	components/mpool/grdma/grdma_create.cc components/mpool/grdma/grdma_register.cc \
	components/mpool/grdma/grdma_miss.cc components/mpool/grdma/grdma_device.cc \
	components/mpool/grdma/grdma_invalidate_hook.cc \
	components/mpool/grdma/grdma_extent.h components/mpool/grdma/grdma_extent.cc \
	components/mpool/grdma/grdma_reasons.h components/mpool/grdma/grdma_reasons.cc \
	components/mpool/grdma/grdma_outside.h components/mpool/grdma/grdma_gpu.h \
	components/mpool/grdma/grdma_gpu.cc
components_mpool_grdma_la_LDFLAGS = $(component_ldflags)
components_mpool_grdma_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_mpool_grdma)
components_mpool_grdma_la_CXXFLAGS = $(room_cxxflags) $(PINRAIL_LTO)

component_libraries += components/mpool_mrall.la
components_mpool_mrall_la_SOURCES = components/mpool/mrall/mrall_component.cc components/mpool/mrall/mrall.h \
	components/mpool/mrall/mrall_make.cc components/mpool/mrall/mrall_maps.cc
components_mpool_mrall_la_LDFLAGS = $(component_ldflags)
components_mpool_mrall_la_LIBADD = $(component_maps_libs)
components_mpool_mrall_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_mpool_mrall)
components_mpool_mrall_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/mpool_odp.la
components_mpool_odp_la_SOURCES = \
	components/mpool/odp/odp_component.cc
components_mpool_odp_la_LDFLAGS = $(component_ldflags)
components_mpool_odp_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_mpool_odp)
components_mpool_odp_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/rcache_vma.la
components_rcache_vma_la_SOURCES = \
	components/rcache/vma/vma_component.cc components/rcache/vma/vma_index.cc \
	components/rcache/vma/vma_tree.cc components/rcache/vma/vma.h \
	components/rcache/vma/vma_announcements.h components/rcache/vma/vma_tree.h \
	components/rcache/vma/vma_node.h
components_rcache_vma_la_LDFLAGS = $(component_ldflags)
components_rcache_vma_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_rcache_vma)
components_rcache_vma_la_CXXFLAGS = $(room_cxxflags) $(PINRAIL_LTO)

component_libraries += components/monitor_external.la
components_monitor_external_la_SOURCES = components/monitor/external/external_component.cc
components_monitor_external_la_LDFLAGS = $(component_ldflags)
components_monitor_external_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_monitor_external)
components_monitor_external_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/monitor_patcher.la
components_monitor_patcher_la_SOURCES = components/monitor/patcher/patcher_component.cc \
	components/monitor/patcher/patcher_install.cc components/monitor/patcher/patcher_check.cc \
	components/monitor/patcher/patcher_probe.cc components/monitor/patcher/patcher_file_hook.cc \
	components/monitor/patcher/patcher_memory_hook.cc components/monitor/patcher/patcher.h
components_monitor_patcher_la_LDFLAGS = $(component_ldflags)
components_monitor_patcher_la_LIBADD = $(component_patch_libs)
components_monitor_patcher_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_monitor_patcher)
components_monitor_patcher_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/monitor_uffd.la
components_monitor_uffd_la_SOURCES = components/monitor/uffd/uffd_component.cc \
	components/monitor/uffd/uffd_thread.cc components/monitor/uffd/uffd.h
components_monitor_uffd_la_LDFLAGS = $(component_ldflags)
components_monitor_uffd_la_LIBADD = $(component_maps_libs)
components_monitor_uffd_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_monitor_uffd)
components_monitor_uffd_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/registrar_mlock.la
components_registrar_mlock_la_SOURCES = \
	components/registrar/mlock/mlock_component.cc
components_registrar_mlock_la_LDFLAGS = $(component_ldflags)
components_registrar_mlock_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_registrar_mlock)
components_registrar_mlock_la_CXXFLAGS = $(room_cxxflags)

if HAVE_URING
component_libraries += components/registrar_iouring.la
components_registrar_iouring_la_SOURCES = \
	components/registrar/iouring/iouring_component.cc components/registrar/iouring/iouring_ring.cc \
	components/registrar/iouring/iouring.h
components_registrar_iouring_la_LDFLAGS = $(component_ldflags)
components_registrar_iouring_la_LIBADD = $(URING_LIBS)
components_registrar_iouring_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_registrar_iouring)
components_registrar_iouring_la_CXXFLAGS = $(room_cxxflags)
endif

if HAVE_VERBS
component_libraries += components/registrar_verbs.la
components_registrar_verbs_la_SOURCES = components/registrar/verbs/verbs_component.cc \
	components/registrar/verbs/verbs_device.cc \
	components/registrar/verbs/verbs_loopback.cc components/registrar/verbs/verbs_odp.cc \
	components/registrar/verbs/verbs.h
components_registrar_verbs_la_LDFLAGS = $(component_ldflags)
components_registrar_verbs_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_registrar_verbs)
components_registrar_verbs_la_CXXFLAGS = $(room_cxxflags)
endif

# The pools of GPU memory need no driver themselves: an embedder may provide the registrar.
component_libraries += components/mpool_gpusm.la components/mpool_rgpusm.la
components_mpool_gpusm_la_SOURCES = components/mpool/gpusm/gpusm_component.cc
components_mpool_gpusm_la_LDFLAGS = $(component_ldflags)
components_mpool_gpusm_la_LIBADD = $(component_gpu_pool_libs)
components_mpool_gpusm_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_mpool_gpusm)
components_mpool_gpusm_la_CXXFLAGS = $(room_cxxflags)
components_mpool_rgpusm_la_SOURCES = components/mpool/rgpusm/rgpusm_component.cc
components_mpool_rgpusm_la_LDFLAGS = $(component_ldflags)
components_mpool_rgpusm_la_LIBADD = $(component_gpu_pool_libs)
components_mpool_rgpusm_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_mpool_rgpusm)
components_mpool_rgpusm_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/monitor_cuda.la
components_monitor_cuda_la_SOURCES = components/monitor/cuda/cuda_component.cc
components_monitor_cuda_la_LDFLAGS = $(component_ldflags)
components_monitor_cuda_la_LIBADD = $(component_patch_libs)
components_monitor_cuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_monitor_cuda)
components_monitor_cuda_la_CXXFLAGS = $(room_cxxflags)

component_libraries += components/registrar_cuda_ipc.la
components_registrar_cuda_ipc_la_SOURCES = components/registrar/cuda_ipc/cuda_ipc_component.cc \
	components/registrar/cuda_ipc/cuda_ipc_register.cc \
	components/registrar/cuda_ipc/cuda_ipc_vmm.cc components/registrar/cuda_ipc/cuda_ipc_event.cc \
	components/registrar/cuda_ipc/cuda_ipc.h
components_registrar_cuda_ipc_la_LDFLAGS = $(component_ldflags)
components_registrar_cuda_ipc_la_LIBADD = $(component_descriptor_libs)
components_registrar_cuda_ipc_la_CPPFLAGS = $(AM_CPPFLAGS) $(component_symbol_registrar_cuda_ipc)
components_registrar_cuda_ipc_la_CXXFLAGS = $(room_cxxflags)

EXTRA_DIST += components/monitor/cuda/README components/monitor/cuda/cuda_help.txt
EXTRA_DIST += components/mpool/gpusm/README components/mpool/gpusm/gpusm_help.txt \
	components/mpool/rgpusm/README components/mpool/rgpusm/rgpusm_help.txt
EXTRA_DIST += components/registrar/cuda_ipc/README components/registrar/cuda_ipc/cuda_ipc_help.txt
EXTRA_DIST += components/component.map \
	components/mpool/grdma/README components/mpool/grdma/grdma_help.txt \
	components/mpool/mrall/README components/mpool/mrall/mrall_help.txt \
	components/mpool/odp/README components/mpool/odp/odp_help.txt \
	components/rcache/vma/README components/monitor/external/README \
	components/monitor/patcher/README components/monitor/patcher/patcher_help.txt \
	components/monitor/uffd/README components/monitor/uffd/uffd_help.txt \
	components/registrar/iouring/README components/registrar/iouring/iouring_help.txt \
	components/registrar/mlock/README components/registrar/mlock/mlock_help.txt \
	components/registrar/verbs/README components/registrar/verbs/verbs_help.txt

if STATIC_COMPONENTS
noinst_LTLIBRARIES += $(component_libraries)
libpinrail_internal_la_LIBADD += $(component_libraries)
component_ldflags = $(AM_LDFLAGS) -module
component_symbol_mpool_grdma = -DPINRAIL_COMPONENT_SYMBOL=pinrail_mpool_grdma_component
component_symbol_mpool_mrall = -DPINRAIL_COMPONENT_SYMBOL=pinrail_mpool_mrall_component
component_symbol_mpool_odp = -DPINRAIL_COMPONENT_SYMBOL=pinrail_mpool_odp_component
component_symbol_mpool_gpusm = -DPINRAIL_COMPONENT_SYMBOL=pinrail_mpool_gpusm_component
component_symbol_mpool_rgpusm = -DPINRAIL_COMPONENT_SYMBOL=pinrail_mpool_rgpusm_component
component_symbol_rcache_vma = -DPINRAIL_COMPONENT_SYMBOL=pinrail_rcache_vma_component
component_symbol_monitor_external = -DPINRAIL_COMPONENT_SYMBOL=pinrail_monitor_external_component
component_symbol_monitor_patcher = -DPINRAIL_COMPONENT_SYMBOL=pinrail_monitor_patcher_component
component_symbol_monitor_uffd = -DPINRAIL_COMPONENT_SYMBOL=pinrail_monitor_uffd_component
component_symbol_registrar_mlock = -DPINRAIL_COMPONENT_SYMBOL=pinrail_registrar_mlock_component
component_symbol_registrar_iouring = -DPINRAIL_COMPONENT_SYMBOL=pinrail_registrar_iouring_component
component_symbol_monitor_cuda = -DPINRAIL_COMPONENT_SYMBOL=pinrail_monitor_cuda_component
component_symbol_registrar_cuda_ipc = -DPINRAIL_COMPONENT_SYMBOL=pinrail_registrar_cuda_ipc_component
component_symbol_registrar_verbs = -DPINRAIL_COMPONENT_SYMBOL=pinrail_registrar_verbs_component
else
pkglib_LTLIBRARIES += $(component_libraries)
component_ldflags = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,--version-script=$(top_srcdir)/components/component.map
endif

# For test/mutants/run: what a test of the library needs besides.
phony_targets = print-components
print-components:
	@echo $(component_libraries)
