#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads a btrace file as docs/trace-format.md specifies it, and prints what it has as JSON.

usage: btrace.py FILE

It is written from that page alone, so that the page is complete. It needs Debian's
python3-zstandard.
"""

import json
import signal
import struct
import sys
import zlib

import zstandard

MAGIC = b"\x93BTRC\r\n\0"
END_MAGIC = b"BTRCend\n"
RUN, EVENTS, BRANCHES, SUMMARY, INDEX = 1, 2, 3, 4, 5
MASK = (1 << 64) - 1


class Bytes:
    """Bytes that are read from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        assert count <= self.left()
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self):
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                assert value <= MASK
                return value

    def signed(self):
        value = self.number()
        return value >> 1 ^ -(value & 1)

    def bytes(self):
        return Bytes(self.take(self.number()))

    def text(self):
        return bytes(self.bytes().data).decode("utf-8", "replace")


def chunk(data, at):
    """Returns the kind of the chunk at a position, its contents, and where it ends."""
    kind, compression, _, stored, plain, checksum = struct.unpack_from("<BBHIII", data, at)
    body = data[at + 16 : at + 16 + stored]
    assert len(body) == stored
    assert zlib.crc32(body, zlib.crc32(data[at : at + 12])) == checksum
    if compression:
        assert compression == 1
        body = zstandard.ZstdDecompressor().decompress(body, max_output_size=plain)
    assert len(body) == plain
    return kind, Bytes(body), at + 16 + stored


class Bits:
    """Bits that are read from the lowest one of the first byte on."""

    def __init__(self, data):
        self.value, self.at = int.from_bytes(data, "little"), 0

    def take(self, count):
        value = self.value >> self.at & ((1 << count) - 1)
        self.at += count
        return value


def stream(data):
    """Returns the bytes of a stream."""
    size, stored = data.number(), data.bytes().data
    if len(stored) != size:
        stored = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    assert len(stored) == size
    return stored


class Branches:
    """The codec."""

    def __init__(self, data):
        self.symbols = [Bytes(stream(data)) for _ in range(32)]
        self.bits = Bits(stream(data))
        low, middle, high = (stream(data) for _ in range(3))
        self.indices = zip(low, middle, high, strict=True)
        self.new = Bytes(stream(data))
        assert not data.left()
        self.nodes, self.tasks = [], {}
        self.add((0, 0))
        self.next_symbol(0)

    def add(self, branch):
        self.nodes.append((branch, [(0, 0)], [0] * 4))
        return len(self.nodes) - 1

    def next_symbol(self, last):
        self.run, self.code = None, None
        symbols = self.symbols[last % 32]
        if symbols.left():
            (symbol,) = symbols.take(1)
            self.run, self.code = symbol >> 3, symbol & 7
            if self.run >= 10:
                count = self.run - 10
                self.run = (1 << count) + 9 + self.bits.take(count)

    def next(self, task):
        last, path = self.tasks.get(task, (0, 0))
        _, entries, _ = self.nodes[last]
        at = path >> 27 if len(entries) > 1 else 0
        node, confidence = entries[at]
        if self.run is None or self.run > 0:
            entries[at] = node, min(confidence + 1, 7)
            if self.run:
                self.run -= 1
        else:
            predicted = node
            node = self.correct(last, predicted)
            self.next_symbol(last)
            if len(entries) == 1 and confidence > 0:
                at = path >> 27
                entries[:] = [(predicted, 1)] * 32
                entries[at] = node, 1
            elif confidence < 2:
                entries[at] = node, 1
            else:
                entries[at] = predicted, confidence - 1
        self.tasks[task] = node, (path * 64 + last * 0x9E3779B1) % (1 << 32)
        return self.nodes[node][0]

    def correct(self, last, predicted):
        (_, target), _, corrections = self.nodes[last]
        if self.code <= 3:
            skipped = predicted in corrections[: self.code + 1]
            node = corrections.pop(self.code + skipped)
        else:
            corrections.pop()
            if self.code == 4:
                low, middle, high = next(self.indices)
                node = low | middle << 8 | high << 16
            else:
                assert self.code == 5
                source = (target + self.new.signed()) & MASK
                node = self.add((source, (source + self.new.signed()) & MASK))
        corrections.insert(0, node)
        return node


