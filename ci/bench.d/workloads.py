# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of programs that are run, and how they are built."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
# Freestanding and with general registers only, so that the same instructions run everywhere and can
# be counted.
FREESTANDING = "-mgeneral-regs-only -nostdlib -static -fno-pie -no-pie -fno-stack-protector".split()


@dataclass(frozen=True)
class Workload:
    """A program and the size of its work. Slow ways of running it get a fraction of that."""

    key: str
    title: str
    size: int
    # From the directory with the files of `build` and `data`, and a size.
    command: Callable[[str, int], list]
    # Its start takes long, and does not depend on the size of the work.
    slow_start: bool = False


def python():
    """Returns Debian's Python. Another one may be a script, which QEMU cannot run."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else shutil.which("python3")


def compiler():
    """Returns GCC's compiler proper, without the driver."""
    said = subprocess.run(
        ["gcc", "-print-prog-name=cc1"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return said.strip()


WORKLOADS = [
    Workload("hot", "hot integer loop", 200, lambda work, size: [f"{work}/hot", str(size)]),
    Workload(
        "gzip",
        "gzip -9",
        1_000_000,
        lambda work, size: gzip(data(work, size)),
    ),
    Workload(
        "python",
        "Python script",
        150,
        lambda work, size: [python(), "-I", f"{HERE}/script.py", str(size)],
        slow_start=True,
    ),
    Workload(
        "syscalls", "system calls", 400_000, lambda work, size: [f"{work}/syscalls", str(size)]
    ),
    Workload(
        "switches", "context switches", 50_000, lambda work, size: [f"{work}/switches", str(size)]
    ),
    Workload(
        "cc1",
        "cc1 -O2",
        12,
        lambda work, size: [compiler(), "-quiet", "-O2", "-o", "-", source(work, size)],
        slow_start=True,
    ),
]

# Programs that do nothing. Their time is subtracted from that of the others. One loads the C
# library, as most programs do. The other has no library and is for the hot loop, which has none
# either.
START = Workload("start", "start-up", 0, lambda work, _: [shutil.which("true")])
BARE_START = Workload(
    "bare-start", "start-up without a library", 0, lambda work, _: [f"{work}/hot", "0"]
)


def start_of(workload):
    return BARE_START if workload.key == "hot" else START


def compile_c(work, name, *flags, compiler="gcc"):
    """Compiles a program of this directory, and returns its path."""
    target = os.path.join(work, name)
    subprocess.run(
        [
            compiler,
            "-O2",
            "-Wall",
            "-Wextra",
            *flags,
            "-o",
            target,
            os.path.join(HERE, name + ".c"),
        ],
        check=True,
    )
    return target


def build(work):
    compile_c(work, "hot", *FREESTANDING)
    compile_c(work, "syscalls")
    compile_c(work, "switches")
    compile_c(work, "parallel")
    compile_c(work, "init", "-static")


def gzip(path):
    """Returns the command that compresses a file."""
    return [shutil.which("gzip"), "-9", "-n", "-c", path]


def data(work, size):
    """Returns a file of `size` bytes that resembles text for gzip. Its words are the same on every
    machine, and some are much more frequent than others.
    """
    path = os.path.join(work, f"text-{size}")
    if not os.path.exists(path):
        draw = random.Random(1)
        words = [
            "".join(
                draw.choices("etaoinshrdlucmfwypvbgkqjxz", range(26, 0, -1), k=draw.randint(2, 9))
            )
            for _ in range(5000)
        ]
        weights = [1 / (rank + 3) for rank in range(len(words))]
        # A word and its space have at least three bytes.
        text = " ".join(draw.choices(words, weights, k=size // 2 + 1))
        with open(path, "w", encoding="ascii") as f:
            f.write(text[:size])
    return path


def source(work, size):
    """Returns a file of C code with `size` functions, which are the same on every machine."""
    path = os.path.join(work, f"generated-{size}.c")
    if not os.path.exists(path):
        draw = random.Random(2)
        functions = [function(draw, number) for number in range(size)]
        with open(path, "w", encoding="ascii") as f:
            f.write("struct node { struct node *next; int key; long sum; };\n")
            f.write("".join(functions))
    return path


def function(draw, number):
    """Returns a function with loops, a switch, pointers and floating point."""

    def pick():
        return draw.choice(["a", "b", "i", "n->key", "(int)n->sum", "t[i & 15]"])

    def expression():
        first, second = draw.choices("+-*^&|", k=2)
        return f"({pick()} {first} {pick()}) {second} {draw.randint(1, 999)}"

    cases = "".join(
        f"\t\tcase {case}: a = {expression()}; b += {expression()}; break;\n"
        for case in range(draw.randint(4, 12))
    )
    steps = "".join(
        f"\t\tif (({expression()}) {draw.choice('<>')} b) t[{step} & 15] = {expression()};\n"
        for step in range(draw.randint(3, 10))
    )
    earlier = f"\t\ta += f{draw.randrange(number)}(n->next, b, x);\n" if number else ""
    return (
        f"{draw.choice(['static ', ''])}int f{number}(struct node *n, int a, double x)\n{{\n"
        "\tint b = a * 3, t[16] = { a, b };\n"
        f"\tfor (int i = 0; n && i < {draw.randint(10, 99)}; i++, n = n->next) {{\n"
        f"\t\tswitch ((a ^ b) & 15) {{\n{cases}\t\tdefault: n->sum += a;\n\t\t}}\n"
        f"{steps}{earlier}\t\tx = x * 1.5 + a / (b | 1);\n"
        "\t}\n\treturn a + b + t[a & 15] + (int)x;\n}\n"
    )
