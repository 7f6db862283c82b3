# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Builds the guests' initial RAM disk: init.c, the mount point of the host's root, and programs."""

import os

import debian


def build(work, *programs):
    files = {"dev": (0o40755, b""), "root": (0o40755, b"")}
    for name in ("init", *programs):
        with open(os.path.join(work, name), "rb") as f:
            files[name] = (0o100755, f.read())
    with open(os.path.join(work, "initrd"), "wb") as out:
        out.write(debian.cpio(files))
