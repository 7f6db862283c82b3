# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Counts of lines out of the profile of `go test -cover`."""

import re

ROW = re.compile(r"^.*/(\S+):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)$", re.MULTILINE)
# A test with the whole program, which Go's tool counts.
TEST = """package main

import "testing"

func TestProgram(t *testing.T) { main() }
"""


def lines(text, source):
    """Returns the count of each line of the file: that of the block in which its text begins."""
    blocks = [
        ((int(line), int(column)), (int(last), int(end)), int(count))
        for _, line, column, last, end, count in ROW.findall(text)
    ]
    counts = {}
    with open(source, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            at = (number, len(line) - len(line.lstrip()) + 1)
            for first, end, count in blocks:
                if line.strip() and first <= at < end:
                    counts[number] = count
    return counts
