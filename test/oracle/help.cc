// SPDX-License-Identifier: BSD-3-Clause
#include <cstdio>

#include "test/oracle/options.h"

namespace pinrail::oracle {

void print_help() {
  std::fputs(
      "Usage: oracle [OPTION]...\n"
      "\n"
      "Does to memory whatever a process can do to it, from several threads, while buffers in that memory are\n"
      "registered through Pinrail with leave_pinned 1, and compares each byte that the device sees through a\n"
      "registration with what the processor sees, in both directions. One pool has no limit, one evicts.\n"
      "\n"
      "  --seconds N, --minutes N  how long; default: a minute\n"
      "  --threads N       1 to 64; default: one for each processor, 2 to 8\n"
      "  --monitor LIST    Pinrail's parameter \"monitor\"; default: Pinrail's own. \"none\": nobody reports "
      "anything;\n"
      "                    such a run must find differences, or it proves nothing\n"
      "  --mutant EVENT    the event happens, but no monitor tells of it, nor of what is mapped in its place: such a\n"
      "                    run must find differences, and ends with the third one\n"
      "  --mutant list     names these events\n"
      "  --registrar NAME  iouring (default) or verbs: what can move bytes as a device\n"
      "  --raw             also events by raw system calls, which only some monitors see\n"
      "  --events LIST     only these events, with commas between them\n"
      "  --largest KIB     the largest buffer, 64 to 16384; default: 1024\n"
      "  --size-limit KIB  of the pool that evicts, 1024 or more; default: 8192\n"
      "  --seed N          for what is drawn at random; default: by the clock. With several threads the same seed\n"
      "                    draws the same again, but the system decides who comes first.\n"
      "  --mca NAME VALUE  a parameter of Pinrail\n"
      "  --help            this text\n"
      "\n"
      "Each kind of event must have happened to memory that was cached, and that was registered again afterwards at\n"
      "the same address: 1,000 times in ten minutes or more, in shorter runs in proportion. A run that\n"
      "lacks some when its time is up goes on, at most as long again. Events that this kernel\n"
      "or libc lacks are named as skipped. Not fired, for no monitor sees them or not all do: open-truncate and\n"
      "what begins with ring-, unless --events names them.\n"
      "\n"
      "Exit status: 0 if there was no difference; 1 if there was one (with --mutant that is what is hoped for), if a\n"
      "kind of event did not happen often enough, or if a call failed; 2 for wrong usage, or if Pinrail refuses to\n"
      "start in this way; 77 if this machine does not let memory be pinned, or lacks the mutant's event.\n",
      stdout);
}

}  // namespace pinrail::oracle
