# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Counts the host's instructions that vbts executes for each instruction of a guest, and compares
them with those of an earlier commit, which are in instructions.json.

Unlike a time, this number does not depend on the machine's other load. Valgrind counts, so that no
counter of the host's processor is needed. Each figure is the difference of two runs, in which the
boot and the program's start do not count. It depends on the compiler, whose version is kept with
it. It does not show what caches, or another order of the same instructions, would change.
"""

import datetime
import json
import os
import re
import subprocess

import initramfs
import ways
import workloads
from running import ROOT, Broken, guest

FILE = os.path.join(ROOT, "ci/bench.d/instructions.json")
# Part by which a figure may be larger than that of the earlier commit.
LOSS = 0.05
# What PID 1 of the guest does (init.c), and the options of vbts.
WAYS = {
    "untraced": ("plain", []),
    "recorded": ("recorded", []),
    "kept": ("plain", ["--record", "/dev/null"]),
}
# Programs, each with two sizes of its work and the ways to run it. How much the thread that keeps
# records executes depends on when it waits, by 3 % with the kernel's branches of short runs.
PROGRAMS = {
    "hot": ((1, 11), ("untraced", "recorded", "kept")),
    "syscalls": ((1000, 5000), ("untraced", "recorded")),
    "switches": ((500, 2000), ("untraced", "recorded")),
}


def said_by(*command):
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def counted(place, way, program, size):
    """Returns the numbers of instructions that the host and the guest execute in a run. The program
    is in the initramfs: Valgrind hides the vDSO, which the 9P server calls, and makes system calls
    that the filter of vbts does not allow.
    """
    mode, options = WAYS[way]
    log = os.path.join(place.work, "valgrind.log")
    valgrind = "valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null"
    run = "run --sandbox off --accel soft --log debug --memory 256M --kernel"
    sample = guest(
        [
            *(*valgrind.split(), f"--log-file={log}", ways.VBTS, *run.split(), ways.KERNEL),
            *("--initrd", place.initrd, *options),
            *("--append", f"quiet -- {mode} /{program} {size}"),
        ],
        stay=True,
    )
    with open(log, encoding="utf-8", errors="replace") as f:
        found = re.search(r"I +refs: +([\d,]+)", f.read())
    executed = ways.instructions(sample)
    if not found or not executed:
        raise Broken(f"{program}, {way}: no numbers of instructions\n{sample.log[-1500:]}")
    return int(found[1].replace(",", "")), executed


def figures(place, say):
    """Returns for each program and way the host's instructions for one of the guest's."""
    for name in PROGRAMS:
        if name != "hot":
            workloads.compile_c(place.work, name, "-static")
    initramfs.build(place.work, *PROGRAMS)
    found = {}
    for program, (sizes, chosen) in PROGRAMS.items():
        for way in chosen:
            runs = [counted(place, way, program, size) for size in sizes]
            host, executed = (after - before for before, after in zip(*runs))
            found[f"{program}, {way}"] = round(host / executed, 3)
            say(f"{program}, {way}: {host / executed:.3f} ({executed / 1e6:.1f} M instructions)")
    return found


def losses(before, now):
    """Returns a warning for each figure of `now` that is larger than that of `before` by LOSS."""
    for name, figure in now["figures"].items():
        earlier = before["figures"].get(name)
        if earlier and figure > earlier * (1 + LOSS):
            yield (
                f"warning: {name}: {figure} host instructions for one of the guest's, "
                f"{figure / earlier - 1:.1%} more than {earlier} of {before['commit']}"
            )
    if before["rustc"] != now["rustc"]:
        yield f"note: {before['commit']} was compiled by {before['rustc']}"


def measure(place, say, update):
    """Measures this tree, and yields lines about it. With `update`, it takes the earlier commit's
    place in the file.
    """
    now = {
        "commit": said_by("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rustc": said_by("rustc", "--version"),
        "figures": figures(place, say),
    }
    with open(FILE, encoding="utf-8") as f:
        earlier = json.load(f)
    yield json.dumps(now)
    yield from losses(earlier, now)
    if update:
        with open(FILE, "w", encoding="utf-8") as f:
            json.dump(now, f, indent=4)
            f.write("\n")
