// SPDX-License-Identifier: BSD-3-Clause
// sized.h - a struct of the C interface that says its size, for calls that fill it.
#ifndef PINRAIL_TEST_SUPPORT_SIZED_H
#define PINRAIL_TEST_SUPPORT_SIZED_H

namespace pinrail::test {

template <typename T>
T sized() {
  T it{};
  it.size = sizeof(it);
  return it;
}

}  // namespace pinrail::test

#endif
