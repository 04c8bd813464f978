// SPDX-License-Identifier: BSD-3-Clause
// replay.cc - repeats the calls of a recorded program on its registration cache.
#include "contrib/tools/perf/replay.h"

#include <cmath>
#include <cstdio>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

constexpr size_t kLooks = 400;  // at the pool's figures in a replay

TraceSpan span_of(const TraceRecord& record) { return {record.addr, record.addr + record.size}; }

// Calls call() and adds its nanoseconds to the sum.
template <typename Call>
pinrail_status_t timed(uint64_t* sum, Call call) {
  const uint64_t begin = now_ns();
  const pinrail_status_t status = call();
  *sum += now_ns() - begin;
  return status;
}

double cost_of(const CostModel& cost, const Replayed& figures) {
  return cost.ms(figures.device.calls, figures.device.pages);
}

double time_of(const Replayed& figures) { return static_cast<double>(figures.device.register_ns) / 1e6; }

double ratio(double one, double other) { return other > 0 ? one / other : 0; }

template <typename Figure>
double mean(const std::vector<ReplayedTrace>& replayed, Figure figure) {
  double sum = 0;
  for (const ReplayedTrace& each : replayed) sum += std::log(figure(each));
  return std::exp(sum / static_cast<double>(replayed.size()));  // 0 if a figure is 0
}

Result replay_file(const Options& options, const std::string& file, ReplayedTrace* replayed) {
  Trace trace;
  Result read = read_trace(file, &trace);
  if (!read.ok()) return read;
  replayed->trace = file;
  replayed->program = trace.program;
  if (trace.missing != 0)
    fprintf(stderr, "pinrail_perf: trace %s: %s\n", file.c_str(), missing_text(trace.missing).c_str());
  Result ran = replay_trace(options, trace, &replayed->pool, &replayed->figures);
  if (ran.ok() && options.compare) {
    Options exactly = options;
    exactly.exact = true;
    PoolFacts pool;
    ran = replay_trace(exactly, trace, &pool, &replayed->exact.emplace());
  }
  return ran.ok() ? Result::good() : Result::bad("trace " + file + ": " + ran.why());
}

}  // namespace

Messages::Messages(std::set<std::string> silent) : said_(std::move(silent)) { pinrail_set_message_function(say, this); }

Messages::~Messages() { pinrail_set_message_function(nullptr, nullptr); }

void Messages::say(void* messages_pointer, int, const char* channel, const char* message) {
  auto* const messages = static_cast<Messages*>(messages_pointer);
  std::istringstream lines(message);
  std::string topic, line;
  std::getline(lines, topic);
  const std::lock_guard<std::mutex> guard(messages->mutex_);
  const bool is_help = lines.peek() != EOF;
  if (is_help && !messages->said_.insert(std::string(channel) + " " + topic).second) return;
  fprintf(stderr, "[pinrail:%s] %s\n", channel, topic.c_str());
  while (std::getline(lines, line)) fprintf(stderr, "  %s\n", line.c_str());
}

Replay::Replay(const Session& session, Touch touch, Errors* errors)
    : session_(session), errors_(errors), bytes_(session.registrar_name(), errors), memory_(touch) {}

Result Replay::run(const Trace& trace) {
  Result mapped = memory_.map(trace);
  if (!mapped.ok()) return mapped;
  const size_t stride = 1 + trace.records.size() / kLooks;
  for (size_t i = 0; i < trace.records.size(); i++) {
    step(trace.records[i]);
    if (i % stride != 0) continue;
    check_limit(trace.records[i], i);
    progress_.show("pinrail: replaying", i, trace.records.size());
  }
  check_limit(trace.records.back(), trace.records.size() - 1);
  figures_.stats = session_.stats();
  figures_.device = session_.device_calls();
  figures_.bytes_checked = bytes_.said();
  figures_.compared_bytes = bytes_.compared_bytes();
  figures_.unchecked_bytes = bytes_.unchecked_bytes();
  if (is_exceeded(figures_.stats, figures_.stats.peak_registered_bytes))
    fail(trace.records.back(), "more was registered in between than the size_limit allows");
  release_rest();
  progress_.erase();
  return Result::good();
}

void Replay::step(const TraceRecord& record) {
  switch (record.op) {
    case TraceOp::reg:
    case TraceOp::find: return take(record);
    case TraceOp::dereg: return release(record);
    case TraceOp::invalidate: return invalidate(record);
    case TraceOp::evict: return evict(record);
    case TraceOp::repeated: return;  // notes an error of the recorded program; not replayed
  }
}

void Replay::take(const TraceRecord& record) {
  const bool find = record.op == TraceOp::find;
  if (!find && record.id < 0 && !memory_.has(span_of(record))) return;
  void* const addr = memory_.at(record.addr);
  pinrail_mpool_t* const pool = session_.pool();
  pinrail_handle_t handle = {};
  if (!find) memory_.touch(span_of(record));
  figures_.calls += find ? 0 : 1;
  const pinrail_status_t status = timed(&figures_.nanoseconds, [&] {
    return find ? pinrail_mpool_find(pool, addr, record.size, record.access, &handle)
                : pinrail_mpool_register(pool, addr, record.size, record.access, record.flags, &handle);
  });
  if (status == PINRAIL_SUCCESS)
    keep(record, handle);
  else if (is_refusal(status) && !find)
    refuse(record, status);
  else if (!find || status != PINRAIL_ERR_NOT_FOUND)
    fail(record, pinrail_status_name(status));
}

