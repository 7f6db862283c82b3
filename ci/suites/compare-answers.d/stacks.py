# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stacks of functions at the N-th call of one: those of gdb and of `vbts report where`."""

import re
import subprocess

from result import Result

GDB = [
    "set debuginfod enabled off",
    "set breakpoint pending on",
    "set print frame-arguments none",
    "set width 0",
]
# Functions of the C library below `main`, whose number depends on its debugging information, and
# where a goroutine returns to, which has not called it.
BELOW_MAIN = re.compile(r"^(__libc_start|_start$|_dl_start_user$|runtime\.goexit$)")
MAIN_OF_FORTRAN = "MAIN__"
MAIN = ("main", "main.main", MAIN_OF_FORTRAN)
OF_FORTRAN = "words::"
# What GCC adds to the name of a function that it has changed.
OF_GCC = re.compile(r"(\.(\d+|constprop|isra|part))+$")
UNKNOWN = "??"


def of_gdb(words, function, number, directory):
    """Returns the functions of the stack, the innermost first."""
    steps = [*GDB, f"break {function}", f"ignore 1 {number - 1}", "run", "bt"]
    command = ["gdb", "-nx", "-batch", *[word for step in steps for word in ("-ex", step)]]
    done = subprocess.run(
        [*command, "--args", *words],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    frames = re.findall(r"^#\d+ +(?:0x[0-9a-f]+ in )?(.+?) \(", done.stdout, re.MULTILINE)
    return [plain(name) for name in frames]


def of_vbts(text, starts):
    """Returns the functions of the stack in the text of `vbts report where`. A function that has
    jumped to another one has no position: it is on no stack. `starts` are names of functions
    without a symbol, which are their first positions.
    """
    _, _, stack = text.partition("stack:\n")
    frames = []
    for row in re.findall(r"^ +\d+  (.+)$", stack, re.MULTILINE):
        name, offset, inlined, part = re.match(
            r"(.+?)(\+0x[0-9a-f]+)?( \(inlined\))?(?: \((?:(\S+\+0x[0-9a-f]+)|.*)\))?$", row
        ).groups()
        is_start = offset and name + offset in starts
        if (offset and not is_start) or inlined or part or not frames:
            frames.append(plain(name))
    return frames


def plain(name):
    """Returns a name without arguments and parameters of templates."""
    name = name.split("@")[0]
    while "<" in name and ">" in name:
        shorter = re.sub(r"<[^<>]*>", "", name)
        if shorter == name:
            break
        name = shorter
    return name.split("(")[0].strip()


def compare(theirs, ours):
    """Compares both stacks down to `main`, or to what has called it. Returns a Result."""
    theirs, ours = down_to_main(theirs), down_to_main(ours)
    pairs = zip(theirs, ours)
    named = sum(name != UNKNOWN for name in theirs)
    if ours and ours[-1] == MAIN_OF_FORTRAN:
        # gdb has the name that the program has in its source.
        ours[-1] = theirs[-1]
    if len(theirs) == len(ours) and all(is_same(*pair) for pair in pairs) and theirs:
        return Result(f"{len(theirs)} frames, {named} named")
    return Result("another stack", [f"ours {ours}; gdb: {theirs}"])


def down_to_main(frames):
    for at, frame in enumerate(frames):
        if BELOW_MAIN.match(frame):
            return frames[:at]
        if frame in MAIN:
            return frames[: at + 1]
    return frames


def is_same(theirs, ours):
    """Returns whether names are of one function: gdb may not know it, or know another name."""
    names = core(theirs), core(ours)
    # gdb names the program of Fortran that contains the function.
    return theirs == UNKNOWN or names[0] in (names[1], f"{OF_FORTRAN}{names[1]}")


def core(name):
    """Returns a name without what GCC adds to it, and one of the C library without the parts that
    its aliases differ in.
    """
    return re.sub(r"^_*(GI_+)?|(64|_impl)$", "", OF_GCC.sub("", name))
