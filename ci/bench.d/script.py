# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Python workload: the work of small scripts, in equal parts: split, count, sort, call methods,
format.

script.py ROUNDS: prints a checksum, which is the same for every version of Python.
"""

import sys


class Account:
    def __init__(self, name):
        self.name = name
        self.entries = []

    def add(self, amount):
        self.entries.append(amount)
        return self

    def total(self):
        return sum(self.entries)


def turn(state):
    words, accounts = [], {}
    for _ in range(300):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        words.append(f"w{state >> 16 & 63:02d}")
    for position, word in enumerate(" ".join(words).split()):
        accounts.setdefault(word, Account(word)).add(position)
    lines = [
        f"{account.name}: {account.total()}"
        for account in sorted(accounts.values(), key=lambda a: (-a.total(), a.name))
    ]
    for letter in "\n".join(lines):
        state = (state * 31 + ord(letter)) & 0x7FFFFFFF
    return state


STATE = 1
for _ in range(int(sys.argv[1])):
    STATE = turn(STATE)
print(f"{STATE:08x}")
