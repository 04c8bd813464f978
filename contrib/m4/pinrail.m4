# SPDX-License-Identifier: BSD-3-Clause
# pinrail.m4 - options and third parties of Pinrail's configure.

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
  AS_IF([test "x$pinrail_have_json$pinrail_have_cli11" = xyesyes], [
    pinrail_have_tools=yes
    AC_DEFINE([HAVE_TOOLS], [1], [pinrail_info and pinrail_perf are built])])
  AM_CONDITIONAL([HAVE_TOOLS], [test "x$pinrail_have_tools" = xyes])
])

# Loaded at run time, only while monitors patch functions, so that its headers are enough. 4.0 has the calls that are used.
AC_DEFUN([PINRAIL_WITH_ZYDIS], [
  PINRAIL_THIRD_PARTY([zydis], [zydis], [Zydis/Zydis.h], [Zydis], [ZydisDecoderDecodeFull],
    [reading code by Zydis before it is patched])])

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
  PINRAIL_THIRD_PARTY([fabric], [libfabric], [rdma/fi_ext.h], [fabric], [fi_getinfo], [Pinrail's monitor for libfabric])])

# Open MPI's developer headers lie in a folder of its own. contrib/openmpi and test/bench use them.
AC_DEFUN([PINRAIL_WITH_OPENMPI], [
  AC_ARG_WITH([openmpi], [AS_HELP_STRING([--with-openmpi=DIR], [Open MPI with developer headers in DIR: component for it, and benchmark])],
    [], [with_openmpi=check])
  pinrail_have_openmpi=no
  AS_IF([test "x$with_openmpi" != xno], [
    AS_CASE([$with_openmpi],
      [yes|check], [pinrail_openmpi_dir=/usr/lib/`$CXX -print-multiarch 2>/dev/null`/openmpi/include],
      [pinrail_openmpi_dir=$with_openmpi])
    OPENMPI_CPPFLAGS="-isystem $pinrail_openmpi_dir -isystem $pinrail_openmpi_dir/openmpi"
    pinrail_saved_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $OPENMPI_CPPFLAGS"
    # It is compiled, because the headers of Debian 13 (Open MPI 5.0.7) include one that is not installed.
    AC_CHECK_HEADER([opal/mca/rcache/base/base.h],
      [AC_CHECK_LIB([open-pal], [opal_init], [pinrail_have_openmpi=yes; OPENMPI_LIBS=-lopen-pal])],
      [], [[#include <opal_config.h>]])
    CPPFLAGS=$pinrail_saved_CPPFLAGS
    AS_IF([test "x$with_openmpi" != xcheck && test "x$pinrail_have_openmpi" = xno],
      [AC_MSG_ERROR([--with-openmpi was asked for, but $pinrail_openmpi_dir has no developer headers that compile, or libopen-pal is missing])])
  ])
  AC_SUBST([OPENMPI_CPPFLAGS])
  AC_SUBST([OPENMPI_LIBS])
  AC_SUBST([OPENMPI_MPI_LIBS], ["-lmpi -lpthread"])
  AM_CONDITIONAL([HAVE_OPENMPI], [test "x$pinrail_have_openmpi" = xyes])
  # A component is loaded into programs that are built without a sanitizer.
  pinrail_openmpi_component=$pinrail_have_openmpi
  AS_IF([test "x$pinrail_sanitize" != xno], [pinrail_openmpi_component=no])
  # Open MPI's component is a shared object, and the library has to be one, too.
  AS_IF([test "x$pinrail_openmpi_component$enable_shared" = xyesno], [
    pinrail_openmpi_component=no
    pinrail_openmpi_why="; contrib/openmpi is left out, for --disable-shared was asked for"])
  AM_CONDITIONAL([OPENMPI_COMPONENT], [test "x$pinrail_openmpi_component" = xyes])
])

# A preload library: it must be a shared object, and programs that load it are built without a sanitizer.
AC_DEFUN([PINRAIL_WITH_PINRUN], [
  AM_CONDITIONAL([PINRUN],
    [test "x$pinrail_have_verbs" = xyes && test "x$enable_shared" != xno && test "x$pinrail_sanitize" = xno])
])

# Which components are built, and the table of those that are linked in.
AC_DEFUN([PINRAIL_COMPONENTS], [
  pinrail_components="mpool_grdma mpool_gpusm mpool_rgpusm rcache_vma registrar_mlock"
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
