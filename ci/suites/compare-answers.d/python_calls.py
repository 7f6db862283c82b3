# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the calls of Python's functions, by their stacks, with those that `sys.setprofile` has
seen.
"""

import ast
import collections
import functools
import json
import os

import debian
from result import Result

# The names of Python's functions in the report: those of its perf map.
PREFIX = "py::"
INIT = ".__init__:"
MADE, SPECIALISED = "j", "k"
# Runs a program, and prints the number of calls of each stack. It imports nothing that the program
# could import first.
PROFILER = """
import sys

# CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
GENERATORS = 0x20 | 0x80 | 0x200
path = sys.argv[1]
stack, counts, generators = [], {}, set()

def note(frame, event, _):
    if event == "call":
        stack.append(f"{frame.f_code.co_qualname}:{frame.f_code.co_filename}")
        counts[tuple(stack)] = counts.get(tuple(stack), 0) + 1
        # Also those that are made and never executed.
        for code in (frame.f_code, *frame.f_code.co_consts):
            if getattr(code, "co_flags", 0) & GENERATORS:
                generators.add(f"{code.co_qualname}:{code.co_filename}")
    elif event == "return":
        stack.pop()

with open(path, encoding="utf-8") as file:
    code = compile(file.read(), path, "exec")
sys.setprofile(note)
exec(code, {"__name__": "__main__"})
sys.setprofile(None)
print(counts)
print(generators)
"""


@functools.cache
def interpreter():
    """Returns the command of a Python with trampolines for perf, that of Debian 13, and its
    environment. Its C library is another one than that of this machine.
    """
    usr = os.path.join(debian.python_root(), "usr")
    library = os.path.join(usr, "lib/x86_64-linux-gnu")
    linker = os.path.join(usr, "lib64/ld-linux-x86-64.so.2")
    python = os.path.join(usr, "bin", debian.PYTHON)
    return [linker, "--library-path", library, python], {"PYTHONHOME": usr}


def of_profiler(text):
    """Returns the calls of each stack, and the generators, out of the last lines of the output."""
    *_, counts, generators = text.splitlines()
    return ast.literal_eval(counts), ast.literal_eval(generators)


def of_vbts(text, first):
    """Returns the calls of each stack from the function `first` on, out of `vbts report calls
    --json`.
    """
    stacks, counts = {}, collections.Counter()
    for line in text.splitlines():
        row = json.loads(line)
        stack = stacks.get(row["parent"], ())
        name = row["name"].removeprefix(PREFIX)
        if name != row["name"] and (stack or name == first):
            stack = (*stack, name)
            counts[stack] += row["calls"]
        stacks[row["node"]] = stack
    return counts


def compare(theirs, generators, ours):
    """Compares the calls of all stacks. Returns a Result."""
    theirs, ours = (without_inits(counts) for counts in (theirs, ours))
    equal = 0
    explained, different = collections.Counter(), []
    for stack in sorted({*theirs, *ours}):
        their_calls, our_calls = theirs[stack], ours[stack]
        if their_calls == our_calls:
            equal += 1
        elif stack[-1] in generators and our_calls > their_calls:
            explained[MADE] += 1
        elif INIT in stack[-1] and our_calls < their_calls:
            explained[SPECIALISED] += 1
        else:
            text = "; ".join(stack)
            different.append(f"{text}: {our_calls} calls; sys.setprofile: {their_calls}")
    return Result(f"{equal} stacks", different, explained)


def without_inits(counts):
    """Returns the counts by stacks without initializers of classes, except at the top: CPython
    executes some without a frame of C.
    """
    shorter = collections.Counter()
    for (*below, top), calls in counts.items():
        shorter[*(name for name in below if INIT not in name), top] += calls
    return shorter
