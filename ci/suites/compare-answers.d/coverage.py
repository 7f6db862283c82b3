# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the counts of source lines with those of gcov."""

import collections
import json
import os
import re

from result import Result


def of_gcov(text, source):
    """Returns the counts by line out of gcov's JSON."""
    counts = {}
    for file in json.loads(text)["files"]:
        if os.path.basename(file["file"]) == os.path.basename(source):
            for line in file["lines"]:
                number = line["line_number"]
                # A template, or a function that was compiled twice, has a row each time.
                counts[number] = counts.get(number, 0) + line["count"]
    return counts


def of_lcov(text):
    rows = re.findall(r"^DA:(\d+),(\d+)", text, re.MULTILINE)
    return {int(line): int(count) for line, count in rows}


def compare(theirs, ours, source):
    with open(source, encoding="utf-8") as file:
        text = ["", *(line.strip() for line in file)]
    equal = 0
    different, explained = [], collections.Counter()
    for line, count in sorted(theirs.items()):
        if ours.get(line) == count:
            equal += 1
        elif line not in ours and has_no_code(text[line]):
            explained["e"] += 1
        elif text[line] == "}" and ours.get(line, 0) > count:
            # Each destructor that is called there begins the line again.
            explained["f"] += 1
        else:
            different.append(f"line {line}: {ours.get(line)}; gcov: {count}: {text[line]}")
    return Result(f"{equal} lines", different, explained)


def has_no_code(text):
    return text.endswith(")") or text.startswith("case ") or text == "default:"
