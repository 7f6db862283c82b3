# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The result of a comparison."""

import collections
import dataclasses

# Why answers differ, by the letters of docs/testing.md.
REASONS = {
    "a": "valgrind counts each step of a repeated string instruction",
    "b": "a string function depends on the addresses of its buffers",
    "c": "valgrind takes no symbols for the file, and does not know where functions begin",
    "d": "the environment, /proc and addresses of mappings differ",
    "e": "no instruction has the line: the head of a function, a label, the end of a block",
    "f": "the end of a block is executed once for each destructor",
    "g": "Go's tool counts a loop, and not how often its head is executed",
    "h": "a closure, or what the compiler makes of a go statement, has the line, too",
    "i": "an exception or a panic has left the block, which the tool counts as a whole",
    "j": "sys.setprofile does not see that a generator is made",
    "k": "CPython executes __init__ without its trampoline when it has specialised the call",
    "l": "gcov counts the last test of a loop of Fortran at a line in it",
    "m": "goroutines take turns by the time, and a pool has as many objects as wait",
    "n": "several branches lead to the line, of which llvm-cov counts one",
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
