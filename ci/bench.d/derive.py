# SPDX-License-Identifier: Apache-2.0 OR MIT
"""From single runs to figures. The time of a program that does nothing is subtracted, and the rest
is scaled to the whole work.
"""

import statistics

import plot as svg
import report
import workloads
from report import spread


def net(runs, start, size):
    """Returns the seconds that each run would take for all the work, without the start."""

    def scaled(run):
        before = start if run["before"] is None else run["before"]
        return before - start + (run["seconds"] - before) * size / run["size"]

    return [scaled(run) for run in runs]


def ratios(above, below):
    """Returns the spread of `above / below`, round by round, except where noise has made a figure
    zero or negative.
    """
    return spread([a / b for a, b in zip(above, below) if a > 0 and b > 0])


def gained(runs, start, key):
    """Returns the median count of all runs minus that of a program that does nothing."""
    values = [run[key] for run in runs if run[key] is not None]
    zero = [run[key] for run in start if run[key] is not None]
    return statistics.median(values) - statistics.median(zero) if values and zero else None


def derive(runs, sizes, chosen, rates):
    figures = {
        "workloads": {},
        "kept": {},
        "ways": {way.key: way.title for way in chosen},
        "kinds": {way.key: way.kind for way in chosen},
    }
    for workload, size in sizes.items():
        starts = {way.key: runs[workloads.start_of(workload).key, way.key] for way in chosen}
        zero = {
            key: statistics.median(run["seconds"] for run in start) if start else 0.0
            for key, start in starts.items()
        }
        mine = {way.key: runs[workload.key, way.key] for way in chosen}
        seconds = {key: net(some, zero[key], size) for key, some in mine.items()}
        entry = {
            "title": workload.title,
            "size": size,
            "ways": {
                key: {
                    "seconds": spread([t for t in times if t > 0]),
                    "x native": ratios(times, seconds["native"]),
                    "x untraced": ratios(times, seconds["vbts"]),
                    "runs": mine[key],
                }
                for key, times in seconds.items()
                if any(t > 0 for t in times)
            },
            "instructions": gained(mine["vbts"], starts["vbts"], "instructions"),
            "taken branches": gained(mine["vbts-traced"], starts["vbts-traced"], "records"),
        }
        if mine.get("qemu-user-plugin"):
            entry["plugin's branches"] = gained(
                mine["qemu-user-plugin"], starts["qemu-user-plugin"], "records"
            )
        untraced, traced = (statistics.median(seconds[key]) for key in ("vbts", "vbts-traced"))
        if untraced > 0 and traced > 0:
            inside = gained(mine["vbts-traced"], starts["vbts-traced"], "instructions")
            entry["untraced M insn/s"] = entry["instructions"] / untraced / 1e6
            entry["traced M branches/s"] = entry["taken branches"] / traced / 1e6
            entry["traced guest M insn/s"] = inside / traced / 1e6 if inside else None
        entry["start"] = zero
        figures["workloads"][workload.key] = entry
        recorded = seconds.get("vbts-recorded", [])
        figures["kept"][workload.title] = {
            key: ratios(seconds[key], recorded)
            for key in ("vbts-btrace", "vbts-kept", "vbts-traced")
            if seconds.get(key)
        }
    figures["start"] = {
        way.title: spread([run["boot"] + run["seconds"] for run in some])
        for way in chosen
        if (some := runs[workloads.START.key, way.key])
    }
    natives = [runs[workload.key, "native"] for workload in sizes]
    noise = [
        max(r["seconds"] for r in some) / min(r["seconds"] for r in some) - 1
        for some in natives
        if len(some) > 1
    ]
    figures["noise"] = statistics.median(noise) if noise else None
    figures["stepping"] = stepping(figures, rates)
    if "gzip" in figures["workloads"]:
        figures["goal"] = goal(figures["workloads"]["gzip"], figures["stepping"])
    return figures


def stepping(figures, rates):
    """Returns the rates of the stepping tracers, and their ratios to those of the hot workload."""
    hot = figures["workloads"].get("hot")
    out = {}
    for title, values in rates.items():
        if not values:
            continue
        out[title] = {"rate": spread(values)}
        for name, way in [("x native", "native"), ("x traced", "vbts-traced")]:
            if hot and hot["instructions"] and way in hot["ways"]:
                rate = hot["instructions"] / hot["ways"][way]["seconds"]["median"]
                out[title][name] = spread([rate / value for value in values])
    return out


def goal(gzip, steppers):
    """Ratios of the times of whole commands, boot included."""
    untraced = [run["boot"] + run["seconds"] for run in gzip["ways"]["vbts"]["runs"]]
    traced = [run["seconds"] for run in gzip["ways"]["vbts-traced"]["runs"]]
    out = {"vbts traced to a file / vbts untraced": ratios(traced, untraced)}
    for key, title in [
        ("qemu-user-step", "QEMU user, single-step / vbts traced"),
        ("qemu-user-step-log", "QEMU user, single-step, logged / vbts traced"),
    ]:
        if key in gzip["ways"]:
            start = gzip["start"][key]
            times = [start + run for run in net(gzip["ways"][key]["runs"], start, gzip["size"])]
            out[title] = ratios(times, traced)
    for title, row in steppers.items():
        times = [gzip["instructions"] / row["rate"][name] for name in ("max", "median", "min")]
        out[f"{title} / vbts traced, by the instructions"] = spread(
            [time / statistics.median(traced) for time in times]
        )
    return {"bytes": gzip["size"], "ratios": out}


def plot(figures):
    """Returns an SVG image with a panel for each workload."""
    panels = []
    for workload in figures["workloads"].values():
        rows = [
            (title, figures["kinds"][key], way["x native"], report.cell(way["x native"]))
            for key, title in figures["ways"].items()
            if (way := workload["ways"].get(key)) and way["x native"]
        ]
        panels.append((workload["title"], rows))
    return svg.bars(
        panels,
        "Time divided by native time: median and extremes, logarithmic scale; shorter is better",
    )
