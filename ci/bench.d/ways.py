# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of ways to run a program. Each makes, from the program's command line, the command line
of the machine or tool that runs the program.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import bochs
import workloads
from running import ROOT, Broken, guest, program

VBTS = os.path.join(ROOT, "target/release/vbts")
KERNEL = os.path.join(ROOT, "target/guest/vmlinux")
# The model of vbts is core2: all ways except the native run have the same vector registers.
MODEL = ["-cpu", "core2duo"]
MEMORY = "256"


@dataclass(frozen=True)
class Way:
    """A way of running a program; `run` gives a Sample."""

    key: str
    title: str
    run: Callable
    tool: str | None = None  # a program that must be in PATH
    part: int = 1  # a slow way gets the work divided by this
    only: tuple = ()  # keys of the workloads, if not all, with the empty ones
    kind: str = "peer"  # for the plot: native, peer, or ours


@dataclass
class Place:
    """Where the files of a run are, and the plugin that each tool accepts."""

    work: str
    plugins: dict = field(default_factory=dict)

    @property
    def initrd(self):
        return os.path.join(self.work, "initrd")

    @property
    def trace(self):
        return os.path.join(self.work, "trace")

    @property
    def counts(self):
        return os.path.join(self.work, "counts")

    @property
    def recording(self):
        return os.path.join(self.work, "recording.vbts")

    def plugin(self, tool, keeps=False):
        """Returns the options of `tool` for the plugin, which writes its number of records to
        `counts` and, if it `keeps` them, the records to `trace`.
        """
        if tool not in self.plugins:
            self.plugins[tool] = build_plugin(self.work, tool)
        # The plugin appends to both.
        for file in (self.counts, self.trace):
            if os.path.exists(file):
                os.unlink(file)
        options = f"{self.plugins[tool]},out={self.counts}"
        return ["-plugin", options + (f",records={self.trace}" if keeps else "")]


