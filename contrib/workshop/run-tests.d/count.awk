# SPDX-License-Identifier: BSD-3-Clause
# count.awk - reads the log of one test program and prints a line for each result.
#   passed <name>      failed <name>: <why>      skipped <name>: <why>
# -v name=  the program's name    -v status=  PASS, SKIP, or anything else for failed
# A log of GoogleTest counts by its cases, those of several runs together; any other as one. A program that crashed,
# hung, or ended without a result failed.

function result(word, of, why) {
  count[word]++
  print word " " of (why == "" ? "" : ": " why)
}

# The name between the bracket and the time.
function case_name(line) {
  sub(/^.*\] /, "", line)
  sub(/ \([0-9]+ ms\)$/, "", line)
  sub(/, where .*$/, "", line)
  return name " " line
}

function script() {
  if (status == "PASS") result("passed", name)
  else if (status == "SKIP") result("skipped", name, reason == "" ? last : reason)
  else result("failed", name, fail != "" ? fail : last == "" ? "no output" : last)
}

function program(   seen) {
  if (running != "") result("failed", running, "did not end: a crash, or the time was up")
  else if (total == "") result("failed", name, "ended without a summary")
  seen = count["passed"] + count["failed"] + count["skipped"]
  if (total != "" && total != seen) result("failed", name, "has " total " cases, but " seen " were seen to end")
  if (status != "PASS" && status != "SKIP" && count["failed"] == 0)
    result("failed", name, "every case passed, but the program ended with an error (" (outside == "" ? last : outside) ")")
  if (disabled) result("skipped", name, disabled " more, which take long and run only when asked for (DISABLED_)")
}

# The output of a death test's child is not this program's.
/^\[  DEATH   \]/ { next }
{ sub(/\r$/, "") }
/\[==========\] Running/ { gtest = 1 }
/\[ RUN      \] / { running = case_name($0); why = ""; next }
/\[       OK \] .*\([0-9]+ ms\)$/ { result("passed", case_name($0)); running = ""; next }
/\[  FAILED  \] .*\([0-9]+ ms\)$/ { result("failed", case_name($0), why); running = ""; next }
/\[  SKIPPED \] .*\([0-9]+ ms\)$/ { result("skipped", case_name($0), why == "" ? "no reason was given" : why); running = ""; next }
/\[==========\] [0-9]+ tests? from .* ran\./ { sub(/^.*\[==========\] /, ""); total += $0; next }
after_skip { why = $0; after_skip = 0 }
/^ *YOU HAVE [0-9]+ DISABLED TESTS?$/ { disabled = $3; next }
/: Skipped$/ { after_skip = 1 }
/: Failure$/ && why == "" { why = $0 }
/: Failure$/ && running == "" { outside = $0 }  # in no case: what stands around them all
/^FAIL: / { fail = fail (fail == "" ? "" : "; ") substr($0, 7) }  # a script's own line, for each thing that was wrong
!/ \(exit status: [0-9]+\)$/ && /SKIP/ { reason = $0; sub(/^.*SKIP[A-Z]*:? */, "", reason) }
NF && !/ \(exit status: [0-9]+\)$/ { last = $0 }

END {
  if (gtest) program()
  else script()
}
