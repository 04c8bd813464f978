#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""stub.py HEADER... - writes a C file that defines every public function, empty, and one pointer to each table that crosses
the border: libabigail describes the interface by what this compiles to."""
import os
import re
import sys

TABLES = ["pinrail_component_t", "pinrail_host_t", "pinrail_mpool_ops_t", "pinrail_rcache_ops_t", "pinrail_registrar_ops_t",
          "pinrail_monitor_ops_t", "pinrail_registration_services_t", "pinrail_pool_services_t", "pinrail_mpool_config_t"]


def main():
    print("#pragma GCC diagnostic ignored \"-Wreturn-type\"")
    bodies = []
    for header in sys.argv[1:]:
        print("#include <pinrail/%s>" % os.path.basename(header))
        text = re.sub(r"/\*.*?\*/", " ", open(header).read(), flags=re.S)
        for found in re.finditer(r"^PINRAIL_API\s+([^;]*?)\s*;", text, re.M | re.S):
            bodies.append(" ".join(found.group(1).replace("PINRAIL_MUST_CHECK", "").split()) + " { __builtin_trap(); }")
    print("\n".join(bodies))
    for table in TABLES:
        print("PINRAIL_API %s *border_%s;" % (table, table))


main()
