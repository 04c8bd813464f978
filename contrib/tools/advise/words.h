// SPDX-License-Identifier: BSD-3-Clause
// words.h - what follows from the figures, in sentences and as a page, and the parameters to set.
#ifndef PINRAIL_TOOLS_ADVISE_WORDS_H
#define PINRAIL_TOOLS_ADVISE_WORDS_H

#include <string>
#include <vector>

#include "contrib/tools/advise/trials.h"

namespace pinrail::advise {

// The trial that costs least; the first one if none costs less by more than a fiftieth.
const Trial& best_of(const Advised& advised, const perf::CostModel& cost);

// Each sentence stands for itself.
std::vector<std::string> sentences_of(const Advised& advised, const perf::CostModel& cost);

// The ten places whose registrations cost most, the costliest first.
std::vector<Place> costliest(const Study& study, const perf::CostModel& cost);

// Lines for $HOME/.pinrail/mca-params.conf.
std::string parameters_of(const std::vector<Advised>& all, const perf::CostModel& cost);

std::string page_of(const std::vector<Advised>& all, const perf::CostModel& cost);

}  // namespace pinrail::advise

#endif
