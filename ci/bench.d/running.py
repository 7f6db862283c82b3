# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs processes with a time limit. They end when the benchmark ends."""

import os
import re
import subprocess
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 600
# Lines of init.c.
BEGIN = re.compile(rb"^bench: begin\r?\n", re.MULTILINE)
STATUS = re.compile(rb"^bench: status (-?\d+)\r?\n", re.MULTILINE)
OUTPUT = re.compile(rb"^bench: output of (\d+) bytes, crc32 ([0-9a-f]{8})\r?\n", re.MULTILINE)


class Broken(Exception):
    """A way of running a program failed, or gave a wrong result."""


@dataclass
class Sample:
    """One run of a program."""

    seconds: float
    output: tuple  # length and CRC-32 of what the program printed
    boot: float = 0.0  # of a guest: seconds to its first program
    log: str = ""  # messages of the tool that ran it


def sh(*args):
    subprocess.run(args, cwd=ROOT, check=True)


def tail(data):
    return data[-1500:].decode(errors="replace").strip()


def limited(process):
    """Starts a timer that kills a process after LIMIT seconds, and returns the timer."""
    timer = threading.Timer(LIMIT, process.kill)
    timer.start()
    return timer


def program(args, good=(0,)):
    """Runs a command, and returns a Sample with its whole time, and its standard output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        with subprocess.Popen(
            args, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        ) as process:
            limit = limited(process)
            try:
                # With a time limit, Python would check only every 50 ms whether the process has
                # ended.
                status = process.wait()
                seconds = time.monotonic() - start
            except BaseException:
                process.kill()
                raise
            finally:
                limit.cancel()
        out.seek(0)
        err.seek(0)
        output, log = out.read(), err.read()
    if status not in good:
        raise Broken(
            f"{' '.join(args)}: exit status {status} after {seconds:.1f} s\n{tail(output + log)}"
        )
    return Sample(
        seconds, (len(output), zlib.crc32(output)), log=log.decode(errors="replace")
    ), output


def until(args, *patterns, stay=False):
    """Runs a machine whose console is its standard output, until all patterns have appeared in that
    order. Then it kills the machine or, with `stay`, waits for its end. Returns the seconds until
    each pattern, the matches, and all output.
    """
    start = time.monotonic()
    with subprocess.Popen(
        args, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as machine:
        limit = limited(machine)
        text, times, matches = b"", [], []
        try:
            while stay or len(times) < len(patterns):
                piece = os.read(machine.stdout.fileno(), 65536)
                text += piece
                while len(times) < len(patterns) and (match := patterns[len(times)].search(text)):
                    times.append(time.monotonic() - start)
                    matches.append(match)
                if not piece:
                    break
        finally:
            limit.cancel()
            if not stay or len(times) < len(patterns):
                machine.kill()
    if len(times) < len(patterns):
        raise Broken(
            f"{' '.join(args)}: nothing on the console that matches "
            f"{patterns[len(times)].pattern}\n{tail(text)}"
        )
    return times, matches, text


def guest(args, stay=False):
    """Runs a machine whose first program is init.c, and returns a Sample of the program that init.c
    runs.
    """
    times, (_, status, output), text = until(args, BEGIN, STATUS, OUTPUT, stay=stay)
    if int(status[1]) != 0:
        raise Broken(f"{' '.join(args)}: the program failed\n{tail(text)}")
    begin, end, _ = times
    return Sample(
        end - begin, (int(output[1]), int(output[2], 16)), begin, text.decode(errors="replace")
    )
