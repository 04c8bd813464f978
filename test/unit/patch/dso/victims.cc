// SPDX-License-Identifier: BSD-3-Clause
// An object that is loaded and unloaded.
extern "C" long victim_plain(long a, long b, long c, long d);
long victim_plain(long a, long b, long c, long d) { return a + 2 * b + 3 * c + 4 * d; }
