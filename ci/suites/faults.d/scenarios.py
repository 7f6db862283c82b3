# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What vbts does while a system call fails, and what has to hold of the files that it leaves."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence

import debian
from debian import ROOT

VBTS = os.environ.get("VBTS_BIN", os.path.join(ROOT, "target/release/vbts"))
# Ends by a signal that vbts does not catch, as a shell or strace reports them, and Rust's status
# for a panic.
CRASHES = {101, *(base + signal for base in (0, 128) for signal in (4, 6, 7, 8, 11, 31))}
# The sandbox's filter would take the number by which strace prevents a call for a forbidden one.
UNCONFINED = ["--sandbox", "off"]
TRACE = ["trace", *UNCONFINED, "--epoch", "0"]

# A program that reads and writes files of the root, of a share and of standard input, and extended
# attributes (setxattr, listxattr, getxattr, removexattr). A part of it crashes: the report has
# names of functions, which a process of its own reads.
FILES = """cat /etc/hostname
cd {share}; read line; echo $line > out; mv out new; mkdir directory; ls > /dev/null
chmod 600 new; chown 0 new; touch -d @0 new; ln new link; ln -s new symbolic; mkfifo pipe
truncate -s 1 new; sync new; rm -r link symbolic pipe directory; sleep 0.1
perl -e '($f, $n, $v, $b) = ("new", "user.a", "b", " " x 99); syscall(188, $f, $n, $v, 1, 0);
syscall(194, $f, $b, 99); syscall(191, $f, $n, $b, 99); syscall(197, $f, $n)'
sh -c 'kill -SEGV $$' || true"""
# Three processes, one of which crashes.
TASKS = "sleep 0.1 & wait; sh -c 'kill -SEGV $$' || true"
# A trace of 1.1 GB: the part after the first GiB passes the host's page cache.
LONG = "i=0; while [ $i -lt 32000 ]; do i=$((i+1)); done"
# Debian's kernel with a disk and a network.
JOB = """head -c 512 /dev/vda | dd of=/dev/vda bs=512 seek=3 conv=fsync 2>/dev/null
blkdiscard -o 4096 -l 4096 /dev/vda; blkdiscard -z -o 8192 -l 4096 /dev/vda; sync
ip link set eth0 up; ip address add 192.0.2.2/24 dev eth0; ping -c 2 -W 9 192.0.2.1; poweroff -f"""
TAP = """ip link set lo up && ip tuntap add dev tap0 mode tap &&
ip address add 192.0.2.1/24 dev tap0 && ip link set tap0 up && exec "$@" """


@dataclasses.dataclass
class Scenario:
    """A command of vbts, and what has to hold after it."""

    name: str
    # Arguments of vbts for a run in a directory of its own.
    command: Callable[[str], list[str]]
    # What is wrong with the files in the directory of a run that ended with a status and messages.
    defects: Callable[[str, int, str], Iterable[str]]
    # Makes the files that a run needs in its directory.
    prepare: Callable[[str], None] = lambda _: None
    # Command that starts the run.
    start: Sequence[str] = ()


def read(*path):
    """The text of a file, or nothing if the file does not exist."""
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


def incomplete_json(text, status):
    """What is wrong with a trace in JSON."""
    if text is None:
        if status == 0:
            yield "there is no trace"
        return
    branches, last = 0, {}
    for line in text.split("\n")[:-1]:
        # Most lines are branches, and the parser is slow.
        if line.startswith('{"kind":"branch",') and line.endswith("}"):
            branches += 1
            continue
        try:
            last = json.loads(line)
        except ValueError:
            yield f"a line is cut: {line[:80]}"
            return
    yield from wrong_summary(last, branches, status)


def wrong_summary(last, records, status):
    """What is wrong with the last object of a trace or of an index with so many records."""
    if last.get("kind") != "summary":
        if status == 0:
            yield "there is no summary"
    elif last["records"] != records:
        yield f"the summary counts {last['records']} records, and there are {records}"


def json_trace(directory, status, _):
    yield from incomplete_json(read(directory, "trace"), status)


def text_trace():
    """A check of traces as text, which all have the branches of the first one."""
    complete = None

    def defects(directory, status, messages):
        nonlocal complete
        text = read(directory, "trace")
        if text is None:
            if status == 0:
                yield "there is no trace"
            return
        if text and not text.endswith("\n"):
            yield "a line is cut"
        summary = re.search(r"^records: (\d+), .*\n\Z", text, re.MULTILINE)
        lines = re.findall(r"^[0-9a-f]+ .* -> .*$", text, re.MULTILINE)
        branches = [re.findall(r"(?:^|-> )([0-9a-f]+) ", line) for line in lines]
        if summary and int(summary[1]) != len(lines):
            yield f"the summary counts {summary[1]} records, and the trace has {len(lines)}"
        if not summary and status == 0:
            yield "the trace has no summary"
        if complete is None:
            complete = (branches, lines)
        # A program for which a call has failed can do something else.
        if branches == complete[0] and lines != complete[1] and "names missing" not in messages:
            yield "names are missing"

    return defects