def block(events, branches):
    """Yields the task, kind, time and fields of each event; a branch is an event of kind 0."""
    events.number()
    left = events.number()
    task = time = 0
    while True:
        count = events.number() if events.left() else left
        left -= count
        for _ in range(count):
            yield task, 0, None, branches.next(task)
        if not events.left():
            return
        (kind,) = events.take(1)
        if kind in (2, 3, 4, 7, 8, 11) or 32 <= kind <= 63:
            time = (time + events.signed()) & MASK
        fields = events.bytes()
        if kind == 1:
            task = fields.number()
        else:
            yield task, kind, time, fields


def describe(kind, time, fields):
    """Returns what the JSON of vbts has of an event, without the thread ID of its task."""
    if kind == 2:
        task, parent, process = (fields.number() for _ in range(3))
        return {"kind": "start", "task": task, "parent": parent, "process": process, "time": time}
    if kind == 3:
        task, former = fields.number(), fields.number()
        described = {"kind": "exec", "task": task, "name": fields.text(), "time": time}
        return described | ({"former": former} if former != task else {})
    if kind == 4:
        how, value = fields.take(2)
        return {"kind": "end", ["exit", "signal"][how]: value, "time": time}
    if kind == 5:
        return {"kind": "lost", "at_least": fields.number()}
    if kind == 16:
        return {"kind": "name", "name": fields.text()}
    if kind == 14:
        return {"kind": "filtered", "branches": fields.number()}
    if kind in (7, 8):
        return {"kind": {7: "arrive", 8: "depart"}[kind], "time": time}
    if kind == 9:
        name = signal.Signals(fields.number()).name
        code, address = fields.signed(), fields.number()
        fields.bytes()
        registers = [fields.number() for _ in range(fields.number())]
        described = {"kind": "crash", "signal": name, "code": code}
        return described | {"address": hex(address), "rip": hex(registers[16])}
    if kind == 10:
        syscall = fields.text()
        return {"kind": "standing", "name": fields.text(), "syscall": syscall}
    if kind == 11:
        task, parent = fields.number(), fields.number()
        described = {"kind": "untraced", "task": task, "parent": parent, "name": fields.text()}
        return described | {"reason": fields.text(), "time": time}
    if kind == 32:
        return {"kind": "address_space", "cr3": hex(fields.number()), "time": time}
    if kind == 33:
        task, process = fields.number(), fields.number()
        described = {"kind": "switch", "id": task, "process": process, "name": fields.text()}
        return described | {"time": time}
    if kind == 35:
        return {"kind": "signal", "signal": signal.Signals(fields.number()).name, "time": time}
    if kind == 34:
        return {"kind": "gap", "duration": fields.number(), "time": time}
    return None


def main():
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    assert data.startswith(MAGIC + struct.pack("<I", 4))
    kind, run, at = chunk(data, 12)
    assert kind == RUN
    processors = json.loads(run.data).get("streams") == "processors"
    blocks, ids, summary = [], {}, None
    while at + 16 < len(data):
        start = at
        kind, body, at = chunk(data, at)
        if kind == EVENTS:
            look = Bytes(body.data)
            first, count = look.number(), look.number()
            blocks.append((start, first))
            branches = None
            if count:
                kind, coded, at = chunk(data, at)
                assert kind == BRANCHES
                branches = Branches(coded)
            for task, kind, time, fields in block(body, branches):
                if kind == 0:
                    source, target = fields
                    printed = {"kind": "branch", "from": hex(source), "to": hex(target)}
                elif not (printed := describe(kind, time, fields)):
                    continue
                if kind == 11:
                    print(json.dumps(printed))
                    continue
                if processors:
                    printed["processor"] = task
                else:
                    ids[task] = printed.setdefault("task", ids.get(task))
                print(json.dumps(printed))
        elif kind == SUMMARY:
            summary = start, json.loads(body.data)
            print(json.dumps({"kind": "summary"} | summary[1]))
        elif kind == INDEX:
            assert body.number() == summary[0] and body.number() == summary[1]["records"]
            position = number = 0
            for block_start, block_first in blocks:
                position, number = position + body.signed(), number + body.signed()
                body.signed()
                assert (position, number) == (block_start, block_first)
            assert struct.unpack_from("<Q", data, at) == (start,) and data[at + 8 :] == END_MAGIC


if __name__ == "__main__":
    main()
