// SPDX-License-Identifier: BSD-3-Clause
// pinrail_top - hit rates, misses and their reasons, of the processes of this user that use Pinrail.
#include <ncurses.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "contrib/tools/common/program.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/top/top.h"

namespace pinrail::top {
namespace {

using Clock = std::chrono::steady_clock;

class Screen {
 public:
  Screen(int pid, unsigned interval_ms) : pid_(pid), interval_ms_(interval_ms) {}

  void run() {
    sample();
    for (bool goes_on = true; goes_on;) {
      draw();
      timeout(static_cast<int>(interval_ms_));
      const int key = getch();
      goes_on = key == ERR ? is_terminal_there() : take_key(key);
      if (!is_frozen_ && seconds_since_sample() * 1000 >= 0.9 * interval_ms_) sample();
    }
  }

 private:
  double seconds_since_sample() const { return std::chrono::duration<double>(Clock::now() - sampled_).count(); }

  void sample() {
    before_ = std::move(now_);
    seconds_ = seconds_since_sample();
    sampled_ = Clock::now();
    now_ = read_pools(pid_, true);  // with ranges, which may be opened when the figures are frozen
    sort();
  }

  double key_of(const Pool& pool) const {
    switch (order_) {
      case 'h': return -pool.hit_rate();
      case 'm': return rates_of(pool, before_, seconds_).misses;
      case 'b': return static_cast<double>(pool.registered_bytes);
      case 'u': return static_cast<double>(pool.figures.held_bytes);
      case 'e': return rates_of(pool, before_, seconds_).evictions;
      case 'r': return rates_of(pool, before_, seconds_).registrar_ns;
      case 'l': return static_cast<double>(pool.figures.longest_call_ns);
      default: return -pool.pid;
    }
  }
  // The largest first; of the hit rate the smallest one.
  void sort() {
    std::stable_sort(now_.begin(), now_.end(), [&](const Pool& a, const Pool& b) { return key_of(a) > key_of(b); });
    const auto chosen = std::find_if(now_.begin(), now_.end(), [&](const Pool& pool) { return pool.file == chosen_; });
    if (chosen == now_.end()) chosen_ = now_.empty() ? 0 : now_.front().file;
  }

  // Without it getch() returns at once. A program that ignores SIGHUP is not told otherwise.
  static bool is_terminal_there() {
    pollfd terminal{STDIN_FILENO, 0, 0};
    return poll(&terminal, 1, 0) <= 0;
  }
  // False: the user leaves.
  bool take_key(int key) {
    switch (key) {
      case 'q': return false;
      case ' ': is_frozen_ = !is_frozen_; break;
      case '\n':
      case KEY_ENTER: is_open_ = true; break;
      case 27: is_open_ = false; break;
      case KEY_UP: move(-1); break;
      case KEY_DOWN: move(1); break;
      case KEY_PPAGE: move(-rows()); break;
      case KEY_NPAGE: move(rows()); break;
      case 'h':
      case 'm':
      case 'b':
      case 'u':
      case 'e':
      case 'r':
      case 'l':
      case 'p':
        order_ = key;
        sort();
        break;
      default: break;
    }
    return true;
  }
  void move(int by) {
    for (size_t i = 0; i < now_.size(); ++i) {
      if (now_[i].file != chosen_) continue;
      const auto last = static_cast<int>(now_.size()) - 1;
      chosen_ = now_[static_cast<size_t>(std::clamp(static_cast<int>(i) + by, 0, last))].file;
      return;
    }
  }

  static void put(int line, const std::string& text, int attribute = A_NORMAL) {
    if (line >= LINES) return;
    attrset(attribute);
    mvaddnstr(line, 0, text.c_str(), COLS);
  }

  void draw() {
    erase();
    put(0, sum_line(now_, before_, seconds_) + (is_frozen_ ? "; frozen" : ""), A_BOLD);
    put(1, is_open_ ? "Esc back  space freeze  q quit"
                    : "q quit  Enter open  space freeze   sort: h hit rate  m misses  b bytes  u held  e evictions  "
                      "r registrar  l longest call  p pid");
    const auto chosen = std::find_if(now_.begin(), now_.end(), [&](const Pool& pool) { return pool.file == chosen_; });
    if (now_.empty()) {
      put(3, "No process of this user has a Pinrail pool.");
    } else if (is_open_ && chosen != now_.end()) {
      draw_pool(*chosen);
    } else {
      draw_list();
    }
    refresh();
  }
  static int rows() { return std::max(LINES - kFirstRow, 1); }
  // The chosen one is among those that fit.
  void draw_list() {
    const auto is_chosen = [&](const Pool& pool) { return pool.file == chosen_; };
    const auto at = static_cast<int>(std::find_if(now_.begin(), now_.end(), is_chosen) - now_.begin());
    const int most = std::max(static_cast<int>(now_.size()) - rows(), 0);
    first_ = std::clamp(first_, std::clamp(at - rows() + 1, 0, most), std::min(at, most));
    put(kFirstRow - 1, head_line(), A_REVERSE);
    for (int row = 0; row < rows() && first_ + row < static_cast<int>(now_.size()); ++row) {
      const Pool& pool = now_[static_cast<size_t>(first_ + row)];
      std::string line = pool_line(pool, rates_of(pool, before_, seconds_));
      if (is_chosen(pool)) line[0] = '>';
      put(kFirstRow + row, line, is_chosen(pool) ? A_BOLD : A_NORMAL);
    }
  }
  void draw_pool(const Pool& pool) const {
    const Rates rates = rates_of(pool, before_, seconds_);
    int line = 3;
    put(line++, head_line(), A_REVERSE);
    put(line++, pool_line(pool, rates), A_BOLD);
    put(++line, "registrar " + pool.registrar + ", monitors " + pool.monitors + ", size_limit " +
                    bytes_text(pool.figures.size_limit));
    put(++line, use_line(pool));
    put(++line, std::to_string(pool.counts.hits) + " hits, " + std::to_string(pool.misses) + " misses, " +
                    std::to_string(pool.evictions()) + " evictions, " + std::to_string(pool.figures.memory_events) +
                    " memory events that ended " + std::to_string(pool.figures.invalidations) + " registrations, " +
                    std::to_string(pool.figures.refusals) + " refusals");
    line += 2;
    put(line++, "WHY MISSES", A_REVERSE);
    for (const uint32_t reason : tools::reasons_of(pool.reasons)) {
      put(line++, tools::text("%-22s %12" PRIu64 " %10.1f/s", pinrail_miss_reason_text(reason), pool.reasons[reason],
                              rates.reasons[reason]));
    }
    put(++line, "COSTLIEST RANGES of the last events", A_REVERSE);
    for (const CostlyRange& range : pool.ranges) {
      put(++line, tools::text("%#18" PRIx64 " +%-8s %8" PRIu64 " misses, last: %s", range.base,
                              bytes_text(range.length).c_str(), range.misses, pinrail_miss_reason_text(range.reason)));
    }
  }

