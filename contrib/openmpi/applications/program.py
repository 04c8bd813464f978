# SPDX-License-Identifier: BSD-3-Clause
# program.py linear|amr|tiles - what is done with arrays of numpy's: messages from and into the memory of the program.
import sys

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size


# Power iteration and a transposition with numpy's arrays: Allreduce, Alltoall and a ring of Sendrecv, of MiB each.
def linear():
    rows = 512
    columns = rows * ranks
    block = numpy.fromfunction(lambda i, j: 1.0 / (1.0 + i + rank * rows + j), (rows, columns))

    x = numpy.ones(columns)
    for _ in range(20):
        y = numpy.zeros(columns)
        y[rank * rows : (rank + 1) * rows] = block @ x
        world.Allreduce(MPI.IN_PLACE, y, op=MPI.SUM)
        norm = numpy.linalg.norm(y)
        x = y / norm

    parts = numpy.ascontiguousarray(block.reshape(rows, ranks, rows).transpose(1, 0, 2))
    got = numpy.empty_like(parts)
    for _ in range(10):
        world.Alltoall(parts, got)
    transposed = numpy.concatenate([part.T for part in got], axis=1)

    token = block.copy()
    landed = numpy.empty_like(token)
    for _ in range(ranks * 4):
        world.Sendrecv(token, (rank + 1) % ranks, recvbuf=landed, source=(rank - 1) % ranks)
        token, landed = landed, token
    home = float(numpy.abs(token - block).max())

    asymmetry = world.allreduce(float(numpy.abs(transposed - block).max()), op=MPI.MAX)
    home = world.allreduce(home, op=MPI.MAX)
    if rank == 0:
        print(f"result norm {norm:.12f}")
        print(f"result asymmetry {asymmetry:.3e}")
        print(f"result home {home:.3e}")


# Patches of a mesh that is refined and made coarse again: arrays of 4 KiB to 1 MiB, which come and go, sent to the
# neighbour in each step.
def amr():
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


# Tiles of one large array, of 4 to 256 KiB, which are sent from where they lie, in random order, to the same place at
# the neighbour.
def tiles():
    random = numpy.random.default_rng(11)  # the same on all ranks
    cells = 4 << 20
    field = numpy.arange(cells, dtype=numpy.float64) + rank
    halo = numpy.zeros(cells)

    total = 0.0
    for _ in range(3000):
        length = 512 << int(random.integers(0, 7))
        start = int(random.integers(0, cells // length)) * length
        part = slice(start, start + length)
        world.Sendrecv(field[part], (rank + 1) % ranks, recvbuf=halo[part], source=(rank - 1) % ranks)
        total += float(halo[start] + halo[start + length - 1])

    total = world.allreduce(total, op=MPI.SUM)
    if rank == 0:
        print(f"result tiles {total:.1f}")


{"linear": linear, "amr": amr, "tiles": tiles}[sys.argv[1]]()
