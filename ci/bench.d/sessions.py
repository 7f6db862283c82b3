# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measures sessions of a recording in vbts debug: what its snapshots cost, and how long it takes to
go to a place and backward by an instruction.
"""

import json
import os
import shutil
import statistics

import ways
from running import Broken, program

# Places to which a session goes, and instructions that it goes backward.
PLACES = 20
STEPS = 20
# Programs that are recorded, and how many times the work that they have otherwise.
WORKLOADS = {"hot": 10, "python": 10}
# What gdb executes. It goes to the end, which takes snapshots on the way, and then to places of the
# run in a random order, which is the same one each time.
SCRIPT = f"""
goto end
python
import json, random, time

def timed(command):
    start = time.monotonic()
    gdb.execute(command, to_string=True)
    return time.monotonic() - start

end = int(gdb.execute("when", to_string=True).split()[0])
chosen = random.Random(1)
times = [chosen.randrange(end // 10, end) for _ in range({PLACES})]
took = {{
    "instructions": end,
    "goto": [timed(f"goto time {{time}}") for time in times],
    "reverse-stepi": [timed("reverse-stepi") for _ in range({STEPS})],
}}
print("bench: " + json.dumps(took))
end
"""
KINDS = {
    "replay": "vbts replay",
    "first": "first session: opens, goes to the end and to the places",
    "second": "second session, with the snapshots of the first",
    "goto": "goto, median of a session's",
    "reverse-stepi": "reverse-stepi, median of a session's",
}


def ran(command, cache):
    """Runs a command with a cache, and returns its seconds and what it prints."""
    sample, output = program(["env", f"XDG_CACHE_HOME={cache}", *command])
    return sample.seconds, output.decode(errors="replace")


def session(command, cache):
    """Runs a session, and returns its seconds and those that its script has measured."""
    seconds, said = ran(command, cache)
    found = [line for line in said.splitlines() if line.startswith("bench: ")]
    if not found:
        raise Broken(f"the session has not come to its end\n{said[-1500:]}")
    return seconds, json.loads(found[0].removeprefix("bench: "))


def measure(place, workload, size, runs, say):
    """Returns a list of values for each of KINDS, in seconds, and facts about the recording."""
    recording, script = place.recording, os.path.join(place.work, "session.gdb")
    cache = os.path.join(place.work, "cache")
    with open(script, "w", encoding="utf-8") as f:
        f.write(SCRIPT)
    if os.path.exists(recording):
        os.unlink(recording)
    record = [ways.VBTS, "record", "--quiet", "-o", recording, "--"]
    ran([*record, *workload.command(place.work, size)], cache)
    debug = [ways.VBTS, "debug", "--batch", "-x", script, recording]
    figures = {kind: [] for kind in KINDS}
    for _ in range(runs):
        shutil.rmtree(cache, ignore_errors=True)
        figures["replay"].append(ran([ways.VBTS, "replay", "--quiet", recording], cache)[0])
        figures["first"].append(session(debug, cache)[0])
        seconds, took = session(debug, cache)
        figures["second"].append(seconds)
        for kind in ("goto", "reverse-stepi"):
            figures[kind].append(statistics.median_high(took[kind]))
    kept = os.path.join(cache, "vbts/snapshots")
    sizes = [os.path.getsize(os.path.join(kept, name)) for name in os.listdir(kept)]
    os.unlink(recording)
    say(f"sessions, {workload.title}: {figures}")
    return {"instructions": took["instructions"], "snapshots": sum(sizes), "seconds": figures}
