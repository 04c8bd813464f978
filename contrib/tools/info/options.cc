// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/info/options.h"

namespace pinrail::info {

std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err) {
  Options* const o = options_out;
  tools::CommandLine line(
      "pinrail_info",
      "Shows what this Pinrail is: version, build, what a program would get here, components (and why one is not "
      "used), "
      "and parameters with their values and where these came from.",
      "Exit status: 0; 1 if the library cannot start (it has said why), or the output cannot be written; 2 for a wrong "
      "command line.",
      &o->mca);
  line.flag("-a,--all", "Everything: also all parameters and performance variables.", &o->all);
  line.pairs("--param", "FRAMEWORK COMPONENT",
             "Only the parameters of that component; either may be \"all\". Framework \"mca\" has those of the base, "
             "component \"base\" those of a framework. May be repeated.",
             &o->params);
  line.number("--level", "N",
              "Parameters up to that level, 1 (end user) to 9 (developer); 9 with --all, otherwise 3 unless given.", 1,
              kHighestLevel, &o->level);
  line.flag("--monitors",
            "What each memory monitor sees, tried on this machine event by event, each in a process of its own; takes "
            "some seconds.",
            &o->monitors);
  line.flag("--parsable,--parseable", "One fact a line, fields separated by colons; fields with colons are quoted.",
            &o->parsable);
  line.flag("--json", "One JSON document.", &o->json);
  line.exclude("--json", "--parsable");
  for (const char* const lists : {"--all", "--param", "--level"}) line.exclude("--monitors", lists);
  return line.read(argc, argv, out, err);
}

}  // namespace pinrail::info
