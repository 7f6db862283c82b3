# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Counts of callgrind: the calls of each function, and its own instructions."""

import collections
import re

ROW = re.compile(r"^[0-9+*-]")


class Count:
    """What a function has executed."""

    def __init__(self):
        self.calls = self.own = 0


def functions(text):
    """Returns the counts by object and function, from a file without separation by callers."""
    names = {}
    counts = collections.defaultdict(Count)
    objects = {"ob": "", "cob": ""}
    function = callee = ("", "")
    is_call = False

    def name(kind, field):
        number, _, text = field.partition(" ")
        if text:
            names[kind, number] = text
        return names.get((kind, number), field)

    for line in text.splitlines():
        key, separator, field = line.partition("=")
        if key in ("ob", "cob"):
            objects[key] = name("object", field)
            if key == "ob":
                objects["cob"] = objects["ob"]
        elif key == "fn":
            function = (objects["ob"], plain(name("function", field)))
            objects["cob"] = objects["ob"]
        elif key == "cfn":
            callee = (objects["cob"], plain(name("function", field)))
        elif key == "calls":
            counts[callee].calls += int(field.split()[0])
            is_call = True
            # The object of a callee is that of the caller unless a line says otherwise.
            objects["cob"] = objects["ob"]
        elif not separator and ROW.match(line):
            if not is_call:
                counts[function].own += int(line.split()[1])
            is_call = False
    return counts


def plain(name):
    """Returns a name without the depth of a recursion."""
    return name.split("'")[0]
