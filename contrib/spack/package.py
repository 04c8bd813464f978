# SPDX-License-Identifier: BSD-3-Clause
"""Recipe of Spack. In a repository of yours it is packages/pinrail/package.py; tarball is "make dist"'s."""
from spack.package import *


class Pinrail(AutotoolsPackage):
    """Memory pools and registration caches for RDMA and GPU memory."""

    homepage = "file:///usr/share/doc/pinrail"
    url = "file:///usr/src/pinrail-1.0.0.tar.xz"
    license("BSD-3-Clause")

    version("1.0.0")

    variant("tools", default=True, description="pinrail_info, pinrail_perf, pinrail_top, pinrail_conform")
    variant("verbs", default=True, description="registrar for libibverbs, and pinrun")
    variant("uring", default=True, description="registrar for io_uring")
    variant("static", default=False, description="libpinrail.a, with the components inside")
    variant("openmpi", default=False, description="registration cache of Open MPI 4.1 or 5.0, and pinrail-mpirun-args")
    variant("libfabric", default=False, description="hook provider of libfabric (FI_HOOK=pinrail)")
    variant("pages", default=False, description="manual pages of section 3 and the site")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("hwloc@2:")
    depends_on("xz", when="+tools")
    depends_on("ncurses", when="+tools")
    depends_on("cli11", type="build", when="+tools")
    depends_on("nlohmann-json", type="build", when="+tools")
    depends_on("rdma-core", when="+verbs")
    depends_on("liburing@2.2:", when="+uring")
    depends_on("openmpi@4.1:5.0", when="+openmpi")
    depends_on("libfabric@1.17:", when="+libfabric")
    depends_on("doxygen", type="build", when="+pages")
    depends_on("python@3.6:", type="build", when="+pages")

    conflicts("platform=darwin")
    conflicts("platform=windows")

    def configure_args(self):
        args = ["--with-hwloc", "--without-gtest", "--without-benchmark", "--without-cuda", "--without-ucx"]
        args += self.with_or_without("verbs")
        args += self.with_or_without("uring")
        args += self.with_or_without("cli11", variant="tools")
        args += self.with_or_without("json", variant="tools")
        args += self.with_or_without("lzma", variant="tools")
        args += self.with_or_without("ncurses", variant="tools")
        args += self.with_or_without("libfabric")
        # An Open MPI without its developer headers (--with-devel-headers) ends configure with an error.
        args += ["--with-openmpi=%s" % self.spec["openmpi"].prefix.include if self.spec.satisfies("+openmpi")
                 else "--without-openmpi"]
        args += self.enable_or_disable("pages")
        if self.spec.satisfies("+static"):
            args += ["--enable-static", "--enable-static-components"]
        return args
