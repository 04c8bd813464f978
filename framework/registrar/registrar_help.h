// SPDX-License-Identifier: BSD-3-Clause
// registrar_help.h - the framework's help catalogue.
#ifndef PINRAIL_FRAMEWORK_REGISTRAR_REGISTRAR_HELP_H
#define PINRAIL_FRAMEWORK_REGISTRAR_REGISTRAR_HELP_H

namespace pinrail::registrar {

constexpr char kHelp[] =
#include "framework/registrar/registrar_help.txt"
    ;

}  // namespace pinrail::registrar

#endif
