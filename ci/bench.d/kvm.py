# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures what it costs to leave KVM, and to hand a processor over to the software CPU and back,
and measures whole traced runs on KVM.
"""

import json
import re
import statistics
import subprocess

import running
import ways


def measure(runs, hot):
    built = subprocess.run(
        [
            "cargo",
            "build",
            "--release",
            "--locked",
            "-p",
            "vbts-tests",
            "--bench",
            "kvm",
            "--message-format=json-render-diagnostics",
        ],
        cwd=running.ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    bench = [
        m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "kvm"
    ]
    costs = json.loads(running.program(bench)[1])
    if "skipped" in costs:
        print(f"\nKVM: {costs['skipped']}")
        return costs
    print(f"\n{'KVM':38}{'us':>10}")
    for name, ns in costs.items():
        print(f"{name:38}{ns / 1e3 if isinstance(ns, float) else str(ns):>10.5}")
    if all(
        isinstance(costs[name], float)
        for name in ["KVM to soft", "soft to KVM", "traced instruction on soft"]
    ):
        round_trip = costs["KVM to soft"] + costs["soft to KVM"]
        print(
            "\na round trip takes as long as "
            f"{round_trip / costs['traced instruction on soft']:.0f} traced"
            " instructions on the software CPU"
        )
    print(f"\n{'Traced run, whole':38}{'s':>10}{'records':>10}")
    whole = {}
    for accel in ["soft", "kvm"]:
        outcomes = [traced(accel, hot) for _ in range(runs)]
        if isinstance(outcomes[0], str):
            print(f"{accel:38}  {outcomes[0].splitlines()[-1]}")
            continue
        whole[accel] = statistics.median(seconds for seconds, _ in outcomes)
        print(f"{accel:38}{whole[accel]:>10.2f}{outcomes[0][1]:>10}")
        step = costs.get("single-step of KVM")
        if accel == "kvm" and isinstance(step, float):
            print(
                f"{'(single steps of KVM for each branch)':38}"
                f"{outcomes[0][1] * step / 1e9:>10.2f}  at least"
            )
    return costs | {"traced_seconds": whole}


def traced(accel, hot):
    """Returns the seconds and records of a traced run, or why the host cannot run it (126)."""
    sample, _ = running.program(
        [
            ways.VBTS,
            "trace",
            "--accel",
            accel,
            "--format",
            "raw",
            "--output",
            "/dev/null",
            "--",
            hot,
            "1",
        ],
        good=(0, 126),
    )
    found = re.search(r"records: (\d+), lost: 0, exit: 0", sample.log)
    return (sample.seconds, int(found[1])) if found else sample.log.strip()
