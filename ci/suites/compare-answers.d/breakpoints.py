# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Calls of functions of a Go program, counted by breakpoints of gdb: callgrind does not always
survive the stacks of goroutines.
"""

import collections
import json
import re
import subprocess

from result import Result

# Packages that do not depend on Go's scheduler and its garbage collector. The program has no
# inlined functions: gdb would count these, too.
COMPARED = re.compile(r"^(main|errors|fmt|sort|strconv|unicode)[./]")
# A breakpoint that ignores its hits does not stop the program.
SCRIPT = """
set debuginfod enabled off
set auto-load off
set width 0
python
for name in {names}:
    gdb.Breakpoint("-qualified -function " + name).ignore_count = 1 << 30
end
run
info breakpoints
"""
# They make an object for a pool (sync.Pool) that has none.
OF_POOLS = ["fmt.glob..func1"]
TURNS = "m"
HITS = re.compile(r" in (\S+) at .*\n\tbreakpoint already hit (\d+) time")


def names(program):
    """Returns the functions that are compared."""
    command = ["nm", "--defined-only", program]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = re.findall(r"^\S+ [tT] (.*)$", text, re.MULTILINE)
    return [name for name in symbols if COMPARED.match(name)]


def script(program):
    return SCRIPT.format(names=names(program))


def of_gdb(text):
    """Returns the calls by function out of gdb's list of breakpoints."""
    return {name: int(hits) for name, hits in HITS.findall(text)}


def of_vbts(text):
    """Returns the calls by function out of `vbts report functions --json`."""
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["name"]: row["calls"] for row in rows if COMPARED.match(row["name"])}


def compare(theirs, ours):
    equal = 0
    explained, different = collections.Counter(), []
    for name in sorted({*theirs, *ours}):
        their_calls, our_calls = theirs.get(name, 0), ours.get(name, 0)
        if their_calls == our_calls:
            equal += 1
        elif name in OF_POOLS:
            explained[TURNS] += 1
        else:
            different.append(f"{name}: {our_calls} calls; gdb: {their_calls}")
    return Result(f"{equal} functions", different, explained)
