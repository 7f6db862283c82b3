# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The result of a comparison."""

import collections
import dataclasses

# Why answers differ, by the letters of docs/testing.md.
REASONS = {
    "a": "valgrind counts each step of a repeated string instruction",
    "b": "a string function depends on the addresses of its buffers",
    "c": "valgrind does not know where a function without a symbol begins",
    "d": "the environment, /proc and addresses of mappings differ",
    "e": "no instruction has the line: the head of a function, or a label",
    "f": "the end of a block is executed once for each destructor",
}


@dataclasses.dataclass
class Result:
    """What was equal, and what was not."""

    # What is equal.
    equal: str
    # Differences that nothing explains.
    different: list[str] = dataclasses.field(default_factory=list)
    # Number of differences for each letter of REASONS.
    explained: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def text(self):
        """Returns the result for people."""
        parts = [self.equal]
        parts += [f"{n}: {REASONS[letter]}" for letter, n in sorted(self.explained.items())]
        if self.different:
            parts.append(f"{len(self.different)} differ")
        return "; ".join(parts)

    def cell(self):
        """Returns the result for a table, with letters for the reasons."""
        letters = [f"{n} {letter}" for letter, n in sorted(self.explained.items())]
        failed = [f"**{len(self.different)} differ**"] if self.different else []
        return ", ".join([self.equal, *letters, *failed])
