# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures the codec of kept traces on raw traces of some runs, beside zstd of the raw records."""

import glob
import os
import re
import subprocess

import ways
import workloads
from running import ROOT, Broken, sh

CODEC = os.path.join(ROOT, "target/release/examples/codec")
# Records of each trace: a block and a half at least.
RECORDS = 10_000_000
DOCUMENTATION = os.path.join(ROOT, "target/guest/linux/Documentation")
LISTED = "/usr/lib/python3", "/usr/share"
LINE = re.compile(
    r"^(.+): ([\d.]+) bytes a record, encoded in ([\d.]+) ns, decoded in ([\d.]+) ns$"
)


def traced(command, *options):
    """Returns a function that makes the raw trace of a program."""

    def make(place):
        kept = [*ways.vbts_trace(None)(place)[:-1], *options, "--", *command(place.work)]
        ran(kept)

    return make


def boot(place):
    """Makes the raw trace of the boot of our kernel."""
    kept = os.path.join(place.work, "boot.btrace")
    line = "quiet panic=-1 mitigations=off -- plain /init"
    machine = ["--accel", "soft", "--memory", ways.MEMORY + "M", "--kernel", ways.KERNEL]
    machine += ["--initrd", place.initrd, "--append", line]
    # The guest's program finds no root, and ends the machine.
    ran([ways.VBTS, "run", *machine, "--record", kept])
    ran([ways.VBTS, "report", "raw", kept, "--output", place.trace])
    os.unlink(kept)


def ran(command):
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-1500:]}")


def workload(key, size):
    (found,) = (w for w in workloads.WORKLOADS if w.key == key)
    return traced(lambda work: found.command(work, size))


def program(work, size):
    """Returns a file with the first `size` bytes of a compiler."""
    path = os.path.join(work, f"program-{size}")
    with open(workloads.compiler(), "rb") as f, open(path, "wb") as part:
        part.write(f.read(size))
    return path


def documentation(work, size):
    """Returns a file with `size` bytes of the text that people have written about the kernel."""
    path = os.path.join(work, f"documentation-{size}")
    pages = sorted(glob.iglob("**/*.rst", root_dir=DOCUMENTATION, recursive=True))
    with open(path, "wb") as text:
        for page in pages:
            with open(os.path.join(DOCUMENTATION, page), "rb") as f:
                text.write(f.read(size - text.tell()))
        if text.tell() < size:
            raise Broken(f"{DOCUMENTATION} has no {size} bytes")
    return path


TRACES = [
    ("hot integer loop", workload("hot", 60)),
    ("gzip -9", workload("gzip", 400_000)),
    (
        "gzip -9 of documentation",
        traced(lambda work: workloads.gzip(documentation(work, 800_000))),
    ),
    ("gzip -9 of a program", traced(lambda work: workloads.gzip(program(work, 400_000)))),
    ("Python script", workload("python", 30)),
    ("cc1 -O2", workload("cc1", 2)),
    (
        "ls -lR, user and kernel",
        traced(
            lambda _: ["/bin/ls", "-lR", *LISTED],
            "--scope",
            "all",
            "--max-records",
            str(RECORDS),
        ),
    ),
    ("boot of our kernel", boot),
]


def measure(place, runs, skip, say):
    """Returns for each trace a dictionary: for each way to keep it, a list of its size in bytes a
    record, and of the ns a record to encode and to decode, for each run.
    """
    sh(*"cargo build --quiet --release --locked -p vbts-trace --example codec".split())
    figures = {}
    for title, make in TRACES:
        try:
            make(place)
        except Broken as why:
            skip(f"codec, {title}", why)
            continue
        found = {}
        for _ in range(runs):
            said = subprocess.run(
                [CODEC, place.trace, str(RECORDS)], stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            for line in said.splitlines():
                way, *values = LINE.match(line).groups()
                found.setdefault(way, []).append([float(value) for value in values])
        os.unlink(place.trace)
        figures[title] = found
        say(f"codec, {title}: {found['btrace'][0]}")
    return figures
