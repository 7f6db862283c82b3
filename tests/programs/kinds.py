# SPDX-License-Identifier: Apache-2.0 OR MIT

"""Generators, exceptions, closures and callbacks from C code, in numbers that are easy to know."""

import contextlib
import functools
import json


class Square:
    def area(self, size):
        return size * size


class Line(Square):
    def area(self, size):
        return 0 * super().area(size)


def refuse_odd(number):
    if number % 2:
        raise ValueError(number)


def is_odd(number):
    try:
        refuse_odd(number)
    except ValueError:
        return 1
    return 0


def numbers(end):
    for number in range(end):
        yield from (number, -number)


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.lru_cache
def remembered(n):
    return fibonacci(n)


@contextlib.contextmanager
def counted(seen):
    seen.append(len(seen))
    yield seen


def main():
    shapes = [Square(), Line(), Square()]
    total = sum(shapes[i % 3].area(i) for i in range(30))
    total += sum(map(is_odd, range(10)))
    total += sum(sorted(numbers(20), key=lambda number: -number)[:5])
    total += remembered(12) + remembered(12)
    seen = []
    for _ in range(3):
        with counted(seen):
            total += len(json.dumps({"a": seen}))
    print(total)


main()
