# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the hot workload on Bochs, from a ROM: without a disk and a boot loader, Bochs cannot boot a
kernel.
"""

import os
import subprocess

import running
import workloads

SETTINGS = """romimage: file={at}/rom.bin, address=0xffff0000
vgaromimage: file={at}/vga.bin
cpu: model=core2_penryn_t9600, reset_on_triple_fault=0
megs: 16
display_library: rfb, options="timeout=0"
port_e9_hack: enabled=1
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
log: -
panic: action=fatal
error: action=ignore
info: action=ignore
"""


def rom(at, scale):
    """Builds a ROM for the reset vector, with start code for 64-bit mode and hot.c."""

    def make(*args):
        subprocess.run(args, check=True, cwd=workloads.HERE)

    make(
        "gcc",
        "-O2",
        "-Wall",
        "-Wextra",
        *workloads.FREESTANDING,
        "-mno-red-zone",
        f"-DSCALE={scale}",
        "-Wl,-Ttext=0x100000",
        "-Wl,--build-id=none",
        "-o",
        f"{at}/payload.elf",
        "bare.S",
        "bare.c",
    )
    make("objcopy", "-O", "binary", f"{at}/payload.elf", f"{at}/payload.bin")
    make(
        "gcc",
        "-nostdlib",
        "-static",
        "-DROM",
        f'-DPAYLOAD="{at}/payload.bin"',
        "-Wl,-Ttext=0",
        "-Wl,--build-id=none",
        "-o",
        f"{at}/rom.elf",
        "bare.S",
    )
    make("objcopy", "-O", "binary", "-j", ".text", f"{at}/rom.elf", f"{at}/rom.bin")


def run(place, command):
    at = place.work
    rom(at, int(command[-1]))
    # Bochs needs a VGA BIOS and a display. The display "rfb" does not wait for a viewer. Debian's
    # Bochs has a debugger, which needs a command to continue.
    with open(os.path.join(at, "vga.bin"), "wb") as f:
        f.write(bytes([0x55, 0xAA, 1]) + bytes(509))
    with open(os.path.join(at, "commands"), "w", encoding="ascii") as f:
        f.write("c\n")
    with open(os.path.join(at, "bochsrc"), "w", encoding="ascii") as f:
        f.write(SETTINGS.format(at=at))
    return running.guest(["bochs", "-q", "-f", f"{at}/bochsrc", "-rc", f"{at}/commands"])
