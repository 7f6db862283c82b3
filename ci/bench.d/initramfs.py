# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Builds the guests' initial RAM disk: init.c, and the mount point of the host's root."""

import os

import debian


def build(work):
    with (
        open(os.path.join(work, "init"), "rb") as f,
        open(os.path.join(work, "initrd"), "wb") as out,
    ):
        out.write(
            debian.cpio(
                {"init": (0o100755, f.read()), "dev": (0o40755, b""), "root": (0o40755, b"")}
            )
        )
