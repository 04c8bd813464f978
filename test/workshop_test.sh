#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# workshop_test.sh - contrib/run-tests counts results: a crash, a leak at the end and a missing summary are failures.
# contrib/workshop/on-system removes no root folder that a run uses, and what was built of a source with the source.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"

# counts WHAT STATUS: the log on standard input.
counts() {
  cat >"$work/log"
  awk -v name=t -v status="$2" -f "$srcdir/contrib/workshop/run-tests.d/count.awk" "$work/log" >"$work/got"
  cmp -s "$work/wanted" "$work/got" && return
  echo "FAIL: $1"
  diff "$work/wanted" "$work/got" | sed 's/^/  | /'
  failures=$((failures + 1))
}
want() { printf '%s\n' "$@" >"$work/wanted"; }

want "passed t A.one" "skipped t A.two: no device" "failed t A.three: x.cc:3: Failure"
counts "one of each" FAIL <<'END'
[==========] Running 3 tests from 1 test suite.
[ RUN      ] A.one
[       OK ] A.one (0 ms)
[ RUN      ] A.two
x.cc:9: Skipped
no device
[  SKIPPED ] A.two (0 ms)
[ RUN      ] A.three
x.cc:3: Failure
[  FAILED  ] A.three (1 ms)
[==========] 3 tests from 1 test suite ran. (1 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.two
[  FAILED  ] 1 test, listed below:
[  FAILED  ] A.three
FAIL t (exit status: 1)
END

want "passed t A.one" "failed t A.two: did not end: a crash, or the time was up"
counts "a crash" FAIL <<'END'
[==========] Running 3 tests from 1 test suite.
[ RUN      ] A.one
[       OK ] A.one (0 ms)
[ RUN      ] A.two
FAIL t (exit status: 139)
END

want "passed t A.one" "failed t: every case passed, but the program ended with an error (LeakSanitizer: 3 bytes)"
counts "a leak that a sanitizer finds at the end" FAIL <<'END'
[==========] Running 1 test from 1 test suite.
[ RUN      ] A.one
[       OK ] A.one (0 ms)
[==========] 1 test from 1 test suite ran. (1 ms total)
[  PASSED  ] 1 test.
LeakSanitizer: 3 bytes
FAIL t (exit status: 1)
END

want "passed t A.one" "failed t: ended without a summary"
counts "an exit between two cases, with status 0" PASS <<'END'
[==========] Running 2 tests from 1 test suite.
[ RUN      ] A.one
noise without an end[       OK ] A.one (0 ms)
END

want "passed t A/B.one/0" "failed t A/B.one/1"
counts "cases with parameters" FAIL <<'END'
[==========] Running 2 tests from 1 test suite.
[ RUN      ] A/B.one/0
[       OK ] A/B.one/0 (0 ms)
[ RUN      ] A/B.one/1
[  FAILED  ] A/B.one/1, where GetParam() = 5 (0 ms)
[==========] 2 tests from 1 test suite ran. (1 ms total)
END

want "passed t A.one" "skipped t: 2 more, which take long and run only when asked for (DISABLED_)"
counts "cases that run only when asked for" PASS <<'END'
[==========] Running 1 test from 1 test suite.
[ RUN      ] A.one
[       OK ] A.one (0 ms)
[==========] 1 test from 1 test suite ran. (1 ms total)
[  PASSED  ] 1 test.

  YOU HAVE 2 DISABLED TESTS

END

want "passed t A.one" "passed t A.one"
counts "a program that is run twice" PASS <<'END'
[==========] Running 1 test from 1 test suite.
[ RUN      ] A.one
[       OK ] A.one (0 ms)
[==========] 1 test from 1 test suite ran. (1 ms total)
[==========] Running 1 test from 1 test suite.
[ RUN      ] A.one
[       OK ] A.one (0 ms)
[==========] 1 test from 1 test suite ran. (1 ms total)
END

want "failed t: has 2 cases, but 0 were seen to end"
counts "cases that were not seen" PASS <<'END'
[==========] Running 2 tests from 1 test suite.
[==========] 2 tests from 1 test suite ran. (1 ms total)
END

want "passed t"
counts "a script" PASS <<'END'
all is well
END
want "failed t: not equal"
counts "a script that fails" FAIL <<'END'
not equal
FAIL test/t (exit status: 1)
END
want "failed t: one is wrong (status 1); two is wrong"
counts "a script that says what was wrong" FAIL <<'END'
FAIL: one is wrong (status 1)
  | its output
FAIL: two is wrong
3 cases, 2 failures
FAIL test/t (exit status: 1)
END
want "skipped t: no registrar works here"
counts "a script that skips" SKIP <<'END'
SKIP: no registrar works here
SKIP test/t (exit status: 77)
END
want "failed t: no output"
counts "silence" FAIL </dev/null

# Root folders.
command -v flock >/dev/null || { echo "SKIP: flock is not installed"; exit $((failures != 0 ? 1 : 77)); }
# shellcheck source=contrib/workshop/on-system.d/roots.sh
. "$srcdir/contrib/workshop/on-system.d/roots.sh"

mkdir "$work"/{used,unused}
touch "$work"/{used,unused}/file
hold_root "$work/used" || fail "a root could not be held"
remove_unused_roots "$work/used" "$work/unused"
[[ -e $work/used/file ]] || fail "a root in use was removed"
[[ ! -e $work/unused ]] || fail "a root that is not in use was kept"
# Two runs use it, and one of them ends.
(hold_root "$work/used") || fail "a root could not be held twice"
remove_unused_roots "$work/used"
[[ -e $work/used/file ]] || fail "a root was removed when one of two runs ended"
exec 6<&-
remove_unused_roots "$work/used"
[[ ! -e $work/used ]] || fail "a root was kept although its run had ended"

! hold_root "$work/unused" || fail "a root that does not exist was held"
# A root is removed, and made anew, while a run waits for its lock.
mkdir "$work/used"
exec 5<"$work/used"
flock -x 5
(exec 5<&- && hold_root "$work/used" && echo held >"$work/result") &
waiting=$!
for ((i = 0; i < 6000; ++i)); do
  [[ ! -e /proc/$waiting/fd/6 ]] || break
  sleep 0.01
done
rmdir "$work/used" && mkdir "$work/used"
exec 5<&-
wait "$waiting"
[[ ! -e $work/result ]] || fail "a root that had been removed was held"

# A source that is another language's now: its object, of the same name, is built anew.
mkdir -p "$work"/tree/build/test/.deps
touch "$work"/tree/{a.c,b.c} "$work"/tree/build/test/{a,b}.{o,lo}
for source in a b; do echo "test/$source.lo: /pinrail/$source.c" >"$work/tree/build/test/.deps/$source.Plo"; done
echo a.c >"$work/removed"
remove_sources "$work/tree" "$work/removed"
left=$(cd "$work/tree" && find . -type f -printf '%P\n' | LC_ALL=C sort | tr '\n' ' ')
[[ $left == "b.c build/test/.deps/b.Plo build/test/b.lo build/test/b.o " ]] || fail "of a removed source there is left: $left"
exit $((failures != 0))
