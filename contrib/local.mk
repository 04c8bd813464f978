# SPDX-License-Identifier: BSD-3-Clause
EXTRA_DIST += contrib/m4/pinrail.m4

# Everything that a process can do to its memory, for tools and tests.
memory_events_sources = \
	contrib/tools/common/memory_events.h contrib/tools/common/memory_events.cc \
	contrib/tools/common/memory_calls.cc \
	contrib/tools/common/memory_fire.cc

# For the tools, and for programs among the tests.
program_sources = \
	contrib/tools/common/program.h contrib/tools/common/program.cc contrib/tools/common/json.h \
	contrib/tools/common/text.h contrib/tools/common/text.cc

if HAVE_TOOLS
bin_PROGRAMS += contrib/tools/pinrail_perf contrib/tools/pinrail_advise contrib/tools/pinrail_info
dist_man_MANS += contrib/man/pinrail_perf.1 contrib/man/pinrail_advise.1 contrib/man/pinrail_info.1
# Completion: bash searches a file with the command's name.
bashcompletiondir = $(datadir)/bash-completion/completions
nodist_bashcompletion_DATA = contrib/completion/pinrail_info contrib/completion/pinrail_perf \
	contrib/completion/pinrail_advise contrib/completion/pinrail_top \
	contrib/completion/pinrail_conform contrib/completion/pinrun
$(nodist_bashcompletion_DATA): contrib/completion/pinrail.bash
	$(AM_V_GEN)$(MKDIR_P) contrib/completion && cp $(srcdir)/contrib/completion/pinrail.bash $@
CLEANFILES += $(nodist_bashcompletion_DATA)
zshcompletiondir = $(datadir)/zsh/site-functions
zshcompletion_DATA = contrib/completion/_pinrail
endif
if HAVE_TOOLS
if HAVE_NCURSES
bin_PROGRAMS += contrib/tools/pinrail_top
dist_man_MANS += contrib/man/pinrail_top.1
endif
endif
EXTRA_DIST += contrib/man/pinrail_top.1 contrib/completion/pinrail.bash contrib/completion/_pinrail contrib/man/pinrail_perf.1 contrib/man/pinrail_advise.1 contrib/man/pinrail_info.1
if EMBEDDED
EXTRA_DIST += contrib/man/pinrail_params.7
else
dist_man_MANS += contrib/man/pinrail_params.7
endif
# Recorded traces, and the memory that they speak of.
replayed_memory_sources = contrib/tools/perf/basics.h contrib/tools/perf/basics.cc \
	contrib/tools/perf/replay_memory.h contrib/tools/perf/replay_memory.cc contrib/tools/perf/trace.h \
	contrib/tools/perf/trace.cc
pinrail_perf_sources = $(replayed_memory_sources) $(program_sources) \
	contrib/tools/perf/session.h contrib/tools/perf/session.cc contrib/tools/perf/table.cc \
	contrib/tools/perf/options.h contrib/tools/perf/options.cc contrib/tools/perf/replay.h \
	contrib/tools/perf/replay.cc contrib/tools/perf/report.h contrib/tools/perf/report.cc \
	contrib/tools/perf/scenario.h contrib/tools/perf/scenario.cc contrib/tools/perf/scenario_prepin.cc \
	contrib/tools/perf/scenario_terabyte.cc contrib/tools/perf/scenario_mrall.cc
# Trials of monitors in child processes.
trial_sources = contrib/tools/info/monitors.h contrib/tools/info/monitors.cc \
	contrib/tools/info/snapshot.h $(memory_events_sources)
contrib_tools_pinrail_perf_SOURCES = contrib/tools/perf/pinrail_perf.cc contrib/tools/perf/report.h \
	contrib/tools/perf/doctor.cc $(trial_sources) $(pinrail_perf_sources)
contrib_tools_pinrail_perf_LDADD = libpinrail.la $(LZMA_LIBS)

advise_sources = contrib/tools/advise/page.cc contrib/tools/advise/study.h contrib/tools/advise/study.cc
contrib_tools_pinrail_advise_SOURCES = contrib/tools/advise/pinrail_advise.cc $(advise_sources) $(pinrail_perf_sources)
contrib_tools_pinrail_advise_LDADD = libpinrail.la $(LZMA_LIBS)

pinrail_info_sources = $(program_sources) contrib/tools/info/snapshot.h contrib/tools/info/snapshot.cc \
	contrib/tools/info/print_text.cc contrib/tools/info/print_json.cc $(trial_sources)
contrib_tools_pinrail_info_SOURCES = contrib/tools/info/pinrail_info.cc $(pinrail_info_sources)
contrib_tools_pinrail_info_LDADD = libpinrail.la
contrib_tools_pinrail_top_SOURCES = contrib/tools/top/pinrail_top.cc $(program_sources) \
	contrib/tools/top/top.h contrib/tools/top/figures.cc contrib/tools/top/print.cc
contrib_tools_pinrail_top_LDADD = libpinrail.la $(NCURSES_LIBS)
EXTRA_DIST += contrib/tools/.clang-tidy

