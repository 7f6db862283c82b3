# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes the figures as tables in Markdown, which are also readable on a terminal."""

import os
import platform
import re
import statistics
import subprocess

import running
import sessions
import workloads

import debian


def spread(values):
    """Returns the median and the extremes."""
    return (
        {"median": statistics.median(values), "min": min(values), "max": max(values)}
        if values
        else None
    )


def number(value):
    """Returns three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.01 else f"{value:.1g}"


def cell(value):
    """Returns a median, with its extremes if they differ from it in the digits shown."""
    if not value:
        return "–"
    low, middle, high = (number(value[name]) for name in ("min", "median", "max"))
    return middle if low == high else f"{middle} ({low}–{high})"


def table(head, rows):
    """Returns a table in Markdown. The first column is aligned to the left, the others to the
    right.
    """
    rows = [[str(text) for text in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in [head, *rows])) for i in range(len(head))]

    def line(row):
        return (
            "| "
            + " | ".join(
                t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths))
            )
            + " |"
        )

    rule = (
        "|"
        + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
        + "|"
    )
    return "\n".join([line(head), rule, *map(line, rows)])


def machine():
    """Returns what the figures depend on."""

    def first(command):
        try:
            said = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
            ).stdout
        except FileNotFoundError:
            return None
        return said.splitlines()[0].strip() if said else None

    with open("/proc/cpuinfo", encoding="utf-8") as f:
        info = f.read()
    family = re.findall(r"^(?:cpu family|model|stepping)\s*: (\d+)", info, re.MULTILINE)[:3]
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = int(re.search(r"MemTotal: *(\d+) kB", f.read())[1])
    versions = {
        tool: first([tool, "--version"])
        for tool in ["qemu-x86_64", "valgrind", "gdb", "gcc", "gzip"]
    }
    versions["python3"] = first([workloads.python(), "--version"])
    return {
        "processor": debian.processor(),
        "family, model, stepping": " ".join(family),
        "processors": len(os.sched_getaffinity(0)),
        "virtual machine": " hypervisor" in info,
        "memory": f"{memory / (1 << 20):.1f} GiB",
        "kernel": platform.release(),
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "vbts": first(["git", "-C", running.ROOT, "describe", "--always", "--dirty"]),
        "versions": {tool: said for tool, said in versions.items() if said},
    }


def machine_text(facts, runs):
    kind = "a virtual machine with " if facts["virtual machine"] else ""
    signature = facts["family, model, stepping"]
    lines = [
        f"Machine: {kind}{facts['processors']} processors, {facts['memory']}",
        f"Processor: {facts['processor']} (family, model, stepping: {signature})",
        f"Kernel: Linux {facts['kernel']}",
        f"vbts: {facts['vbts']}",
        f"Tools: {'; '.join(facts['versions'].values())}",
        f"Runs of each: {runs}",
        f"Load average at the start: {facts['load average at the start']}",
    ]
    noise = facts.get("noise")
    if noise is not None:
        lines.append(
            f"Noise: the slowest native run of a program took {noise:.0%} longer than the fastest "
            "(median over the workloads)"
        )
    return "\n".join(f"- {line}" for line in lines)


def matrix(figures, pick):
    """Returns a table with a row for each way and a column for each workload."""
    names = list(figures["workloads"])
    head = [""] + [figures["workloads"][name]["title"] for name in names]
    rows = []
    for key, title in figures["ways"].items():
        cells = [pick(figures["workloads"][name]["ways"].get(key)) for name in names]
        if any(cells):
            rows.append([title] + [cell(value) for value in cells])
    return table(head, rows)


def text(figures):
    """Returns all tables."""
    out = [machine_text(figures["machine"], figures["runs"])]

    def section(title, body):
        out.append(f"### {title}\n\n{body}")

    if figures["workloads"]:
        section("Time divided by native time", matrix(figures, lambda way: way and way["x native"]))
        section(
            "Time divided by that of vbts, untraced",
            matrix(figures, lambda way: way and way["x untraced"]),
        )
        section("Time in seconds", matrix(figures, lambda way: way and way["seconds"]))
        rows = [
            [
                w["title"],
                f"{w['instructions'] / 1e6:.0f}",
                *(
                    f"{w[kind] / 1e6:.2f}" if w.get(kind) else "–"
                    for kind in ("taken branches", "plugin's branches")
                ),
                *(
                    number(w[kind]) if w.get(kind) else "–"
                    for kind in (
                        "untraced M insn/s",
                        "traced M branches/s",
                        "traced guest M insn/s",
                    )
                ),
            ]
            for w in figures["workloads"].values()
            if w.get("instructions")
        ]
        if rows:
            section(
                "What vbts executes and records",
                table(
                    [
                        "",
                        "M instructions",
                        "M taken branches",
                        "by QEMU's plugin",
                        "untraced, M insn/s",
                        "traced, M branches/s",
                        "traced guest, M insn/s",
                    ],
                    rows,
                ),
            )
    if figures.get("kept"):
        rows = [
            [title, *(cell(found.get(way)) for way in ("vbts-btrace", "vbts-kept", "vbts-traced"))]
            for title, found in figures["kept"].items()
        ]
        section(
            "Time of a run that is kept, divided by that of one that is only recorded",
            table(["", "btrace", "raw to /dev/null", "raw to a file"], rows),
        )
    for column, title in enumerate(
        ["Bytes a record of a kept trace", "ns a record to encode", "ns a record to decode"]
    ):
        if figures.get("codec"):
            names = list(next(iter(figures["codec"].values())))
            rows = [
                [trace, *(cell(spread([run[column] for run in found[name]])) for name in names)]
                for trace, found in figures["codec"].items()
            ]
            section(title, table(["", *names], rows))
    if figures.get("goal"):
        goal = figures["goal"]
        rows = [[name, cell(value)] for name, value in goal["ratios"].items()]
        section(
            f"gzip -9 of {goal['bytes'] / 1e6:g} MB: whole commands, boot included",
            table(["", "ratio"], rows),
        )
    for title, key in [
        ("Seconds to start and end a program", "start"),
        ("Seconds to the guest's first program", "boot"),
        ("Seconds of Debian's boot to a prompt", "debian boot"),
    ]:
        if figures.get(key):
            section(
                title,
                table(
                    ["", "seconds"], [[name, cell(value)] for name, value in figures[key].items()]
                ),
            )
    if figures.get("processors"):
        section(
            "Two loops on two processors: the throughput divided by that of one loop",
            table(
                ["", "ratio"],
                [[name, cell(value)] for name, value in figures["processors"].items()],
            ),
        )
    if figures.get("sessions"):
        found = figures["sessions"].values()
        rows = [
            ["M instructions", *(f"{facts['instructions'] / 1e6:.0f}" for facts in found)],
            ["MB of kept snapshots", *(f"{facts['snapshots'] / 1e6:.1f}" for facts in found)],
            *(
                [f"{title}, s", *(cell(facts["seconds"][kind]) for facts in found)]
                for kind, title in sessions.KINDS.items()
            ),
        ]
        section("Sessions of a recording", table(["", *figures["sessions"]], rows))
    if figures.get("stepping"):
        section(
            "Tracers that stop at each instruction",
            table(
                ["", "instructions a second", "x native", "x traced on vbts"],
                [
                    [name, cell(row["rate"]), cell(row.get("x native")), cell(row.get("x traced"))]
                    for name, row in figures["stepping"].items()
                ],
            ),
        )
    if figures["skipped"]:
        out.append(
            "Skipped:\n\n"
            + "\n".join(f"- {what}: {why}" for what, why in figures["skipped"].items())
        )
    return "\n\n".join(out)
