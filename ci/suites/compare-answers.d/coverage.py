# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the counts of source lines with those of gcov, llvm-cov and `go test -cover`."""

import collections
import json
import os
import re

from result import Result

NO_CODE = "e"
# Lines that are not executed if an exception or a panic leaves their block.
LEFT = {
    "kinds.cpp": ["return 0;", "}", "} catch (const std::exception &) {"],
    "kinds.go": ["return 0"],
}


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


def compare(theirs, ours, source, tool):
    """Compares the counts of the lines that `tool` has. Returns a Result."""
    with open(source, encoding="utf-8") as file:
        text = ["", *(line.strip() for line in file), ""]
    left = LEFT.get(os.path.basename(source), [])
    equal = 0
    different, explained = [], collections.Counter()
    for line, count in sorted(theirs.items()):
        our_count = ours.get(line)
        if our_count == count:
            equal += 1
        elif letter := reason(text, line, our_count, count, left, tool):
            explained[letter] += 1
        else:
            different.append(f"line {line}: {our_count}; {tool}: {count}: {text[line]}")
    return Result(f"{equal} lines", different, explained)


def reason(text, line, ours, theirs, left, tool):
    """Returns the letter of why the counts of a line differ, or None."""
    if ours is None:
        return NO_CODE if has_no_code(text[line], tool) else None
    by_tool = {
        "gcov": [
            # Each destructor that is called there begins the line again.
            ("f", text[line] == "}" and ours > theirs),
            ("l", is_in_a_do_loop(text, line) and 0 < ours < theirs),
        ],
        "llvm-cov": [
            # A closure of Rust.
            ("h", "|" in text[line] and ours > theirs),
            ("i", text[line] in left and ours < theirs),
            ("n", text[line] == "} else {" or text[line] == "}" and ours > theirs),
        ],
        "go test": [
            ("g", text[line].startswith("for ") and ours > 0),
            ("h", re.match(r"(go|defer) ", text[line]) and ours > theirs),
            ("i", text[line] in left and ours < theirs),
        ],
    }
    return next((letter for letter, applies in by_tool[tool] if applies), None)


def has_no_code(text, tool):
    """Returns whether a line that the tool counts needs no instruction."""
    if tool == "gcov":
        return text.endswith(")") or text.startswith("case ") or text == "default:"
    # The end of a block, its head, or a variable without a value.
    return not re.search(r"[=(]", text)


def is_in_a_do_loop(text, line):
    """Returns whether a line is the first or the last one in a loop of Fortran."""
    return text[line - 1].startswith("do ") or text[line + 1] == "end do"