# Manual pages of section 3 and the site, from the public headers and the documents. test/pages_test.sh looks at them.
site_sources = contrib/workshop/site/make-site contrib/workshop/site/filter \
	contrib/workshop/site/frame.html contrib/workshop/site/site.css \
	contrib/workshop/installed-text
EXTRA_DIST += $(site_sources)
if PAGES
all-local: contrib/workshop/site/made
contrib/workshop/site/made: $(public_headers) $(doc_files) $(picture_files) $(site_sources) contrib/workshop/site/Doxyfile
	$(AM_V_GEN)'$(PYTHON3)' $(srcdir)/contrib/workshop/site/make-site '$(DOXYGEN)' '$(srcdir)' '$(PACKAGE_VERSION)' && touch $@
install-data-local: contrib/workshop/site/made
	$(MKDIR_P) '$(DESTDIR)$(mandir)/man3' '$(DESTDIR)$(htmldir)/html'
	$(INSTALL_DATA) contrib/workshop/site/man3/*.3 '$(DESTDIR)$(mandir)/man3'
	$(INSTALL_DATA) contrib/workshop/site/html/* '$(DESTDIR)$(htmldir)/html'
uninstall-local:
	for page in contrib/workshop/site/man3/*.3; do \
		test ! -f "$$page" || rm -f '$(DESTDIR)$(mandir)/man3'/"$${page##*/}"; done
	for page in contrib/workshop/site/html/*; do \
		test ! -f "$$page" || rm -f '$(DESTDIR)$(htmldir)/html'/"$${page##*/}"; done
	rmdir '$(DESTDIR)$(htmldir)/html' 2>/dev/null || :
clean-local:
	cd contrib/workshop/site && rm -rf made warnings HEADER FOOTER html xml man3
endif

# The tutorial's program. It needs an RDMA device: contrib/run-tests runs it in the guest.
if !EMBEDDED
if HAVE_VERBS
check_PROGRAMS += contrib/examples/cached_reg_mr
TESTS += contrib/examples/cached_reg_mr
contrib_examples_cached_reg_mr_SOURCES = contrib/examples/cached_reg_mr.c
contrib_examples_cached_reg_mr_LDADD = libpinrail.la $(VERBS_LIBS)
endif
endif

# The skeletons of components.
template_files = contrib/new-component.d/component.mk contrib/new-component.d/README.in \
	contrib/new-component.d/hook_lock.h contrib/new-component.d/monitor.c \
	contrib/new-component.d/mpool.c contrib/new-component.d/rcache.c contrib/new-component.d/registrar.c
EXTRA_DIST += contrib/new-component $(template_files) contrib/man/pinrail-new-component.1 \
	contrib/man/pinrail-mpirun-args.1
if !EMBEDDED
# For authors of components and for embedders. Scripts that search files beside themselves have links on the PATH.
devtoolsdir = $(datadir)/pinrail
devtools_SCRIPTS = contrib/new-component
devtools_DATA = contrib/m4/pinrail.m4
dist_man_MANS += contrib/man/pinrail-new-component.1
if OPENMPI_COMPONENT
dist_man_MANS += contrib/man/pinrail-mpirun-args.1
endif
templatesdir = $(devtoolsdir)/new-component.d
templates_DATA = $(template_files)
install-exec-hook:
	$(MKDIR_P) '$(DESTDIR)$(bindir)'
	cd '$(DESTDIR)$(bindir)' && rm -f pinrail-new-component && $(LN_S) '$(devtoolsdir)/new-component' pinrail-new-component
	test -z '$(openmpidir)' || { cd '$(DESTDIR)$(bindir)' && rm -f pinrail-mpirun-args && \
		$(LN_S) '$(openmpidir)/mpirun-args' pinrail-mpirun-args; }
uninstall-hook:
	rm -f '$(DESTDIR)$(bindir)/pinrail-new-component' '$(DESTDIR)$(bindir)/pinrail-mpirun-args'
endif

# From a fresh machine to a tested build.
EXTRA_DIST += contrib/README contrib/quickstart contrib/run-tests contrib/packages .ci/run contrib/spack/package.py \
	contrib/workshop/setup.sh contrib/workshop/run-tests.d/parts.sh \
	contrib/workshop/run-tests.d/count.awk contrib/workshop/package contrib/workshop/package.d/try-packages \
	contrib/workshop/rdma-vm contrib/workshop/rdma-vm.d/get-kernel \
	contrib/workshop/rdma-vm.d/guest-init contrib/workshop/rdma-vm.d/guest-session \
	contrib/workshop/rdma-vm.d/functions.sh contrib/workshop/on-arm64 contrib/workshop/on-arm64.d/guest \
	contrib/workshop/on-arm64.d/guest-init contrib/workshop/on-musl contrib/workshop/on-system \
	contrib/workshop/on-system.d/foreign.sh \
	contrib/workshop/on-system.d/roots.sh contrib/workshop/on-system.d/make-root \
	contrib/workshop/on-system.d/in-root
