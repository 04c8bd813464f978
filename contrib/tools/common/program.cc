// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "contrib/tools/common/text.h"

namespace pinrail::tools {
namespace {

constexpr int kWrongUsage = 2;

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* /*app*/) const override { return ""; }  // make_usage() prints it
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = "Usage: " + name + " [OPTION]...";
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional()) usage += " " + option->get_name(true, false);
    }
    return usage + "\n\n" + wrapped(app->get_description(), "");
  }
  std::string make_footer(const CLI::App* app) const override { return wrapped(app->get_footer(), ""); }
  std::string make_option(const CLI::Option* option, bool /*is_positional*/) const override {
    std::string names = option->get_name(false, true);
    if (const size_t comma = names.find(','); comma != std::string::npos) names.insert(comma + 1, " ");
    if (!option->get_type_name().empty()) names += " " + option->get_type_name();
    return "  " + names + "\n" + wrapped(option->get_description(), "        ");
  }
};

bool is_parameter_name(const std::string& name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !name.empty() && name.find_first_not_of(kLetters) == std::string::npos;
}

// A number is decimal digits; CLI11 would also accept signs, blanks and other bases.
std::optional<uint64_t> number_in(const std::string& typed) {
  uint64_t number = 0;
  const char* const last = typed.data() + typed.size();
  const auto [end, error] = std::from_chars(typed.data(), last, number);
  return error == std::errc() && end == last ? std::optional(number) : std::nullopt;
}

}  // namespace

struct CommandLine::Parser {
  CLI::App app;
  Pairs* mca;
};

std::vector<pinrail_setting_t> settings_of(const Pairs& mca) {
  std::vector<pinrail_setting_t> settings;
  for (const auto& [name, value] : mca) settings.push_back({name.c_str(), value.c_str()});
  return settings;
}

pinrail_status_t init(const std::vector<pinrail_setting_t>& given, const std::vector<pinrail_setting_t>& defaults) {
  // Where the environment or a file asks for recordings, programs are meant.
  std::vector<pinrail_setting_t> settings = {{"mpool_base_record", ""}};
  settings.insert(settings.end(), given.begin(), given.end());
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings_from = "the command line";
  options.settings = settings.data();
  options.setting_count = settings.size();
  options.defaults = defaults.data();
  options.default_count = defaults.size();
  return pinrail_init(&options);
}

CommandLine::CommandLine(std::string program, const char* purpose, const char* notes, Pairs* mca_out)
    : program_(std::move(program)), parser_(new Parser{CLI::App(purpose, program_), mca_out}) {
  CLI::App& app = parser_->app;
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(notes);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_help_flag("-h,--help", "Print this text.");
  app.set_version_flag("-V,--version", program_ + " " + pinrail_version(), "Print the library's version.");
  pairs("--mca", "NAME VALUE", "Set a parameter, as a program does by pinrail_init(). May be repeated.", mca_out);
}

CommandLine::~CommandLine() = default;

void CommandLine::flag(const char* names, const char* help, bool* out) { parser_->app.add_flag(names, *out, help); }

void CommandLine::value(const char* names, const char* what, const char* help, Take take) {
  const auto check = [names, take = std::move(take)](const std::string& typed) {
    const std::string why = take(typed);
    if (!why.empty()) throw CLI::ValidationError(names, why);
  };
  parser_->app.add_option_function<std::string>(names, check, help)->type_name(what);
}

void CommandLine::argument(const char* name, const char* help, Take take) {
  value(name, "", help, std::move(take));
  parser_->app.get_option(name)->required();
}

void CommandLine::text(const char* names, const char* what, const char* help, std::string* out) {
  value(names, what, help, [out](const std::string& typed) {
    *out = typed;
    return typed.empty() ? "its value is empty" : "";
  });
}

void CommandLine::texts(const char* names, const char* what, const char* help, std::vector<std::string>* out) {
  const auto check = [](const std::string& typed) { return typed.empty() ? "its value is empty" : ""; };
  parser_->app.add_option(names, *out, help)
      ->type_name(what)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Validator(check, ""));
}

void CommandLine::bounded(const char* names, const char* what, const char* help, uint64_t least, uint64_t most,
                          std::function<void(uint64_t)> take) {
  value(names, what, help, [least, most, take = std::move(take)](const std::string& typed) -> std::string {
    const std::optional<uint64_t> number = number_in(typed);
    if (!number || *number < least || *number > most)
      return "\"" + typed + "\" is no number from " + std::to_string(least) + " to " + std::to_string(most);
    take(*number);
    return "";
  });
}

void CommandLine::pairs(const char* names, const char* what, const char* help, Pairs* out) {
  parser_->app.add_option(names, *out, help)
      ->type_name(what)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);  // one pair each time: what follows is no part of it
}

void CommandLine::exclude(const char* name, const char* other) {
  parser_->app.get_option(name)->excludes(parser_->app.get_option(other));
}

void CommandLine::need(const char* name, const char* other) {
  parser_->app.get_option(name)->needs(parser_->app.get_option(other));
}

int CommandLine::refuse(const std::string& why, std::ostream& err) const {
  err << program_ << ": " << why << "\nTry " << program_ << " --help.\n";
  return kWrongUsage;
}

std::optional<int> CommandLine::read(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  try {
    parser_->app.parse(argc, argv);
    for (const auto& [name, value] : *parser_->mca) {
      if (!is_parameter_name(name)) throw CLI::ValidationError("--mca", "\"" + name + "\" is not a parameter's name");
    }
  } catch (const CLI::Success& asked) {
    parser_->app.exit(asked, out, err);
    return 0;
  } catch (const CLI::ArgumentMismatch& wrong) {
    const std::string name = std::string(wrong.what()).substr(0, std::string(wrong.what()).find(':'));
    return refuse(name + " is followed by " + parser_->app.get_option(name)->get_type_name(), err);
  } catch (const CLI::ParseError& wrong) {
    return refuse(wrong.what(), err);
  }
  return std::nullopt;
}

int close_output(const char* program, int status) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return status;
  std::cerr << program << ": the output cannot be written\n";
  return status != 0 ? status : 1;
}

Misses misses_of(const pinrail_mpool_stats_t& stats) {
  Misses misses;
  for (uint32_t reason = 0; reason < misses.size(); ++reason) misses[reason] = pinrail_stats_misses(&stats, reason);
  return misses;
}

std::vector<uint32_t> reasons_of(const Misses& misses) {
  std::vector<uint32_t> order;
  for (uint32_t reason = 0; reason < misses.size(); ++reason) {
    if (misses[reason] != 0) order.push_back(reason);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return misses[a] > misses[b]; });
  return order;
}

std::string reasons_text(const Misses& misses, size_t most) {
  const uint64_t all = std::accumulate(misses.begin(), misses.end(), uint64_t{0});
  std::string out;
  for (const uint32_t reason : reasons_of(misses)) {
    if (most-- == 0) break;
    out +=
        (out.empty() ? "" : ", ") + std::string(pinrail_miss_reason_text(reason)) + " " + percent(misses[reason], all);
  }
  return out.empty() ? "-" : out;
}

std::string reason_key(uint32_t reason) {
  const auto is_of = [reason](const pinrail_stat_info_t& stat) {
    return stat.offset == offsetof(pinrail_mpool_stats_t, misses_cold) + reason * sizeof(uint64_t);
  };
  for (size_t i = 0; pinrail_stat_at(i) != nullptr; ++i) {
    if (is_of(*pinrail_stat_at(i))) return pinrail_stat_at(i)->name + sizeof("misses_") - 1;
  }
  return "?";
}

}  // namespace pinrail::tools
