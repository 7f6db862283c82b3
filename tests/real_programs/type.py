"""Runs a program on a terminal of 24 lines and types: type.py PROGRAM [ARG]... -- KEYS...

Each KEYS is typed when the program has drawn something and is quiet. What it draws is not shown.
"""

import fcntl
import os
import pty
import select
import struct
import sys
import termios

QUIET = 0.5


def read(terminal):
    """Returns whether the program still has the terminal."""
    try:
        return bool(os.read(terminal, 65536))
    except OSError:
        return False


split = sys.argv.index("--")
program, keys = sys.argv[1:split], sys.argv[split + 1 :]
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    os.environ["TERM"] = "xterm"
    os.execvp(program[0], program)
for typed in keys:
    alive = read(terminal)
    while alive and select.select([terminal], [], [], QUIET)[0]:
        alive = read(terminal)
    if alive:
        os.write(terminal, typed.encode().decode("unicode_escape").encode())
while read(terminal):
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
