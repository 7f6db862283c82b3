# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures how long guests take to boot: our kernel to its first program, Debian from its disk
image to root's prompt.
"""

import os
import re

import running
import ways

DEBIAN = os.path.join(running.ROOT, "target/guest-rootfs")
PROMPT = re.compile(re.escape(b"root@vbts-guest:~# "))


def recorded(place, make, end):
    """Returns the boot of a machine of vbts with each branch kept in a file."""
    file = os.path.join(place.work, "boot.btrace")
    return ("vbts, recorded to a file", lambda: [*make(), "--record", file], end, None)


def interpreted(make, end):
    """Returns the boot of a machine of vbts without native code."""
    return ("vbts --jit off", lambda: [*make(), "--jit", "off"], end, None)


def kernel(place):
    """Returns the machines that boot our kernel: (name, function that returns the command, pattern
    that ends the boot, required tool).
    """
    line = "console=ttyS0 quiet panic=-1 mitigations=off -- plain /init"
    machine = [
        "-accel",
        "tcg",
        *ways.MODEL,
        "-m",
        ways.MEMORY,
        "-nodefaults",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-no-reboot",
        "-kernel",
        ways.KERNEL,
        "-initrd",
        place.initrd,
        "-append",
        line,
    ]
    qemu = "qemu-system-x86_64"
    vbts = [
        ways.VBTS,
        "run",
        "--accel",
        "soft",
        "--memory",
        ways.MEMORY + "M",
        "--root",
        "/",
        "--kernel",
        ways.KERNEL,
        "--initrd",
        place.initrd,
        "--append",
        "quiet -- plain /init",
    ]
    return [
        ("QEMU system", lambda: [qemu, *machine], running.BEGIN, qemu),
        (
            "QEMU system, recording plugin",
            lambda: [qemu, *place.plugin(qemu), *machine],
            running.BEGIN,
            qemu,
        ),
        ("vbts", lambda: vbts, running.BEGIN, None),
        interpreted(lambda: vbts, running.BEGIN),
        recorded(place, lambda: vbts, running.BEGIN),
    ]


def debian(place):
    """Returns the machines that boot Debian, each with a fresh copy of the disk."""
    disk = os.path.join(place.work, "disk")
    image, linux, initrd = (
        os.path.join(DEBIAN, name) for name in ("rootfs.img", "vmlinuz", "initrd")
    )
    if not os.path.exists(image):
        return []
    line = "root=/dev/vda quiet mitigations=off"

    def fresh(command):
        def make():
            running.sh("cp", "--sparse=always", "--reflink=auto", image, disk)
            return command

        return make

    qemu = "qemu-system-x86_64"
    vbts = fresh(
        [
            ways.VBTS,
            "run",
            "--accel",
            "soft",
            "--memory",
            "512M",
            "--disk",
            disk,
            "--kernel",
            linux,
            "--initrd",
            initrd,
            "--append",
            line,
        ]
    )
    return [
        (
            "QEMU system",
            fresh(
                [
                    qemu,
                    "-accel",
                    "tcg",
                    *ways.MODEL,
                    "-m",
                    "512",
                    "-nodefaults",
                    "-no-user-config",
                    "-display",
                    "none",
                    "-serial",
                    "stdio",
                    "-no-reboot",
                    "-drive",
                    f"if=none,id=disk,format=raw,file={disk}",
                    "-device",
                    "virtio-blk-pci,drive=disk",
                    "-device",
                    "virtio-rng-pci",
                    "-kernel",
                    linux,
                    "-initrd",
                    initrd,
                    "-append",
                    "console=ttyS0 panic=-1 " + line,
                ]
            ),
            PROMPT,
            qemu,
        ),
        ("vbts", vbts, PROMPT, None),
        interpreted(vbts, PROMPT),
        recorded(place, vbts, PROMPT),
    ]


def seconds(make, end):
    command = make()
    return running.until(command, end)[0][0]
