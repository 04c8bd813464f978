#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""layout.py HEADER... - writes a C++ program that prints the size of each struct of the headers, the offset, size and type of
each field, the value of each enumerator and the type of each public function: one line each, "struct.field offset size
type". The compiler names the types, so that aliases and names of arguments are left out."""
import os
import re
import sys


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def bodies(text, kind):
    """(name, body) of each struct, union or enum; name is "" for an enum without one."""
    for found in re.finditer(r"\b%s\s*(\w*)\s*\{" % kind, text):
        depth, at = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield found.group(1), text[found.end():at - 1]


def fields(body):
    for declaration in body.split(";"):
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
        if pointer:
            yield pointer.group(1)
            continue
        for part in declaration.split(","):
            name = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", part)
            if name:
                yield name.group(1)


def main():
    print("#include <cxxabi.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <typeinfo>")
    lines = []
    for header in sys.argv[1:]:
        print("#include <pinrail/%s>" % os.path.basename(header))
        text = without_comments(open(header).read())
        text = re.sub(r"^#.*?(?<!\\)$", "", text, flags=re.M | re.S)
        for kind in ("struct", "union"):
            for name, body in bodies(text, kind):
                whole = "%s %s" % (kind, name)
                lines.append('  printf("%s %%zu\\n", sizeof(%s));' % (name, whole))
                for field in fields(body):
                    lines.append('  printf("%s.%s %%zu %%zu %%s\\n", offsetof(%s, %s), sizeof(%s::%s), NAME(%s::%s));' %
                                 (name, field, whole, field, name, field, name, field))
        for _, body in bodies(text, "enum"):
            for part in body.split(","):
                name = re.match(r"\s*(\w+)", part)
                if name:
                    lines.append('  printf("%s %%lld\\n", (long long)%s);' % (name.group(1), name.group(1)))
        for function in re.findall(r"^PINRAIL_API\b[^;(]*?(\w+)\s*\(", text, re.M):
            lines.append('  printf("%s() %%s\\n", NAME(%s));' % (function, function))
    print("#define NAME(what) abi::__cxa_demangle(typeid(decltype(what)).name(), nullptr, nullptr, nullptr)")
    print("int main() {\n%s\n  return 0;\n}" % "\n".join(lines))


main()
