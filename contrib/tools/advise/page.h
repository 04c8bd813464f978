// SPDX-License-Identifier: BSD-3-Clause
// page.h - one HTML file with the advice, the pictures and the parameters; it loads nothing else.
#ifndef PINRAIL_TOOLS_ADVISE_PAGE_H
#define PINRAIL_TOOLS_ADVISE_PAGE_H

#include <string>
#include <vector>

#include "contrib/tools/advise/trials.h"

namespace pinrail::advise {

std::string page_of(const std::vector<Advised>& all, const perf::CostModel& cost);

}  // namespace pinrail::advise

#endif