def build_plugin(work, tool):
    """Builds the plugin for the newest version of the API that a QEMU accepts. The functions that
    the plugin uses are the same in all versions.
    """
    said = subprocess.run([tool, "--help"], stdout=subprocess.PIPE, text=True, check=False).stdout
    if not re.search(r"^ *-plugin\b", said, re.MULTILINE):
        raise Broken(f"this {tool} was built without plugins")
    for version in range(6, 0, -1):
        target = os.path.join(work, f"plugin-{version}.so")
        if not os.path.exists(target):
            made = workloads.compile_c(
                work, "plugin", "-shared", "-fPIC", f"-DPLUGIN_VERSION={version}"
            )
            os.rename(made, target)
        rest = [shutil.which("true")]
        if "system" in tool:
            # A machine without devices, which gets the command to end.
            rest = ["-M", "none", "-nodefaults", "-display", "none", "-monitor", "stdio"]
        tried = subprocess.run(
            [tool, "-plugin", f"{target},out={work}/counts", *rest],
            input="quit\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if tried.returncode == 0:
            return target
        said = tried.stdout.strip()
    raise Broken(f"{tool} accepts no version of the plugin: {said}")


def one_at_a_time():
    """Returns the name of qemu-user's single-step option."""
    text = subprocess.run(
        ["qemu-x86_64", "-h"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    return "-one-insn-per-tb" if "one-insn-per-tb" in text else "-singlestep"


def prefixed(prefix):
    """Returns a way that puts a command in front of the program's."""
    return lambda place, command: program([*prefix(place), *command])[0]


def microvm(place):
    return [
        "qemu-system-x86_64",
        "-M",
        "microvm,acpi=off,rtc=on,auto-kernel-cmdline=off",
        "-accel",
        "tcg",
        *MODEL,
        "-m",
        MEMORY,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-no-reboot",
        "-kernel",
        KERNEL,
        "-initrd",
        place.initrd,
    ]


# 9P on virtio-mmio, because our kernel has no PCI.
SHARED_ROOT = [
    "-fsdev",
    "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
    "-device",
    "virtio-9p-device,fsdev=root,mount_tag=root",
]
LINE = (
    "console=ttyS0 quiet panic=-1 reboot=t mitigations=off "
    "virtio_mmio.device=512@0xfeb00e00:12 -- plain "
)


def qemu_system(options):
    def run(place, command):
        machine = [*microvm(place), *SHARED_ROOT, *options(place)]
        return guest([*machine, "-append", LINE + " ".join(command)])

    return run


def qemu_recorded(mode):
    """Returns a way that records a machine, or replays one that it has recorded. A program of the
    initial RAM disk runs there, because QEMU does not record 9P.
    """

    def run(place, command):
        name, *arguments = command
        line = LINE + " ".join(["/" + os.path.basename(name), *arguments])
        for step in ("record", mode) if mode != "record" else (mode,):
            log = f"shift=auto,rr={step},rrfile={place.recording}"
            sample = guest([*microvm(place), "-icount", log, "-append", line], stay=True)
        os.unlink(place.recording)
        return sample

    return run


def vbts_run(mode, jit="on", *options):
    def run(place, command):
        # At its own end, vbts prints how many instructions it has executed.
        return guest(
            [
                VBTS,
                "run",
                "--accel",
                "soft",
                "--jit",
                jit,
                *options,
                "--memory",
                MEMORY + "M",
                "--log",
                "debug",
                "--root",
                "/",
                "--kernel",
                KERNEL,
                "--initrd",
                place.initrd,
                "--append",
                f"quiet -- {mode} {' '.join(command)}",
            ],
            stay=True,
        )

    return run


def vbts_trace(output, jit="on", form="raw"):
    return lambda place: [
        VBTS,
        "trace",
        "--accel",
        "soft",
        "--jit",
        jit,
        "--cpu",
        "core2",
        "--memory",
        MEMORY + "M",
        "--log",
        "debug",
        "--format",
        form,
        "--output",
        output or place.trace,
        "--",
    ]


def vbts_record(place):
    options = ["--cpu", "core2", "--memory", MEMORY + "M", "--quiet", "--force"]
    return [VBTS, "record", *options, "-o", place.recording, "--"]


def vbts_replay(*options):
    """Returns a way that records the program, and replays that; only the replay is measured."""

    def run(place, command):
        program([*vbts_record(place), *command])
        return program([VBTS, "replay", "--quiet", *options, place.recording])[0]

    return run


def rr_record(place):
    # A directory for each run.
    return ["rr", "record", "--output-trace-dir", tempfile.mkdtemp(dir=place.work) + "/trace"]


def rr_replay(place, command):
    """Records the program, and replays that; only the replay is measured."""
    recorder = rr_record(place)
    program([*recorder, *command])
    return program(["rr", "replay", "--autopilot", recorder[-1]])[0]


USER = ["qemu-x86_64", *MODEL]
CALLGRIND = ["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
LOGGED = ["-d", "nochain,exec", "-D", "/dev/null"]

WAYS = [
    Way("native", "native", prefixed(lambda place: []), kind="native"),
    Way("qemu-user", "QEMU user", prefixed(lambda place: USER), "qemu-x86_64"),
    Way(
        "qemu-user-plugin",
        "QEMU user, recording plugin",
        prefixed(lambda place: [*USER, *place.plugin("qemu-x86_64")]),
        "qemu-x86_64",
    ),
    Way(
        "qemu-user-plugin-file",
        "QEMU user, plugin that writes a file",
        prefixed(lambda place: [*USER, *place.plugin("qemu-x86_64", keeps=True)]),
        "qemu-x86_64",
        # Not programs that fork: both processes would write what is in the buffer.
        only=("start", "hot", "gzip", "python", "syscalls", "cc1"),
    ),
    Way("qemu-system", "QEMU system", qemu_system(lambda place: []), "qemu-system-x86_64"),
    Way(
        "qemu-system-plugin",
        "QEMU system, recording plugin",
        qemu_system(lambda place: place.plugin("qemu-system-x86_64")),
        "qemu-system-x86_64",
    ),
    Way(
        "qemu-system-plugin-file",
        "QEMU system, plugin that writes a file",
        qemu_system(lambda place: place.plugin("qemu-system-x86_64", keeps=True)),
        "qemu-system-x86_64",
    ),
    Way(
        "qemu-recording",
        "QEMU system, record",
        qemu_recorded("record"),
        "qemu-system-x86_64",
        only=("bare-start", "hot"),
    ),
    Way(
        "qemu-replay",
        "QEMU system, replay",
        qemu_recorded("replay"),
        "qemu-system-x86_64",
        only=("bare-start", "hot"),
    ),
    Way("bochs", "Bochs", bochs.run, "bochs", part=4, only=("bare-start", "hot")),
    Way("rr-recording", "rr record", prefixed(rr_record), "rr"),
    Way("rr-replay", "rr replay", rr_replay, "rr"),
    Way("callgrind", "Valgrind callgrind", prefixed(lambda place: CALLGRIND), "valgrind", part=2),
    Way(
        "qemu-user-step",
        "QEMU user, single-step",
        prefixed(lambda place: [*USER, one_at_a_time()]),
        "qemu-x86_64",
        part=10,
        only=("start", "bare-start", "hot", "gzip", "python"),
    ),
    Way(
        "qemu-user-step-log",
        "QEMU user, single-step, logged",
        prefixed(lambda place: [*USER, one_at_a_time(), *LOGGED]),
        "qemu-x86_64",
        part=200,
        only=("start", "bare-start", "hot", "gzip"),
    ),
    Way("vbts", "vbts, untraced", vbts_run("plain"), kind="ours"),
    Way("vbts-recorded", "vbts, recorded (circular)", vbts_run("recorded"), kind="ours"),
    Way("vbts-recording", "vbts record", prefixed(vbts_record), kind="ours"),
    Way("vbts-replay", "vbts replay", vbts_replay(), kind="ours"),
    Way(
        "vbts-replay-btrace",
        "vbts replay, kept as btrace",
        vbts_replay("--format", "btrace", "--output", "/dev/null"),
        kind="ours",
    ),
    Way("vbts-traced", "vbts, traced to a file", prefixed(vbts_trace(None)), kind="ours"),
    Way("vbts-kept", "vbts, traced to /dev/null", prefixed(vbts_trace("/dev/null")), kind="ours"),
    Way(
        "vbts-btrace",
        "vbts, kept as btrace",
        prefixed(vbts_trace(None, form="btrace")),
        kind="ours",
    ),
    Way("vbts-off", "vbts --jit off, untraced", vbts_run("plain", "off"), kind="ours"),
    Way("vbts-recorded-off", "vbts --jit off, recorded", vbts_run("recorded", "off"), kind="ours"),
    Way(
        "vbts-kept-off",
        "vbts --jit off, traced to /dev/null",
        prefixed(vbts_trace("/dev/null", "off")),
        kind="ours",
    ),
]


def missing(way):
    """Returns why a way is not available here, or None."""
    if way.tool and not shutil.which(way.tool):
        return f"there is no {way.tool}"
    if way.tool == "rr":
        with tempfile.TemporaryDirectory() as work:
            command = ["rr", "record", "--output-trace-dir", work + "/trace", "true"]
            tried = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
        if tried.returncode:
            return "rr cannot record here: " + " ".join(tried.stdout.split())[:200]
    return None


def instructions(sample):
    """Returns the number of instructions that a guest of vbts retired, else None."""
    found = re.search(r"\binstructions=(\d+)", sample.log)
    return int(found[1]) if found else None


def records(way, place, sample):
    """Returns the number of branches that a way recorded, if known. A trace must be complete."""
    if way.key == "vbts-traced":
        said = re.search(r"records: (\d+), lost: 0, exit: 0", sample.log)
        size = os.path.getsize(place.trace)
        # Deleted at once. Otherwise the host would write it to the disk during the next runs.
        os.unlink(place.trace)
        if not said or size != 24 * int(said[1]):
            raise Broken(f"the trace is not complete\n{sample.log[-1500:]}")
        return int(said[1])
    if "-plugin" in way.key:
        try:
            with open(place.counts, encoding="ascii") as f:
                count = sum(int(line) for line in f)
        except FileNotFoundError as error:
            raise Broken("the plugin has counted nothing") from error
        if way.key.endswith("-file"):
            size = os.path.getsize(place.trace)
            os.unlink(place.trace)
            # The machine is killed at the program's end, before the plugin's, and has no count.
            if size == 0 or count and size != 24 * count:
                raise Broken(f"the plugin has kept {size} bytes of {count} records")
        return count
    return None
