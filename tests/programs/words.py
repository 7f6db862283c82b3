# SPDX-License-Identifier: Apache-2.0 OR MIT

"""Counts how often each of 100 words is in a list of 2000."""


def count(words, wanted):
    n = 0
    for word in words:
        if word == wanted:
            n += 1
    return n


words = [f"w{i % 100}" for i in range(2000)]
print(sum(count(words, f"w{i}") for i in range(100)))
