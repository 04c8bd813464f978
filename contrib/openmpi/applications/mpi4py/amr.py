# SPDX-License-Identifier: BSD-3-Clause
# Patches of a mesh that is refined and made coarse again: arrays of 4 KiB to 1 MiB, which come and go, sent to the
# neighbour in each step.
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
random = numpy.random.default_rng(7)  # the same on all ranks: both sides of a message know its length


def patch_of(length, number):
    return numpy.arange(length, dtype=numpy.float64) * 0.5 + number + rank


patches = [patch_of(int(random.integers(512, 131072)), number) for number in range(64)]
total = 0.0
for step in range(60):
    for place in random.choice(len(patches), 24, replace=False):
        patch = patches[place]
        ghost = numpy.empty_like(patch)
        world.Sendrecv(patch, (rank + 1) % ranks, recvbuf=ghost, source=(rank - 1) % ranks)
        total += float(ghost[::97].sum())
    for place in random.choice(len(patches), 8, replace=False):
        patches[place] = patch_of(int(random.integers(512, 131072)), step)

total = world.allreduce(total, op=MPI.SUM)
if rank == 0:
    print(f"result amr {total:.6f}")
