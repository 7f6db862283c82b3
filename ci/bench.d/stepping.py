# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures the alternatives to a Branch Trace Store, which stop at each instruction: GDB's `record
full`, ptrace, and a gdbstub.

They are too slow for whole programs, so a limited number of instructions is counted.
"""

import os
import re
import socket
import subprocess
import time

import running
import workloads

STEPS = 20_000
# In hexadecimal, after the sixteen general registers.
RIP = slice(16 * 16, 17 * 16)


def gdb(work):
    """Lets GDB record one call of mix() of the hot workload, and returns instructions a second."""

    def run(record):
        sample, output = running.program(
            [
                "gdb",
                "-nx",
                "-batch",
                "-ex",
                "set confirm off",
                "-ex",
                "break mix",
                "-ex",
                "run 1",
                *record,
                "-ex",
                "finish",
                "-ex",
                "info record",
                "-ex",
                "kill",
                f"{work}/hot",
            ]
        )
        return sample.seconds, output.decode(errors="replace") + sample.log

    plain, _ = run([])
    recorded, text = run(["-ex", "set record full insn-number-max unlimited", "-ex", "record full"])
    found = re.search(r"Log contains (\d+) instructions", text)
    if not found or recorded <= plain:
        raise running.Broken(f"gdb recorded nothing\n{text[-1500:]}")
    return int(found[1]) / (recorded - plain)


def ptrace(work):
    program = workloads.compile_c(work, "step")
    _, output = running.program([program, str(STEPS), f"{work}/hot", "1"])
    return STEPS / float(output)


def gdbstub(work):
    """Steps QEMU as a debugger does, with a packet to step and one for the registers, and returns
    instructions a second.
    """
    path = os.path.join(work, "gdbstub")
    if os.path.exists(path):
        os.unlink(path)
    with (
        subprocess.Popen(
            ["qemu-x86_64", "-g", path, f"{work}/hot", "1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ) as machine,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        limit = running.limited(machine)
        try:
            while machine.poll() is None and connection.connect_ex(path):
                time.sleep(0.01)

            def ask(packet):
                connection.sendall(b"$%s#%02x" % (packet, sum(packet) & 255))
                answer = b""
                while not re.search(rb"#..$", answer):
                    piece = connection.recv(4096)
                    if not piece:
                        raise running.Broken("QEMU's gdbstub closed the connection")
                    answer += piece
                connection.sendall(b"+")
                return answer.lstrip(b"+")[1:-3]

            ask(b"?")
            start = time.monotonic()
            addresses = set()
            for _ in range(STEPS):
                if ask(b"s")[:1] not in (b"S", b"T"):
                    raise running.Broken("QEMU's gdbstub did not step")
                addresses.add(ask(b"g")[RIP])
            seconds = time.monotonic() - start
        finally:
            limit.cancel()
            machine.kill()
    if len(addresses) < 10:
        raise running.Broken("QEMU's gdbstub did not advance")
    return STEPS / seconds


# Title; function from the directory of the programs to instructions a second; required tool.
STEPPERS = [
    ("gdb record full", gdb, "gdb"),
    ("PTRACE_SINGLESTEP, native", ptrace, None),
    ("QEMU user, steps of its gdbstub", gdbstub, "qemu-x86_64"),
]
