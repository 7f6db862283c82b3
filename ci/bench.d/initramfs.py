# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guests' first file system: init.c, and where it mounts the host's root."""

import os


def cpio(files):
    """A newc archive of {name: (mode, contents)}."""
    out = bytearray()
    entries = list(files.items()) + [("TRAILER!!!", (0, b""))]
    for ino, (name, (mode, data)) in enumerate(entries, 1):
        raw = name.encode() + b"\0"
        fields = (ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        out += b"070701" + b"".join(b"%08x" % f for f in fields) + raw
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def build(work):
    with open(os.path.join(work, "init"), "rb") as f, open(os.path.join(work, "initrd"), "wb") as out:
        out.write(cpio({"init": (0o100755, f.read()), "dev": (0o40755, b""), "root": (0o40755, b"")}))
