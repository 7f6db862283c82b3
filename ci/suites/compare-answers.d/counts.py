# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the calls and instructions of functions with those that callgrind has counted."""

import bisect
import collections
import functools
import os
import re
import subprocess

import unwind_symbols
from result import Result

# Files that are not compared: the dynamic linker, which does other things under valgrind, and files
# of valgrind.
NOT_COMPARED = re.compile(r"^(ld-linux.*|vgpreload.*|\?\?\?|\[.*\]|)$")
# What these execute depends on the machine: the environment, /proc, the addresses of mappings.
OF_SYSTEM = re.compile(r"^(libc|libselinux|libgcc_s|libpthread|libcap)\.so")
# This one has tables of objects by their addresses. Such a function has nearly as many calls.
OF_ADDRESSES = re.compile(r"^python3")
NEAR_BY_ADDRESSES = 4
# Instructions and calls by which a function can differ because of the environment: valgrind adds
# variables, libraries and buffers at other addresses.
FEW_INSTRUCTIONS, FEW_CALLS = 400, 2
# And in a whole file, for each million.
FEW_OF_A_FILE = 2000
REPEATED, MERGED, OF_MACHINE = "a", "c", "d"
# Why the instructions of functions differ more: patterns of their names.
BY_NAME = [
    (r"(mem|str|wcs|wmem).*_(avx2|sse2|evex)", "b"),
]


def compare(theirs, ours):
    """Compares two tables of `callgrind.functions`. Returns a Result."""
    paths = {os.path.basename(path): path for path, _ in theirs}
    theirs, ours = by_place(theirs), by_place(ours)
    repeated = with_repeats(theirs, ours, paths)
    equal = near = 0
    instructions = equal_instructions = 0
    reasons, different = collections.Counter(), []
    for place, (name, calls, own) in theirs.items():
        if NOT_COMPARED.match(place[0]):
            continue
        _, our_calls, our_own = ours.get(place, ("", 0, 0))
        instructions += own
        why = next((why for pattern, why in BY_NAME if re.search(pattern, name)), None)
        why = REPEATED if place in repeated else why
        if (calls, own) == (our_calls, our_own):
            equal += 1
            equal_instructions += own
        elif abs(calls - our_calls) <= FEW_CALLS and abs(own - our_own) <= FEW_INSTRUCTIONS:
            near += 1
        elif why and calls == our_calls:
            reasons[why] += 1
        else:
            different.append(
                (
                    place[0],
                    abs(calls - our_calls) <= calls // NEAR_BY_ADDRESSES,
                    f"{place[0]} {name}: {our_calls} calls, {our_own} instructions; "
                    f"callgrind: {calls}, {own}",
                )
            )
    merged = merged_files(theirs, ours, repeated)
    kept = []
    for file, is_near, row in different:
        if OF_SYSTEM.match(file) or is_near and OF_ADDRESSES.match(file):
            reasons[OF_MACHINE] += 1
        elif file in merged:
            reasons[MERGED] += 1
        else:
            kept.append(row)
    share = 100 * equal_instructions / max(instructions, 1)
    return Result(f"{equal} functions ({share:.0f} %), {near} nearly", kept, reasons)


def with_repeats(theirs, ours, paths):
    """Returns the places of functions with repeated string instructions: callgrind counts each of
    their steps.
    """
    found = set()
    starts = {}
    for file, at in {*theirs, *ours}:
        if isinstance(at, int):
            starts.setdefault(file, []).append(at)
    for file, addresses in starts.items():
        addresses.sort()
        for at in repeats(paths.get(file, "")):
            index = bisect.bisect_right(addresses, at)
            if index:
                found.add((file, addresses[index - 1]))
    return found


@functools.cache
def repeats(path):
    """Returns the addresses of a file's repeated string instructions."""
    if not os.path.isfile(path):
        return []
    command = ["objdump", "--disassemble", "--no-show-raw-insn", path]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [int(at, 16) for at in re.findall(r"^ *([0-9a-f]+):\s+repn?z? ", text, re.MULTILINE)]


