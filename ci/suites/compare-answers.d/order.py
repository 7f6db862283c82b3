# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the calls of a program's own functions, in order, with those that uftrace has seen."""

import collections
import re

from result import Result
from stacks import plain

# Functions of headers. uftrace sees those that were compiled with the program alone.
OF_A_LIBRARY = re.compile(r"^(std|__gnu_cxx|operator|void|bool)\b")
# Lines shown around the first difference.
SHOWN = 3


def of_uftrace(text):
    """Returns name and depth of each call out of `uftrace replay -f none`."""
    return calls(text, r"^ *(?P<name>[^ }/].*?)\(.*\)(?P<end> \{|;)$", r"^ *\}")


def of_vbts(text):
    """Returns name and depth of each call out of `vbts report trace`."""
    head = r"^.{14} +\d+(?: \S+)?  +"
    return calls(text, head + r"(?P<name>[^ }].*?)\(\)(?P<end> \{|;)", head + r"\}")


def calls(text, begin, end):
    """Returns name and depth of each line that matches `begin`. One whose end is a brace contains
    others up to the line that matches `end`.
    """
    found, depth = [], 0
    for line in text.splitlines():
        if call := re.match(begin, line):
            found.append((plain(call["name"]), depth))
            depth += call["end"] != ";"
        elif re.match(end, line):
            depth -= 1
    return found


def compare(theirs, ours):
    """Compares the calls of the functions that uftrace knows. Their depth is that among these."""
    known = {name for name, _ in theirs if not OF_A_LIBRARY.match(name)}
    theirs, ours = among(theirs, known), among(ours, known)
    pairs = zip(theirs, ours)
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if first is None and len(theirs) == len(ours):
        functions = len(known)
        return Result(f"{len(theirs)} calls of {functions} functions")
    first = min(len(theirs), len(ours)) if first is None else first
    names = [name for name, _ in theirs], [name for name, _ in ours]
    totals = [collections.Counter(of) for of in names]
    different = [
        f"{name}: {totals[1][name]} calls; uftrace: {totals[0][name]}"
        for name in sorted(known)
        if totals[0][name] != totals[1][name]
    ]
    part = slice(max(first - SHOWN, 0), first + SHOWN)
    different.append(f"call {first}: {ours[part]}; uftrace: {theirs[part]}")
    return Result(f"{first} of {len(theirs)} calls", different)


def among(calls, known):
    """Returns the calls of known functions, with their depth among these."""
    open_calls, result = [], []
    for name, depth in calls:
        while open_calls and open_calls[-1] >= depth:
            open_calls.pop()
        if name in known:
            result.append((name, len(open_calls)))
            open_calls.append(depth)
    return result