def kept_trace(directory, status, _):
    trace = os.path.join(directory, "trace.btrace")
    if not os.path.exists(trace):
        if status == 0:
            yield "there is no trace"
        return
    report = [VBTS, "report", "json", trace]
    done = subprocess.run(report, capture_output=True, text=True, errors="replace", check=False)
    if abs(done.returncode) in CRASHES:
        yield f"vbts report crashes: {done.stderr}"
    elif done.returncode == 0:
        yield from incomplete_json(done.stdout, status)
    elif status == 0 or not done.stderr:
        yield f"vbts report ends with status {done.returncode}: {done.stderr}"


def trace_of_tasks(directory, status, _):
    index = read(directory, "tasks", "index.json")
    if index is None:
        if status == 0:
            yield "there is no index"
        return
    records = 0
    for name in os.listdir(os.path.join(directory, "tasks")):
        if name.endswith(".raw"):
            size = os.path.getsize(os.path.join(directory, "tasks", name))
            records += size // 24
            if size % 24:
                yield f"{name} ends with a part of a record"
    last = {}
    for line in index.split("\n")[:-1]:
        last = json.loads(line)
    yield from wrong_summary(last, records, status)


def long_trace(directory, status, messages):
    trace = os.path.join(directory, "trace")
    size = os.path.getsize(trace) if os.path.exists(trace) else 0
    if size % 24:
        yield "the trace ends with a part of a record"
    summary = re.search(r"records: (\d+)", messages)
    if summary and int(summary[1]) != size // 24:
        yield f"the message counts {summary[1]} records, and the trace has {size // 24}"
    if status == 0 and size <= 1 << 30:
        yield f"the trace has {size} bytes"


def machine(directory, status, messages):
    if status == 0 and "Power down" not in (read(directory, "console") or ""):
        yield "the console is cut"
    yield from kept_trace(directory, status, messages)


def own_report(directory, status, _):
    if status == 0 and not read(directory, "report"):
        yield "there is no report"


def report(what, *options):
    """A report of the trace that `prepare` keeps in the directory of the first run."""
    complete = None

    def prepare(directory):
        trace = ["--output", os.path.join(directory, "trace.btrace"), "--", "/bin/sh", "-c", TASKS]
        subprocess.run([VBTS, *TRACE, *trace], capture_output=True, check=False)

    def defects(directory, status, messages):
        nonlocal complete
        text = read(directory, "report")
        if complete is None:
            complete = (text, messages)
        if status != 0:
            if text:
                yield "a part of the report is left"
        elif text != complete[0] and messages == complete[1]:
            yield "the report differs from that without a fault"

    return Scenario(
        " ".join(["report", what, *options]),
        lambda directory: [
            *["report", what, *options, *UNCONFINED],
            *["--output", os.path.join(directory, "report")],
            os.path.join(directory, "trace.btrace"),
        ],
        defects,
        prepare,
    )


def trace(name, options, script, defects, prepare=lambda _: None):
    """A trace of a shell."""
    return Scenario(
        name,
        lambda directory: [
            *TRACE,
            *(option.format(directory) for option in options),
            *["--", "/bin/sh", "-c", script.format(share=directory + "/share")],
        ],
        defects,
        prepare,
    )


def share(directory):
    os.mkdir(os.path.join(directory, "share"))


def with_disk(directory):
    """Debian's kernel in a network namespace, with a disk."""
    files = os.path.join(debian.TARGET, "guest-rootfs")
    initrd = os.path.join(directory, "initrd")
    shutil.copyfile(os.path.join(files, "initrd"), initrd)
    with open(initrd, "ab") as file:
        file.write(debian.cpio({"init.job": (0o100644, JOB.encode())}))
    with open(os.path.join(directory, "disk"), "wb") as file:
        file.write(b"x" * (1 << 20))


def boot(directory):
    kernel = os.path.join(debian.TARGET, "guest-rootfs/vmlinuz")
    options = ["--accel", "soft", "--memory", "512M", "--net", "tap=tap0", "--record-last", "9999"]
    files = {"initrd": "initrd", "disk": "disk", "console": "console", "record": "trace.btrace"}
    for option, name in files.items():
        options += [f"--{option}", os.path.join(directory, name)]
    return ["run", *UNCONFINED, "--kernel", kernel, *options]


def scenarios():
    """All of them. A later one fails only at places that no earlier one has."""
    start = ["unshare", "--net", "sh", "-c", TAP, "sh"]
    if os.geteuid() != 0:
        start[1:1] = ["--user", "--map-root-user"]
    return [
        trace(
            "trace json",
            ["--format", "json", "--output", "{}/trace", "--share", "{}/share:rw"],
            FILES,
            json_trace,
            share,
        ),
        trace("trace text", ["--output", "{}/trace"], TASKS, text_trace()),
        trace("trace last", ["--output", "{}/trace", "--last", "99"], TASKS, text_trace()),
        trace("trace btrace", ["--output", "{}/trace.btrace"], TASKS, kept_trace),
        trace("trace raw", ["--format", "raw", "--output", "{}/tasks/"], TASKS, trace_of_tasks),
        trace(
            "trace long",
            ["--format", "raw", "--output", "{}/trace", "--jit", "on"],
            LONG,
            long_trace,
        ),
        trace(
            "trace report",
            ["--report", "functions", "--output", "{}/report"],
            TASKS,
            own_report,
        ),
        report("text"),
        report("json", "--only", "kill"),
        report("functions"),
        report("html"),
        report("perf"),
        Scenario("run", boot, machine, with_disk, start),
    ]
