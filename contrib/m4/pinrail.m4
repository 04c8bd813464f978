# SPDX-License-Identifier: BSD-3-Clause
# pinrail.m4 - options and third parties of Pinrail's configure; and at its end, for embedders: PINRAIL_SYMBOL_PREFIX,
# PINRAIL_SETUP, PINRAIL_AM_CONDITIONALS.

# Before AC_PROG_CXX. Unless the user's CXXFLAGS have an -O, the library is optimised (by PINRAIL_OPTIMIZE, which may be
# set), and the tests that only ask for behaviour are not: that halves the time to compile them. Makefile.am says which
# they are.
AC_DEFUN([PINRAIL_OPTIMIZATION], [
  AS_IF([test "x${CXXFLAGS+set}" != xset], [CXXFLAGS=-g])
  AS_CASE([" $CXXFLAGS"], [*" -O"*], [PINRAIL_OPTIMIZE=], [
    AS_IF([test "x${PINRAIL_OPTIMIZE+set}" != xset], [PINRAIL_OPTIMIZE=-O2])
    PINRAIL_TEST_OPTIMIZE=-O0
  ])
  AC_SUBST([PINRAIL_OPTIMIZE])
  AC_SUBST([PINRAIL_TEST_OPTIMIZE])
])

# After AC_PROG_CXX. Clang compiles without precompiled headers: then it shows that sources include what they use.
AC_DEFUN([PINRAIL_PRECOMPILE], [
  AC_MSG_CHECKING([whether headers are compiled once])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
    #if !defined __GNUC__ || defined __clang__
    #error no GCC
    #endif]], [])], [pinrail_precompile=yes], [pinrail_precompile=no])
  AC_MSG_RESULT([$pinrail_precompile])
  AS_IF([test "x$enable_embedded" != xno], [pinrail_precompile=no])  # -include pinrail_rename.h comes first
  AM_CONDITIONAL([PRECOMPILE], [test "x$pinrail_precompile" = xyes])
])

AC_DEFUN([PINRAIL_COMPILER_FLAGS], [
  pinrail_warnings="-Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers"
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat warnings as errors])],
    [], [enable_werror=no])
  AS_IF([test "x$enable_werror" = xyes], [pinrail_warnings="$pinrail_warnings -Werror"])
  AC_MSG_CHECKING([whether $CXX knows -Wthread-safety])
  pinrail_save="$CXXFLAGS"
  CXXFLAGS="$CXXFLAGS -Werror -Wthread-safety"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes]); pinrail_warnings="$pinrail_warnings -Wthread-safety"], [AC_MSG_RESULT([no])])
  AC_MSG_CHECKING([whether $CXX knows -Wexit-time-destructors and -Wglobal-constructors])
  PINRAIL_NO_STATIC_CODE="-Werror=exit-time-destructors -Werror=global-constructors"
  CXXFLAGS="$pinrail_save -Werror $PINRAIL_NO_STATIC_CODE"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no]); PINRAIL_NO_STATIC_CODE=])
  AC_SUBST([PINRAIL_NO_STATIC_CODE])
  CXXFLAGS="$pinrail_save"
  AC_SUBST([PINRAIL_WARNINGS], [$pinrail_warnings])
])

AC_DEFUN([PINRAIL_OPTION_DEBUG], [
  AC_ARG_ENABLE([debug], [AS_HELP_STRING([--enable-debug], [lock ranks, hook wall and invariants are checked])],
    [], [enable_debug=no])
  # On the command line, not in config.h: headers of base/core read it, and every file must see the same value.
  AS_IF([test "x$enable_debug" = xyes], [PINRAIL_DEBUG_CPPFLAGS="-DPINRAIL_DEBUG=1"])
  AC_SUBST([PINRAIL_DEBUG_CPPFLAGS])
  pinrail_debug=$enable_debug
])