def merged_files(theirs, ours, repeated):
    """Returns the files without symbols in which as many instructions were executed: a function to
    which another one jumps is a part of that one for callgrind, if no symbol says otherwise. A file
    with repeated string instructions has executed more for callgrind.
    """

    def sums(table):
        total = collections.Counter()
        for (file, _), (_, _, own) in table.items():
            total[file] += own
        return total

    def is_equal(file):
        theirs, ours = sums_of_theirs[file], sums_of_ours[file]
        few = FEW_INSTRUCTIONS + theirs * FEW_OF_A_FILE // 1_000_000
        return abs(theirs - ours) <= few or ours < theirs and file in files_with_repeats

    sums_of_theirs, sums_of_ours = sums(theirs), sums(ours)
    unnamed = {file for (file, _), (name, _, _) in theirs.items() if name.startswith("0x")}
    files_with_repeats = {file for file, _ in repeated}
    return {file for file in unnamed if is_equal(file)}


def by_place(counts):
    """Returns name, calls and instructions by file and address: a function has several names."""
    places = {}
    for (path, name), count in counts.items():
        # Callgrind does not say which file a stub is in.
        if name.endswith("@plt") or "@plt+" in name or name in (".plt", ".plt.got", ".plt.sec"):
            continue
        name = name.split("@")[0]
        file = os.path.basename(path)
        at = address(path, name, file)
        first, calls, own = places.get((file, at), (name, 0, 0))
        places[file, at] = (first, calls + count.calls, own + count.own)
    return places


def address(path, name, file):
    """Returns the address of a function in its file, or its name if no symbol has that."""
    # One without a symbol: callgrind has its address, we its offset in the file.
    found = re.match(rf"({re.escape(file)}\+)?0x([0-9a-f]+)$", name)
    if not found:
        return symbols(path).get(name, name)
    at = int(found[2], 16)
    return address_of_offset(path, at) if found[1] else at


def address_of_offset(path, offset):
    """Returns the address of an offset in a file."""
    for start, at, size in segments(path):
        if start <= offset < start + size:
            return at + offset - start
    return offset


def names_of_unnamed(path):
    """Returns the names that we give to functions without symbols: their offsets in the file."""
    file = os.path.basename(path)
    return {
        f"{file}+0x{function - at + offset:x}"
        for function in unwind_symbols.functions(path)
        for offset, at, size in segments(path)
        if at <= function < at + size
    }


@functools.cache
def segments(path):
    """Returns offset, address and size of each part of a file that is loaded."""
    if not os.path.isfile(path):
        return []
    command = ["readelf", "--program-headers", "--wide", path]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = re.findall(r"^ +LOAD +(\w+) (\w+) \w+ (\w+)", text, re.MULTILINE)
    return [tuple(int(number, 16) for number in row) for row in rows]


@functools.cache
def symbols(path):
    """Returns the addresses of the symbols of a file, and of its separate debugging information."""
    found = {}
    for file in (path, debug_file(path)):
        for option in ("--dynamic", "--debug-syms"):
            if file and os.path.isfile(file):
                found.update(of_table(file, option) | found)
    return found


def of_table(path, option):
    command = ["nm", "--demangle", "--defined-only", option, path]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = re.findall(r"^([0-9a-f]+) [tTwWiIuV] (.*)$", text, re.MULTILINE)
    return {name.split("@")[0]: int(value, 16) for value, name in rows}


def debug_file(path):
    """Returns the path of the separate debug file of a file in Debian's place, or None."""
    if not os.path.isfile(path):
        return None
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=False)
    build_id = re.search(r"Build ID: ([0-9a-f]+)", notes.stdout)
    if not build_id:
        return None
    return f"/usr/lib/debug/.build-id/{build_id[1][:2]}/{build_id[1][2:]}.debug"
