# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures how much more two processors of a guest do than one: two loops that have nothing in
common beside one alone.
"""

import os

import ways
import workloads

# Processors take turns on virtual time, and run at the same time on the host's.
CLOCKS = {"virtual time": "virtual", "the host's time": "host"}


def seconds(place, clock, jit, count):
    """The time that `count` loops take by the host's clock, on a guest with two processors."""
    (loop,) = (w for w in workloads.WORKLOADS if w.key == "hot")
    work = place.work
    program = [os.path.join(work, "parallel"), str(count), *loop.command(work, loop.size)]
    run = ways.vbts_run("plain", jit, "--smp", "2", "--clock", clock)
    return run(place, program).seconds


def throughput(place, clock, jit):
    """The work that two processors do in a time, divided by that of one."""
    alone = seconds(place, clock, jit, 1)
    return 2 * alone / seconds(place, clock, jit, 2)


def table(place):
    """Returns what is measured: (name, function that returns a ratio)."""
    return [
        (
            f"vbts, {name}" + (", native code" if jit == "on" else ""),
            lambda clock=clock, jit=jit: throughput(place, clock, jit),
        )
        for jit in ("off", "on")
        for name, clock in CLOCKS.items()
    ]