AC_DEFUN([PINRAIL_OPTION_STATIC_COMPONENTS], [
  AC_ARG_ENABLE([static-components],
    [AS_HELP_STRING([--enable-static-components], [link the components into libpinrail instead of building DSOs])],
    [], [enable_static_components=default])
  # A component that is not linked in is a shared object.
  AS_IF([test "x$enable_shared$enable_static_components" = xnono],
    [AC_MSG_ERROR([with --disable-shared components can only be built in: leave --disable-static-components out])])
  AS_IF([test "x$enable_static_components" = xdefault],
    [AS_IF([test "x$enable_shared" = xno], [enable_static_components=yes], [enable_static_components=no])])
  AM_CONDITIONAL([STATIC_COMPONENTS], [test "x$enable_static_components" = xyes])
])

# After PINRAIL_OPTION_SANITIZE. The components of a miss are optimised as a whole, where they are objects of their own. Only
# with GCC, and not if the user's CXXFLAGS say something about it.
AC_DEFUN([PINRAIL_LINK_TIME_OPTIMIZATION], [
  AC_MSG_CHECKING([whether components are optimised when they are linked])
  PINRAIL_LTO="-flto -flto-partition=none"
  pinrail_save="$CXXFLAGS"
  CXXFLAGS="$CXXFLAGS $PINRAIL_LTO"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[
    #if !defined __GNUC__ || defined __clang__
    #error no GCC
    #endif]], [])], [], [PINRAIL_LTO=])
  CXXFLAGS="$pinrail_save"
  AS_CASE([" $CXXFLAGS"], [*" -O0"*|*" -flto"*|*" -fno-lto"*], [PINRAIL_LTO=])
  AS_IF([test "x$pinrail_debug$pinrail_sanitize$enable_static_components" != xnonono], [PINRAIL_LTO=])
  AS_IF([test "x$PINRAIL_LTO" = x], [AC_MSG_RESULT([no])], [AC_MSG_RESULT([yes])])
  AC_SUBST([PINRAIL_LTO])
])

# A build inside another package: libpinrail_embedded.la and, unless they are built in, the components; no tools, no
# tests, no manual pages. Embedders get these options from PINRAIL_SETUP below.
AC_DEFUN([PINRAIL_OPTION_EMBEDDED], [
  AC_ARG_ENABLE([embedded], [AS_HELP_STRING([--enable-embedded],
    [build only what another package links in: libpinrail_embedded.la])], [], [enable_embedded=no])
  AC_ARG_WITH([symbol-prefix], [AS_HELP_STRING([--with-symbol-prefix=PREFIX],
    [with --enable-embedded: all names begin with PREFIX, and parameters are read from PREFIX_MCA_<name>, too])],
    [], [with_symbol_prefix=])
  AS_CASE([$with_symbol_prefix], [yes|no], [with_symbol_prefix=],
    [[*[!a-zA-Z0-9_]*|[0-9]*]], [AC_MSG_ERROR([--with-symbol-prefix=$with_symbol_prefix is no beginning of a C name])])
  AS_IF([test "x$with_symbol_prefix" != x && test "x$enable_embedded" = xno],
    [AC_MSG_ERROR([--with-symbol-prefix is for --enable-embedded])])
  AM_CONDITIONAL([EMBEDDED], [test "x$enable_embedded" != xno])
  AS_IF([test "x$enable_embedded" != xno], [
    PINRAIL_EMBEDDED_CPPFLAGS='-include $(top_builddir)/pinrail_rename.h'
    pinrail_environment=`AS_ECHO(["${with_symbol_prefix%_}"]) | tr '[[:lower:]]' '[[:upper:]]'`
    AS_IF([test "x$with_symbol_prefix" != x], [
      AC_DEFINE_UNQUOTED([PINRAIL_ENVIRONMENT_PREFIX], ["${pinrail_environment}_MCA_"],
        [what the environment's stronger names of parameters begin with])])
    AS_IF([test "x${enable_static_components-default}" = xdefault], [enable_static_components=yes])
    with_gtest=no; with_benchmark=no; with_ucx=no; with_openmpi=no; with_libfabric=no; with_cuda=no; enable_pages=no
  ])
  AC_SUBST([PINRAIL_EMBEDDED_CPPFLAGS])
  AC_SUBST([PINRAIL_SYMBOL_PREFIX_TEXT], [$with_symbol_prefix])
])

AC_DEFUN([PINRAIL_OPTION_SANITIZE], [
  AC_ARG_ENABLE([sanitizer],
    [AS_HELP_STRING([--enable-sanitizer=LIST], [build everything with -fsanitize=LIST (thread; address,undefined)])],
    [], [enable_sanitizer=no])
  pinrail_sanitize=$enable_sanitizer
  AS_IF([test "x$enable_sanitizer" != xno], [
    PINRAIL_SANITIZE="-fsanitize=$enable_sanitizer -fno-omit-frame-pointer -fno-sanitize-recover=undefined"
  ], [
    PINRAIL_NO_UNDEFINED="-Wl,--no-undefined"  # the sanitizers' run-time symbols come from the program
  ])
  AC_SUBST([PINRAIL_SANITIZE])
  AC_SUBST([PINRAIL_NO_UNDEFINED])
])

# PINRAIL_THIRD_PARTY(name, option, header, library, function, what, [name for pkg-config, if it is not the option])
# Sets pinrail_have_<name>, HAVE_<NAME> (conditional and define) and <NAME>_LIBS.
AC_DEFUN([PINRAIL_THIRD_PARTY], [
  AC_ARG_WITH([$2], [AS_HELP_STRING([--without-$2], [$6])], [], [with_$2=check])
  pinrail_have_$1=no
  AS_IF([test "x$with_$2" != xno], [
    AC_CHECK_HEADER([$3], [
      m4_if([$4], [], [pinrail_have_$1=yes], [
        AC_CHECK_LIB([$4], [$5], [pinrail_have_$1=yes; AC_SUBST(m4_toupper([$1])[_LIBS], [-l$4])])])])
    AS_IF([test "x$with_$2" = xyes && test "x$pinrail_have_$1" = xno],
      [AC_MSG_ERROR([--with-$2 was asked for, but $3 or its library is missing])])
  ])
  AS_IF([test "x$pinrail_have_$1" = xyes], [
    AC_DEFINE([HAVE_]m4_toupper([$1]), [1], [$6])
    pinrail_version=`${PKG_CONFIG:-false} --modversion m4_if([$7], [], [$2], [$7]) 2>/dev/null`
    pinrail_third_parties="${pinrail_third_parties:+$pinrail_third_parties, }$2${pinrail_version:+ $pinrail_version}"
  ])
  AM_CONDITIONAL([HAVE_]m4_toupper([$1]), [test "x$pinrail_have_$1" = xyes])
])

# The library is loaded at run time, so that its headers are enough.
AC_DEFUN([PINRAIL_WITH_VERBS], [
  PINRAIL_THIRD_PARTY([verbs], [verbs], [infiniband/verbs.h], [ibverbs], [ibv_get_device_list],
    [RDMA devices by libibverbs], [libibverbs])])
AC_DEFUN([PINRAIL_WITH_URING], [
  dnl 2.2 has the calls that are used.
  PINRAIL_THIRD_PARTY([uring], [uring], [liburing.h], [uring], [io_uring_register_buffers_sparse],
    [io_uring registered buffers], [liburing])])
AC_DEFUN([PINRAIL_WITH_HWLOC], [
  PINRAIL_THIRD_PARTY([hwloc], [hwloc], [hwloc.h], [hwloc], [hwloc_topology_init], [the machine's shape by hwloc])])
AC_DEFUN([PINRAIL_WITH_LZMA], [
  PINRAIL_THIRD_PARTY([lzma], [lzma], [lzma.h], [lzma], [lzma_stream_decoder], [compressed traces by liblzma], [liblzma])])

# They consist of header files. Without both of them the tools, and the tests that need them, are left out.
AC_DEFUN([PINRAIL_WITH_TOOLS], [
  PINRAIL_THIRD_PARTY([json], [json], [nlohmann/json.hpp], [], [], [the tools' JSON by nlohmann's library], [nlohmann_json])
  PINRAIL_THIRD_PARTY([cli11], [cli11], [CLI/CLI.hpp], [], [], [the tools' command lines by CLI11], [CLI11])
  pinrail_have_tools=no
  AS_IF([test "x$pinrail_have_json$pinrail_have_cli11$enable_embedded" = xyesyesno], [
    pinrail_have_tools=yes
    AC_DEFINE([HAVE_TOOLS], [1], [pinrail_info and pinrail_perf are built])])
  AM_CONDITIONAL([HAVE_TOOLS], [test "x$pinrail_have_tools" = xyes])
])

# The screen of pinrail_top.
AC_DEFUN([PINRAIL_WITH_NCURSES], [
  PINRAIL_THIRD_PARTY([ncurses], [ncurses], [ncurses.h], [ncurses], [initscr], [pinrail_top, whose screen ncurses draws])])

# Manual pages of section 3 and the site, made from the headers and the documents. They are not a part of the tarball: what
# is in there does not depend on the machine that made it.
AC_DEFUN([PINRAIL_OPTION_PAGES], [
  AC_ARG_ENABLE([pages], [AS_HELP_STRING([--disable-pages],
    [do not make manual pages of section 3 and the site, also where Doxygen and Python 3 are found])],
    [], [enable_pages=check])
  AC_ARG_VAR([DOXYGEN], [Doxygen, 1.9 or later])
  AC_ARG_VAR([PYTHON3], [Python 3.6 or later])
  AC_PATH_PROG([DOXYGEN], [doxygen])
  AC_PATH_PROG([PYTHON3], [python3])
  pinrail_have_pages=no
  AS_IF([test "x$enable_pages" != xno && test -n "$DOXYGEN" && test -n "$PYTHON3"], [pinrail_have_pages=yes])
  AS_IF([test "x$enable_pages" = xyes && test "x$pinrail_have_pages" = xno],
    [AC_MSG_ERROR([--enable-pages was asked for, but doxygen or python3 is missing])])
  AM_CONDITIONAL([PAGES], [test "x$pinrail_have_pages" = xyes])
])

AC_DEFUN([PINRAIL_WITH_GTEST], [
  PINRAIL_THIRD_PARTY([gtest], [gtest], [gtest/gtest.h], [], [], [tests by GoogleTest])
  GTEST_LIBS="-lgtest -lgmock -lpthread"
  AC_SUBST([GTEST_LIBS])
])

# The driver library is opened at run time, and base/cuda/cuda_driver.h declares what is used of it. Only one test reads
# cuda.h, and compares the two.
AC_DEFUN([PINRAIL_WITH_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR],
    [CUDA toolkit in DIR: a test compares the declarations of the driver with its cuda.h])], [], [with_cuda=check])
  pinrail_have_cuda_h=no
  AS_IF([test "x$with_cuda" != xno], [
    AS_CASE([$with_cuda], [yes|check], [pinrail_cuda_dir=/usr/local/cuda], [pinrail_cuda_dir=$with_cuda])
    AS_IF([test -r "$pinrail_cuda_dir/include/cuda.h"],
      [pinrail_have_cuda_h=yes; CUDA_TOOLKIT_CPPFLAGS="-isystem $pinrail_cuda_dir/include -DPINRAIL_HAVE_CUDA_H=1"],
      [AC_CHECK_HEADER([cuda.h], [pinrail_have_cuda_h=yes; CUDA_TOOLKIT_CPPFLAGS="-DPINRAIL_HAVE_CUDA_H=1"])])
    AS_IF([test "x$with_cuda" != xcheck && test "x$pinrail_have_cuda_h" = xno],
      [AC_MSG_ERROR([--with-cuda was asked for, but there is no cuda.h in $pinrail_cuda_dir/include])])
  ])
  AC_SUBST([CUDA_TOOLKIT_CPPFLAGS])
])

# The benchmark library, and UCX, which test/bench measures beside Pinrail. Only test/bench uses them.
AC_DEFUN([PINRAIL_WITH_BENCHMARK], [
  PINRAIL_THIRD_PARTY([benchmark], [benchmark], [benchmark/benchmark.h], [], [], [benchmarks by Google Benchmark])
  AC_SUBST([BENCHMARK_LIBS], ["-lbenchmark -lpthread"])
])
AC_DEFUN([PINRAIL_WITH_UCX], [
  PINRAIL_THIRD_PARTY([ucx], [ucx], [ucs/memory/rcache.h], [ucs], [ucs_rcache_create], [UCX, to be measured])])

# libfabric's registration cache can receive memory events from Pinrail: contrib/libfabric.
AC_DEFUN([PINRAIL_WITH_LIBFABRIC], [
  AS_IF([test "x$with_libfabric" != xno], [AC_CHECK_HEADER([rdma/fi_ext.h], [AC_COMPILE_IFELSE([AC_LANG_PROGRAM(
    [[#include <rdma/fabric.h>
      #include <rdma/fi_domain.h>
      #include <rdma/fi_ext.h>]],
    [[return sizeof(struct fid_mem_monitor) + sizeof(((struct fi_ops_fabric*)0)->domain2) == 0;]])], [], [
    pinrail_libfabric_why="; it is too old: it has no struct fid_mem_monitor, or no fi_ops_fabric.domain2"
    AS_IF([test "x$with_libfabric" = xyes], [AC_MSG_ERROR([--with-libfabric was asked for$pinrail_libfabric_why])])
    with_libfabric=no])])])
  PINRAIL_THIRD_PARTY([fabric], [libfabric], [rdma/fi_ext.h], [fabric], [fi_getinfo], [Pinrail's monitor for libfabric])
  # libfabric loads the hook provider into programs that are built without a sanitizer.
  AM_CONDITIONAL([FABRIC_HOOK],
    [test "x$pinrail_have_fabric" = xyes && test "x$pinrail_sanitize" = xno && test "x$enable_shared" != xno])
])

# PINRAIL_TRY_OPENMPI(OPTIONS): whether its headers compile with them, and its library is there.
AC_DEFUN([PINRAIL_TRY_OPENMPI], [
  AS_UNSET([ac_cv_header_opal_mca_rcache_base_base_h])
  CPPFLAGS="$pinrail_saved_CPPFLAGS $OPENMPI_CPPFLAGS $1"
  pinrail_saved_LDFLAGS=$LDFLAGS
  LDFLAGS="$LDFLAGS $pinrail_openmpi_folders"
  AC_LANG_PUSH([C])
  AC_CHECK_HEADER([opal/mca/rcache/base/base.h],
    [AC_CHECK_LIB([open-pal], [opal_init],
      [pinrail_have_openmpi=yes; OPENMPI_LIBS="$pinrail_openmpi_folders -lopen-pal"; OPENMPI_CPPFLAGS="$OPENMPI_CPPFLAGS $1"])],
    [], [[#include <opal_config.h>]])
  AC_LANG_POP([C])
  LDFLAGS=$pinrail_saved_LDFLAGS
])

# Open MPI's developer headers lie in a folder of its own. contrib/openmpi and test/bench use them.
AC_DEFUN([PINRAIL_WITH_OPENMPI], [
  AC_ARG_WITH([openmpi], [AS_HELP_STRING([--with-openmpi=DIR], [Open MPI with developer headers in DIR: component for it, and benchmark])],
    [], [with_openmpi=check])
  pinrail_have_openmpi=no
  AS_IF([test "x$with_openmpi" != xno], [
    AS_CASE([$with_openmpi],
      [yes|check], [pinrail_openmpi_dir=/usr/lib/`$CXX -print-multiarch 2>/dev/null`/openmpi/include],
      [pinrail_openmpi_dir=$with_openmpi
       # Its library, rather than that of another Open MPI.
       for pinrail_folder in "$with_openmpi/../lib64" "$with_openmpi/../lib"; do
         AS_IF([test -d "$pinrail_folder"], [pinrail_openmpi_folders="$pinrail_openmpi_folders -L$pinrail_folder"])
       done])
    OPENMPI_CPPFLAGS="-isystem $pinrail_openmpi_dir -isystem $pinrail_openmpi_dir/openmpi"
    pinrail_saved_CPPFLAGS=$CPPFLAGS
    # It is compiled: the headers of Debian 13 (Open MPI 5.0.7) include PMIx's, and some that are not installed.
    PINRAIL_TRY_OPENMPI([])
    pinrail_fetched=`"$srcdir/contrib/openmpi/get" headers --cached 2>/dev/null`
    AS_IF([test "x$pinrail_have_openmpi" = xno && test -n "$pinrail_fetched"], [
      pinrail_pmix=`${PKG_CONFIG:-false} --cflags-only-I pmix 2>/dev/null | sed 's/-I */-isystem /g'`
      PINRAIL_TRY_OPENMPI([-isystem $pinrail_fetched $pinrail_pmix])])
    pinrail_openmpi_major=`printf '#include "opal_config.h"\n#include "opal/version.h"\nmajor OPAL_MAJOR_VERSION\n' |
      $CC $CPPFLAGS -E -P - 2>/dev/null | tr '\n' ' ' | sed -n 's/.*major  *\([[0-9]]*\).*/\1/p'`
    AS_IF([test "x$pinrail_have_openmpi" = xno && test -e "$pinrail_openmpi_dir/openmpi/opal_config.h"],
      [pinrail_openmpi_why="; its developer headers are there, but do not compile: contrib/openmpi/get headers fetches what Debian's libopenmpi-dev leaves out, then configure again"])
    CPPFLAGS=$pinrail_saved_CPPFLAGS
    AS_IF([test "x$with_openmpi" != xcheck && test "x$pinrail_have_openmpi" = xno],
      [AC_MSG_ERROR([--with-openmpi was asked for, but $pinrail_openmpi_dir has no developer headers that compile, or libopen-pal is missing])])
  ])
  AC_SUBST([OPENMPI_CPPFLAGS])
  AC_SUBST([OPENMPI_LIBS])
  AC_SUBST([OPENMPI_MPI_LIBS], ["$pinrail_openmpi_folders -lmpi -lpthread"])
  # A component is loaded into programs that are built without a sanitizer.
  pinrail_openmpi_component=$pinrail_have_openmpi
  AS_IF([test "x$pinrail_sanitize" != xno], [pinrail_openmpi_component=no])
  # Open MPI's component is a shared object, and the library has to be one, too.
  AS_IF([test "x$pinrail_openmpi_component$enable_shared" = xyesno], [
    pinrail_openmpi_component=no
    pinrail_openmpi_why="; contrib/openmpi is left out, for --disable-shared was asked for"])
  AM_CONDITIONAL([OPENMPI_COMPONENT], [test "x$pinrail_openmpi_component" = xyes])
  # The headers of Open MPI 5 leave a C linkage open, and it links its own grdma into its library.
  AM_CONDITIONAL([OPENMPI_IN_CXX], [test "x$pinrail_have_openmpi" = xyes && test "${pinrail_openmpi_major:-0}" -lt 5])
  AM_CONDITIONAL([OPENMPI_TAKEOVER], [test "${pinrail_openmpi_major:-0}" -ge 5])
])

# A preload library: it must be a shared object, and programs that load it are built without a sanitizer.
AC_DEFUN([PINRAIL_WITH_PINRUN], [
  AM_CONDITIONAL([PINRUN],
    [test "x$pinrail_have_verbs" = xyes && test "x$enable_shared" != xno && test "x$pinrail_sanitize" = xno])
])

# Which components are built, and the table of those that are linked in.
AC_DEFUN([PINRAIL_COMPONENTS], [
  pinrail_components="mpool_grdma mpool_mrall mpool_odp mpool_gpusm mpool_rgpusm rcache_vma registrar_mlock"
  pinrail_components="$pinrail_components monitor_external monitor_patcher monitor_uffd"
  pinrail_components="$pinrail_components registrar_cuda_ipc monitor_cuda"
  AS_IF([test "x$pinrail_have_uring" = xyes], [pinrail_components="$pinrail_components registrar_iouring"])
  AS_IF([test "x$pinrail_have_verbs" = xyes], [pinrail_components="$pinrail_components registrar_verbs"])
  pinrail_component_kind=DSO
  PINRAIL_STATIC_LIST=""
  AS_IF([test "x$enable_static_components" = xyes], [
    pinrail_component_kind="built in"
    PINRAIL_STATIC_LIST="$pinrail_components"
  ])
  AC_SUBST([PINRAIL_STATIC_LIST])
  # What a program needs besides libpinrail.a.
  PINRAIL_PRIVATE_LIBS="$HWLOC_LIBS"
  AS_IF([test "x$enable_static_components" = xyes], [PINRAIL_PRIVATE_LIBS="$PINRAIL_PRIVATE_LIBS $URING_LIBS"])
  PINRAIL_PRIVATE_LIBS="$PINRAIL_PRIVATE_LIBS $LIBS -lstdc++ -lpthread -ldl"
  AC_SUBST([PINRAIL_PRIVATE_LIBS])
])

# ---- for embedders: a package with autoconf, automake and libtool that has Pinrail's sources in a folder --------------
#
#   m4_include([pinrail/contrib/m4/pinrail.m4])      configure.ac, or -I in ACLOCAL_AMFLAGS
#   PINRAIL_SYMBOL_PREFIX([foo_])
#   PINRAIL_SETUP([pinrail])                         before AC_OUTPUT
#   PINRAIL_AM_CONDITIONALS
#
#   SUBDIRS = pinrail .                              Makefile.am
#   libfoo_la_CPPFLAGS = $(PINRAIL_EMBEDDED_CPPFLAGS)
#   libfoo_la_LIBADD = $(PINRAIL_EMBEDDED_LIBADD)
#   libfoo_la_DEPENDENCIES = $(PINRAIL_EMBEDDED_LIBADD)
#
#   libfoo_la_LDFLAGS = -Wl,-z,nodelete -Wl,--version-script=...     hooks and ending threads run its code until the end;
#                                                                    a map keeps templates of the C++ library in
#
# The package's code includes <pinrail/pinrail.h> and calls pinrail_init(); the symbol is foo_pinrail_init. Two such
# libraries with different prefixes can be in one process. Parameters are read from PINRAIL_MCA_<name> and, stronger,
# FOO_MCA_<name>.

# PINRAIL_SYMBOL_PREFIX(prefix). Without it names are as they are.
AC_DEFUN([PINRAIL_SYMBOL_PREFIX], [m4_define([pinrail_symbol_prefix_text], [$1])])

# PINRAIL_SETUP(folder, [more options of its configure]). The components are built in unless the user says
# --disable-static-components. The package links by a C++ compiler or with -lstdc++: libpinrail_embedded.la says so.
AC_DEFUN([PINRAIL_SETUP], [
  m4_ifndef([pinrail_symbol_prefix_text], [m4_define([pinrail_symbol_prefix_text], [])])
  AC_CONFIG_SUBDIRS([$1])
  AC_CONFIG_COMMANDS_PRE([ac_configure_args="$ac_configure_args --enable-embedded dnl
m4_if(pinrail_symbol_prefix_text, [], [], [--with-symbol-prefix=]pinrail_symbol_prefix_text) $2"])
  PINRAIL_EMBEDDED_CPPFLAGS='-include $(top_builddir)/$1/pinrail_rename.h -I$(top_srcdir)/$1/framework/include'
  PINRAIL_EMBEDDED_LIBADD='$(top_builddir)/$1/libpinrail_embedded.la'
  AC_SUBST([PINRAIL_EMBEDDED_CPPFLAGS])
  AC_SUBST([PINRAIL_EMBEDDED_LIBADD])
  pinrail_is_set_up=yes
])

# After PINRAIL_SETUP, which may stand inside an "if" of the shell.
AC_DEFUN([PINRAIL_AM_CONDITIONALS], [AM_CONDITIONAL([PINRAIL_EMBEDDED], [test "x$pinrail_is_set_up" = xyes])])
