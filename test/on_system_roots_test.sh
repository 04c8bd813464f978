#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# on_system_roots_test.sh - contrib/workshop/on-system removes no root folder that a run uses.
set -u
. "${srcdir:-$(dirname "$0")/..}/test/support/script.sh"
command -v flock >/dev/null || { echo "SKIP: flock is not installed"; exit 77; }
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
for ((i = 0; i < 500; ++i)); do
  [[ ! -e /proc/$waiting/fd/6 ]] || break
  sleep 0.01
done
rmdir "$work/used" && mkdir "$work/used"
exec 5<&-
wait "$waiting"
[[ ! -e $work/result ]] || fail "a root that had been removed was held"
exit $((failures != 0))
