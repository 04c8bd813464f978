// SPDX-License-Identifier: BSD-3-Clause
// screen.h - the figures on a terminal, drawn anew each second by ncurses.
#ifndef PINRAIL_TOOLS_TOP_SCREEN_H
#define PINRAIL_TOOLS_TOP_SCREEN_H

namespace pinrail::top {

// Runs until the user leaves. pid 0: all processes of this user. Returns the exit status.
int run_screen(int pid, unsigned interval_ms);

}  // namespace pinrail::top

#endif
