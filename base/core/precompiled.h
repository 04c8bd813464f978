// SPDX-License-Identifier: BSD-3-Clause
// precompiled.h - headers of the system that many sources read. Makefile.am precompiles them and puts them before every
// source. A source includes its room's main header, and what it uses that this does not include: it compiles without
// this file.
#ifndef PINRAIL_BASE_CORE_PRECOMPILED_H
#define PINRAIL_BASE_CORE_PRECOMPILED_H

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#endif
