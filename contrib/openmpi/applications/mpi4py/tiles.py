# SPDX-License-Identifier: BSD-3-Clause
# Tiles of one large array, of 4 to 256 KiB, which are sent from where they lie, in random order, to the same place at
# the neighbour.
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
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
