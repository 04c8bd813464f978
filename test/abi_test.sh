#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# abi_test.sh - what was published stays: sizes, offsets, values and types of the installed headers, of all arguments, too,
# are those of test/abi/layout, and framework/symbols, the headers and the library have the same public functions, with their
# versions. HACKING says which changes are allowed; "test/abi_test.sh --print" in a build folder writes the present layout to
# standard output.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
include=$srcdir/framework/include
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }

python3 - "$include"/pinrail/*.h >"$work/layout.cc" <<'END' || exit 99
"""HEADER... - writes a C++ program that prints the size of each struct of the headers, the offset, size and type of
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
END
${CXX:-c++} -std=c++17 -I"$include" "$work/layout.cc" -o "$work/layout" || exit 99
"$work/layout" | sort -u >"$work/now"
[ "${1:-}" != --print ] || { cat "$work/now"; exit 0; }

[ "$(wc -l <"$work/now")" -ge 400 ] || fail "only $(wc -l <"$work/now") lines of layout were seen: the check is blind"
case $(getconf LONG_BIT) in
  64)
    sort -u "$srcdir/test/abi/layout" >"$work/published"
    # A struct that begins with its size may grow at its end; new structs, fields and values are new lines.
    comm -13 "$work/now" "$work/published" >"$work/gone"
    while read -r name was type; do
      now=$(awk -v name="$name" '$1 == name { print $2 }' "$work/now")
      case $name in
        *.*) fail "the field $name was $was $type, and is $(grep "^$name " "$work/now" || echo gone)" ;;
        *'()') fail "the function $name was $was $type, and is $(grep "^$name " "$work/now" || echo gone)" ;;
        PINRAIL_*_ABI | PINRAIL_*_MASK | PINRAIL_*_ALL) [ "${now:-0}" -gt "$was" ] || fail "$name was $was, and is ${now:-gone}" ;;
        pinrail_*)
          if ! grep -q "^$name.size 0 " "$work/now" || [ "${now:-0}" -le "$was" ]; then
            fail "$name had $was bytes, and has ${now:-none}: only structs that begin with their size may grow"
          fi
          ;;
        *) fail "$name was $was, and is ${now:-gone}" ;;
      esac
    done <"$work/gone"
    ;;
  *) echo "the published layout is that of 64-bit systems: not compared" ;;
esac

# The public functions: list, headers, library.
awk '/^internal/ { exit } /^  / { print $1 }' "$srcdir/framework/symbols" | sort >"$work/listed"
sed -n 's/() .*//p' "$work/now" | sort >"$work/declared"
for name in $(comm -13 "$work/listed" "$work/declared"); do fail "$name is declared, and not in framework/symbols"; done
for name in $(comm -23 "$work/listed" "$work/declared"); do fail "$name is in framework/symbols, and not declared"; done
library=.libs/libpinrail.so
if [ -e "$library" ]; then
  nm -D --defined-only "$library" | sed -n 's/^[^ ]* [^A] //p' | grep -v '^pinrail_debug_hook_depth' | sort >"$work/exported"
  sed 's/@@.*//' "$work/exported" | comm -23 "$work/listed" - >"$work/missing"
  while read -r name; do fail "$name is not exported"; done <"$work/missing"
  sed 's/@@.*//' "$work/exported" | comm -13 "$work/listed" - >"$work/unlisted"
  while read -r name; do fail "$name is exported, and not in framework/symbols"; done <"$work/unlisted"
  grep -v '@@PINRAIL_[0-9.]*$' "$work/exported" >"$work/bare"
  while read -r name; do fail "$name has no version"; done <"$work/bare"
fi

# refused NAME NUMBERS: the component of an older interface in $work/components is refused in one line, which has both
# numbers; it is not opened, and the others work.
refused() {
  contrib/tools/pinrail_info --parsable --param rcache vma \
    --mca mca_base_component_path "$work/components:components/.libs" >"$work/out" 2>"$work/err" ||
    fail "beside $1, pinrail_info ended with status $?"
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$1 is not refused in one line"
  grep -q "$1.*: $2" "$work/err" || fail "the line about $1 lacks its name or a number"
  grep -q '^mca:rcache:vma:status:SUCCESS' "$work/out" || fail "beside $1, rcache vma does not work"
  rm -f "$work/components"/*.so
}

# older SOURCE NAME: compiles it as that component file.
older() {
  ${CC:-cc} -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE -I"$include" -shared -fPIC -pthread "$1" \
    -o "$work/components/$2.so" || exit 99
}

# Components of an older interface: the skeleton of each framework with the number before the present one, and an index
# with the types of PINRAIL_RCACHE_ABI 2.
if [ -x contrib/tools/pinrail_info ] && [ -e "$library" ] && [ -z "${PINRAIL_SANITIZE:-}" ]; then
  mkdir "$work/components"
  for framework in mpool rcache registrar monitor; do
    number=PINRAIL_$(echo $framework | tr '[:lower:]' '[:upper:]')_ABI
    sed -e 's/@NAME@/older/g' -e "s/$number,/$number - 1,/" "$srcdir/contrib/new-component.d/$framework.c" >"$work/older.c"
    cp "$srcdir"/contrib/new-component.d/*.h "$work"
    older "$work/older.c" "${framework}_older"
    now=$(awk -v name="$number" '$1 == name { print $2 }' "$work/now")
    refused "${framework}_older" "$framework ABI $((now - 1)) (this library: $now)"
  done
  older "$srcdir/test/abi/rcache_2.c" rcache_older
  refused rcache_older "rcache ABI 2 (this library: $(awk '$1 == "PINRAIL_RCACHE_ABI" { print $2 }' "$work/now"))"
fi
[ "$failures" -eq 0 ] && echo "the interface is as it was published"
exit $((failures != 0))