void Replay::keep(const TraceRecord& record, pinrail_handle_t handle) {
  bytes_.check(
      {memory_.at(record.addr), record.size, record.access, memory_.changed_at(span_of(record)), memory_.changes()},
      handle);
  if (record.id >= 0)
    held_.emplace(record.id, handle);
  else
    drop(record, handle);  // it failed in the recording, so no D line will release it
}

// An id without a handle belongs to a call that was refused or found nothing here.
void Replay::release(const TraceRecord& record) {
  const auto found = held_.find(record.id);
  if (found == held_.end()) return;
  const pinrail_handle_t handle = found->second;
  held_.erase(found);
  drop(record, handle);
}

void Replay::drop(const TraceRecord& record, pinrail_handle_t handle) {
  const pinrail_status_t status = timed(&figures_.nanoseconds, [&] { return pinrail_mpool_deregister(handle); });
  if (status != PINRAIL_SUCCESS) fail(record, std::string("deregister: ") + pinrail_status_name(status));
}

void Replay::invalidate(const TraceRecord& record) {
  figures_.reports++;
  for (const Piece& piece : memory_.to_report(span_of(record))) {
    timed(&figures_.nanoseconds, [&] {
      pinrail_monitor_report(reinterpret_cast<void*>(piece.base), piece.length);
      return PINRAIL_SUCCESS;
    });
  }
  const Result remapped = memory_.remap(span_of(record));
  if (!remapped.ok()) fail(record, remapped.why());
}

void Replay::evict(const TraceRecord& record) {
  const pinrail_status_t status = timed(&figures_.nanoseconds, [&] { return pinrail_mpool_evict(session_.pool()); });
  if (status == PINRAIL_SUCCESS)
    figures_.evicted++;
  else if (status != PINRAIL_ERR_NOT_FOUND)
    fail(record, std::string("evict: ") + pinrail_status_name(status));
}

void Replay::refuse(const TraceRecord& record, pinrail_status_t status) {
  const uint64_t pages = round_up(record.addr + record.size, page_size()) - round_down(record.addr, page_size());
  const Refusal refusal = explain_refusal(session_, status, pages, held_bytes());
  if (refusal.legitimate)
    figures_.refused++;
  else
    fail(record, refusal.why);
}

void Replay::check_limit(const TraceRecord& record, size_t index) {
  const pinrail_mpool_stats_t stats = session_.stats();
  figures_.samples.push_back({index, stats.registered_bytes, stats.evictions, stats.invalidations});
  if (is_exceeded(stats, stats.registered_bytes))
    fail(record, text("%s are registered, the limit is %s", size_text(stats.registered_bytes).c_str(),
                      size_text(stats.size_limit).c_str()));
}

void Replay::release_rest() {
  for (const auto& [id, handle] : held_) {
    const pinrail_status_t status = pinrail_mpool_deregister(handle);
    if (status != PINRAIL_SUCCESS)
      errors_->add(
          text("releasing id %lld after the end: %s", static_cast<long long>(id), pinrail_status_name(status)));
  }
  held_.clear();
}

uint64_t Replay::held_bytes() const {
  std::unordered_set<const pinrail_registration_t*> seen;
  uint64_t bytes = 0;
  for (const auto& [id, handle] : held_) bytes += seen.insert(handle.reg).second ? handle.reg->length : 0;
  return bytes;
}

void Replay::fail(const TraceRecord& record, const std::string& what) {
  errors_->add(text("line %u (%c): %s", record.line, static_cast<char>(record.op), what.c_str()));
}

double ReplayedTrace::cost_ratio(const CostModel& cost) const {
  return exact ? ratio(cost_of(cost, figures), cost_of(cost, *exact)) : 0;
}

double ReplayedTrace::time_ratio() const { return exact ? ratio(time_of(figures), time_of(*exact)) : 0; }

Means means_of(const CostModel& cost, const std::vector<ReplayedTrace>& replayed) {
  return {mean(replayed, [&](const ReplayedTrace& each) { return cost_of(cost, each.figures); }),
          mean(replayed, [&](const ReplayedTrace& each) { return time_of(each.figures); }),
          mean(replayed, [&](const ReplayedTrace& each) { return each.cost_ratio(cost); }),
          mean(replayed, [&](const ReplayedTrace& each) { return each.time_ratio(); })};
}

// Adds the last check: a pool whose registrations are released can be destroyed.
Result replay_trace(const Options& options, const Trace& trace, PoolFacts* pool_out, Replayed* figures_out) {
  Session session;
  const Result opened = session.open(options);
  if (!opened.ok()) return opened;
  *pool_out = session.facts();
  Errors errors;
  Replay replay(session, options.touch, &errors);
  const Result ran = replay.run(trace);
  if (!ran.ok()) return ran;
  const Result closed = session.close();
  if (!closed.ok()) errors.add(closed.why());
  *figures_out = replay.figures();
  figures_out->errors = errors.count();
  return Result::good();
}

Result replay_all(const Options& options, std::vector<ReplayedTrace>* replayed_out) {
  const Messages messages;
  for (const std::string& file : options.traces) {  // before the first one has taken its time
    if (access(file.c_str(), R_OK) != 0) return Result::bad(text("trace %s: %s", file.c_str(), errno_text().c_str()));
  }
  for (const std::string& file : options.traces) {
    const Result ran = replay_file(options, file, &replayed_out->emplace_back());
    if (ran.ok()) continue;
    fprintf(stderr, "pinrail_perf: %s\n", ran.why().c_str());
    replayed_out->pop_back();
  }
  return Result::good();
}

}  // namespace pinrail::perf
