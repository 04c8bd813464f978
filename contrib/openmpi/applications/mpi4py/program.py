# SPDX-License-Identifier: BSD-3-Clause
# Power iteration and a transposition with numpy's arrays: Allreduce, Alltoall and a ring of Sendrecv, of MiB each.
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
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
