# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debug files for files without symbols, in which each entry of the unwind table is a function.
With these, valgrind knows where functions begin. The symbol of a function is its address.
"""

import functools
import os
import re
import shutil
import struct
import subprocess
import zlib

# The type of a section with symbols, the sizes of a section header and of a symbol, the type of
# functions.
SHT_SYMTAB, SECTION, SYMBOL, STT_FUNC = 2, 64, 24, 2


def make(program, current, directory):
    """Makes debug files for a program, in the directory `current` or installed, and for its
    libraries, if valgrind does not find others.
    """
    shutil.rmtree(directory, ignore_errors=True)
    path = path_of(program, current)
    libraries = re.findall(r"(/\S+) \(0x", output("ldd", path))
    for file in {path, *map(os.path.realpath, libraries)}:
        make_for(file, directory)


def path_of(program, current):
    """Returns the path of a program that is started in the directory `current`."""
    return os.path.realpath(os.path.join(current, shutil.which(program) or program))


def make_for(path, directory):
    """Makes the debug file of one file. Valgrind looks for the name that the file has for it, and
    compares the checksum.
    """
    link = re.search(r"] +(\S+\.debug)$", output("readelf", "-p", ".gnu_debuglink", path), re.M)
    build_id = re.search(r"Build ID: (\w\w)(\w+)", output("readelf", "--notes", path))
    installed = build_id and f"/usr/lib/debug/.build-id/{build_id[1]}/{build_id[2]}.debug"
    if not link or installed and os.path.exists(installed):
        return
    debug_file = os.path.join(directory, os.path.dirname(path).lstrip("/"), link[1])
    os.makedirs(os.path.dirname(debug_file), exist_ok=True)
    sizes = functions(path)
    arguments = os.path.join(directory, "arguments")
    with open(arguments, "w", encoding="utf-8") as file:
        for name, start, size in sections(path):
            for at in sizes:
                if start <= at < start + size:
                    file.write(f"--add-symbol=0x{at:x}={name}:{at - start},function,local\n")
    subprocess.run(["objcopy", f"@{arguments}", path, debug_file], check=True)
    with open(debug_file, "rb") as file:
        data = bytearray(file.read())
    set_sizes(data, sizes)
    with open(path, "rb") as file:
        checksum = wanted_checksum(file.read(), link[1].encode())
    with open(debug_file, "wb") as file:
        file.write(with_checksum(bytes(data), checksum))


@functools.cache
def functions(path):
    """Returns the sizes of functions by their addresses. The entry of a part that a compiler has
    moved out of a function begins with a frame on the stack.
    """
    found, first = {}, None
    for line in output("readelf", "--debug-dump=frames", path).splitlines():
        if entry := re.search(r" FDE cie=\w+ pc=(\w+)\.\.(\w+)", line):
            first, end = (int(number, 16) for number in entry.groups())
            found[first] = end - first
        elif " CIE" in line or "DW_CFA_advance_loc" in line:
            first = None
        elif first is not None and "DW_CFA_def_cfa" in line:
            del found[first]
            first = None
    return found


def sections(path):
    """Returns name, address and size of the sections with code."""
    rows = re.findall(
        r"\] (\.\S+) +PROGBITS +(\w+) \w+ (\w+) \w+ +AX",
        output("readelf", "--section-headers", "--wide", path),
    )
    return [(name, int(start, 16), int(size, 16)) for name, start, size in rows]


def set_sizes(data, sizes):
    """Sets the sizes of the symbols of an ELF file: objcopy adds symbols without one."""
    headers, count = (
        struct.unpack_from("<Q", data, 0x28)[0],
        struct.unpack_from("<H", data, 0x3C)[0],
    )
    for header in range(headers, headers + SECTION * count, SECTION):
        if struct.unpack_from("<I", data, header + 4)[0] != SHT_SYMTAB:
            continue
        start, size = struct.unpack_from("<QQ", data, header + 24)
        for symbol in range(start, start + size, SYMBOL):
            value = struct.unpack_from("<Q", data, symbol + 8)[0]
            if data[symbol + 4] & 15 == STT_FUNC and value in sizes:
                struct.pack_into("<Q", data, symbol + 16, sizes[value])


def wanted_checksum(data, name):
    """Returns the checksum of the debug file: the four bytes behind its name, at the next multiple
    of four.
    """
    at = data.rindex(name + b"\0")
    return struct.unpack_from("<I", data, at + (len(name) // 4 + 1) * 4)[0]


def with_checksum(data, wanted):
    """Returns the data with four bytes more, with which their CRC-32 is `wanted`. It is linear: a
    bit of these bytes changes the same bits of the checksum each time.
    """
    start = zlib.crc32(data)
    base = zlib.crc32(bytes(4), start)
    rows = [(zlib.crc32((1 << n).to_bytes(4, "little"), start) ^ base, 1 << n) for n in range(32)]
    difference, added = wanted ^ base, 0
    for bit in range(32):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row
            for row in rows
            if row is not pivot
        ]
        if difference >> bit & 1:
            difference, added = difference ^ pivot[0], added ^ pivot[1]
    return data + added.to_bytes(4, "little")


def output(*words):
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout
