"""Run under mpiexec by test_mpi.py: a command in whose third E-step something happens.

Arguments: what, at which rank (-1: all), and the words of the command.
"""

import os
import signal
import sys

from mpi4py import MPI

import vpem_cli
from vpem.errors import InputError
from vpem.steps import em

WHAT, WHERE = sys.argv[1], int(sys.argv[2])

expect = em.expect
calls = [0]


def fails(*arguments, **options):
    calls[0] += 1
    if calls[0] == 3 and WHERE in (-1, MPI.COMM_WORLD.Get_rank()):
        if WHAT == "input":
            raise InputError("this cannot be used; try that")
        if WHAT == "defect":
            raise ZeroDivisionError("a programmer was here")
        if WHAT == "ready":
            print("ready", flush=True)
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(WHAT)
        if number is not None:
            os.kill(os.getpid(), number)
    return expect(*arguments, **options)


em.expect = fails
vpem_cli.main(sys.argv[3:])
