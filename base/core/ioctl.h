// SPDX-License-Identifier: BSD-3-Clause
// ioctl.h - ioctl() with the kernel's numbers of requests, which have 32 bits and are unsigned: musl's takes an int.
#ifndef PINRAIL_BASE_CORE_IOCTL_H
#define PINRAIL_BASE_CORE_IOCTL_H

#include <sys/ioctl.h>

namespace pinrail {

template <typename T>
int ioctl_of(int file, unsigned long request, T* argument) {
#ifdef __GLIBC__
  return ioctl(file, request, argument);
#else
  return ioctl(file, static_cast<int>(request), argument);
#endif
}

}  // namespace pinrail

#endif
