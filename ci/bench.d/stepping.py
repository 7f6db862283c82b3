# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What people use where there is no Branch Trace Store: an instruction at a time, by GDB's `record
full`, ptrace, or a gdbstub.

So slow that a program of any size is out of the question: the instructions of a while are counted.
"""

import os
import re
import socket
import subprocess
import time

import running
import workloads

STEPS = 20_000
# In hexadecimal, behind the sixteen general registers.
RIP = slice(16 * 16, 17 * 16)


def gdb(work):
    """GDB records one call of mix(), of the hot workload, and counts what it has recorded."""

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
        raise running.Broken(f"gdb has recorded nothing\n{text[-1500:]}")
    return int(found[1]) / (recorded - plain)


def ptrace(work):
    program = workloads.compile_c(work, "step")
    _, output = running.program([program, str(STEPS), f"{work}/hot", "1"])
    return STEPS / float(output)


def gdbstub(work):
    """QEMU's single-step as a debugger uses it: one packet to step, one for the registers."""
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
                        raise running.Broken("QEMU's gdbstub has gone")
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
        raise running.Broken("QEMU's gdbstub stood still")
    return STEPS / seconds


# A title, instructions a second of a directory with the programs, and the tool that is needed.
STEPPERS = [
    ("gdb record full", gdb, "gdb"),
    ("PTRACE_SINGLESTEP, native", ptrace, None),
    ("QEMU user, steps of its gdbstub", gdbstub, "qemu-x86_64"),
]
