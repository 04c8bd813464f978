#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# pages_test.sh - manual pages of section 3 and the site: Doxygen has nothing to warn of (a public function, type, field or
# constant without a comment, a @param of no such name), each header and each public function has a page, mandoc finds no
# fault in the pages, each document is in the site, and its links lead somewhere. Runs in the build tree. Exit status 77:
# no pages are made here.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
site=contrib/workshop/site
[ -e $site/made ] || { echo "SKIP: without Doxygen and Python 3, or with --disable-pages, no pages are made"; exit 77; }

[ ! -s $site/warnings ] || fail "Doxygen warns: $(head -40 $site/warnings)"

count=0
for header in "$srcdir"/framework/include/pinrail/*.h; do
  name=pinrail_$(basename "$header")
  [ "$name" != pinrail_pinrail.h ] || name=pinrail
  grep -q '^\.SH NAME' "$site/man3/$name.3" 2>/dev/null || fail "${header##*/} has no page man3/$name.3"
  count=$((count + 1))
done
awk '/^internal/ { exit } /^  / { print $1 }' "$srcdir/framework/symbols" >"$work/names"
while read -r name; do
  # A name, what it does in a sentence, its prototype and its description.
  awk -v name="$name" '/^\.SH/ { section = $2 } section == "NAME" && index($0, name " \\- ") == 1 && NF > 3 { named = 1 }
    section == "SYNOPSIS" && index($0, name "(") { declared = 1 } section == "DESCRIPTION" && !/^\./ { described = 1 }
    END { exit !(named && declared && described) }' "$site/man3/$name.3" 2>/dev/null || fail "man3/$name.3 does not describe $name"
  count=$((count + 1))
done <"$work/names"
# "man pinrail_params" shows section 7, about parameters: no page of section 3 has its name.
[ ! -e $site/man3/pinrail_params.3 ] || fail "pinrail_params(3) hides pinrail_params(7)"
[ "$count" -ge 60 ] || fail "only $count pages were wanted: the check is blind"

if command -v mandoc >/dev/null; then
  for page in "$site"/man3/pinrail*.3 "$srcdir"/contrib/man/*.[1-8]; do
    # A page has no date: it would change with each build.
    mandoc -T lint -W warning "$page" 2>&1 | grep -v 'missing date' >"$work/lint"
    [ ! -s "$work/lint" ] || fail "mandoc: $(head -10 "$work/lint")"
  done
else
  echo "the pages' form is not checked: no mandoc"
fi

for document in "$srcdir"/contrib/doc/*.md "$srcdir"/framework/RULES "$srcdir"/NEWS; do
  page=page_$(basename "$document" .md | tr '[:upper:]-' '[:lower:]_').html
  title=$(head -1 "$document" | tr -dc 'A-Za-z ' | sed 's/^ *//' | cut -c1-12)
  tr -dc 'A-Za-z <>\n' <"$site/html/$page" 2>/dev/null | grep -q "$title" || fail "${document##*/} is not in the site ($page)"
done
grep -q 'a registration cache for RDMA' $site/html/index.html || fail "the site does not begin with README"
! grep -l '<script' $site/html/*.html || fail "pages of the site have scripts"
# Each link and picture leads to a file of the site, and to a place in it.
python3 - $site/html >"$work/links" <<'END' || fail "links of the site: $(head -5 "$work/links")"
import os, re, sys
text = {name: open(os.path.join(sys.argv[1], name), encoding="utf-8").read()
        for name in os.listdir(sys.argv[1]) if name.endswith(".html")}
places = {name: set(re.findall(r'(?:id|name)="([^"]+)"', page)) for name, page in text.items()}
links = [(name, link) for name, page in text.items() for link in re.findall(r'(?:href|src)="([^":]+)"', page)]
for name, link in links:
    file, _, place = link.partition("#")
    file = file or name
    if place not in places.get(file, ()) if place else not os.path.exists(os.path.join(sys.argv[1], file)):
        print(name, "leads to", link)
        links = []
sys.exit(len(links) < 100)
END

"$srcdir/contrib/doc/pictures/draw" --check || fail "a picture is not what contrib/doc/pictures/draw makes"

# "make uninstall" takes away what "make install" brought, and nothing of other packages: also in a tree that was
# configured and never built. There its commands run in a folder without pages.
install() { "${MAKE:-make}" --no-print-directory "$@" DESTDIR="$work/root" mandir=/man htmldir=/doc; }
unset MAKEFLAGS MAKELEVEL
install install-data-local >"$work/out" 2>&1 || fail "the pages cannot be installed"
touch "$work/root/man/man3/other.3" "$work/root/doc/html/other"
mkdir "$work/unbuilt"
install -n uninstall-local >"$work/commands" && (cd "$work/unbuilt" && sh -e "$work/commands") >"$work/out" 2>&1 ||
  fail "make uninstall fails in a tree that was not built"
[ -e "$work/root/man/man3/other.3" ] && [ -e "$work/root/doc/html/other" ] ||
  fail "make uninstall in a tree that was not built deletes files of other packages"
install uninstall-local >"$work/out" 2>&1 || fail "make uninstall fails"
left=$(cd "$work/root" && find . -type f | sort | tr '\n' ' ')
[ "$left" = "./doc/html/other ./man/man3/other.3 " ] || fail "make uninstall leaves: $left"

# Whether the first check sees anything: a function and a field without a comment, and a @param of no such name.
mkdir -p "$work/contrib/workshop/site"
cat >"$work/wrong.h" <<'END'
/* SPDX-License-Identifier: BSD-3-Clause
 * wrong.h - what must be warned of. */
/** A struct. */
typedef struct wrong {
  int bare_field;
} wrong_t;
int bare_function(int value);
/** A function.
 * @param other  not its name */
int described_function(int value);
END
sed -e "s|^INPUT  .*|INPUT = $work/wrong.h|" -e '/\\$/d' -e '/^  *\//d' $site/Doxyfile >"$work/Doxyfile"
sed -n 's/^DOXYGEN = //p' Makefile >"$work/doxygen"
(cd "$work" && "$(cat doxygen)" Doxyfile) >"$work/out" 2>&1
for name in bare_field bare_function other; do
  grep -q "$name" "$work/contrib/workshop/site/warnings" || fail "Doxygen does not warn of $name: $(cat "$work/out")"
done
echo "$count pages, $failures failures"
[ "$failures" -eq 0 ]