  static constexpr int kFirstRow = 4;
  const int pid_;
  const unsigned interval_ms_;
  int first_ = 0;  // of the list, on the screen
  std::vector<Pool> now_, before_;
  Clock::time_point sampled_ = Clock::now();
  double seconds_ = 0;
  int order_ = 'm';
  uint64_t chosen_ = 0;
  bool is_open_ = false, is_frozen_ = false;
};

}  // namespace

int run_screen(int pid, unsigned interval_ms) {
  initscr();
  const std::shared_ptr<void> terminal(nullptr, [](void*) { endwin(); });  // also where memory runs out
  cbreak();
  noecho();
  keypad(stdscr, TRUE);
  set_escdelay(25);
  curs_set(0);
  Screen(pid, interval_ms).run();
  return 0;
}

}  // namespace pinrail::top

namespace {

using namespace pinrail::top;

struct Options {
  bool once = false, json = false;
  int pid = 0;
  unsigned interval_ms = 1000;
  int port = -1;
  pinrail::tools::Pairs mca;
};

int end_of(const Options& options, bool has_any) {
  if (has_any) return 0;
  if (options.pid != 0)
    std::cerr << "pinrail_top: process " << options.pid << " has no pool, or is not of this user";
  else
    std::cerr << "pinrail_top: no process of this user has a pool; one is there from the first transfer on";
  std::cerr << "; before Linux 5.1, without memfd_create or without /proc none is seen\n";
  return 1;
}

// Two samples, so that the figures of a second are known.
int print_once(const Options& options) {
  const std::vector<Pool> before = read_pools(options.pid, false);
  std::this_thread::sleep_for(std::chrono::milliseconds(options.interval_ms));
  const std::vector<Pool> now = read_pools(options.pid, false);
  if (!now.empty()) std::cout << head_line() << '\n';
  for (const Pool& pool : now) std::cout << pool_line(pool, rates_of(pool, before, options.interval_ms / 1e3)) << '\n';
  return end_of(options, !now.empty());
}

int show(const Options& options) {
  if (options.port >= 0) return serve(static_cast<uint16_t>(options.port), options.pid);
  if (options.json) {
    const std::vector<Pool> pools = read_pools(options.pid, true);
    std::cout << json_text(pools);
    return end_of(options, !pools.empty());
  }
  const bool is_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  return options.once || !is_terminal ? print_once(options) : run_screen(options.pid, options.interval_ms);
}

int run(int argc, char** argv) {
  Options options;
  pinrail::tools::CommandLine line(
      "pinrail_top", "Shows hit rates, misses and their reasons, of the processes of this user that use Pinrail.",
      "Exit status: 0; 1: no process of this user has a pool, or the port cannot be had; 2: invalid command line.",
      &options.mca);
  line.flag("--once", "print one table and end; this is the default where there is no terminal", &options.once);
  line.flag("--json", "print one JSON document and end, with the costliest ranges", &options.json);
  line.number("--pid", "PID", "of this process alone", 1, INT32_MAX, &options.pid);
  line.number("--interval", "MS", "milliseconds between two samples; 1000", 50, 3600000, &options.interval_ms);
  line.number("--listen", "PORT", "serve a page for Prometheus on 127.0.0.1; 0: any free port", 0, 65535,
              &options.port);
  line.exclude("--once", "--json");
  line.exclude("--listen", "--json");
  line.exclude("--listen", "--once");
  const std::optional<int> status = line.read(argc, argv, std::cout, std::cerr);
  return status ? *status : show(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return pinrail::tools::close_output("pinrail_top", run(argc, argv));
  } catch (const std::exception& failure) {  // out of memory
    std::cerr << "pinrail_top: " << failure.what() << '\n';
    return 1;
  }
}
