# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guests' first file system: init.c, and where it mounts the host's root."""

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
