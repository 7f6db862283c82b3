#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""usage: run.py RELEASE KERNEL
Runs the examples of docs/templates/examples as a CI system does: the steps of a shell, and those of
action.yml or templates/vbts.yml with the inputs of the example, each job in a copy of the project
beside this script. RELEASE is the address of a release of vbts, KERNEL a kernel. Other actions are
known by name: their effects are those on files.

Writes what the component of GitLab becomes, with its inputs, for a check by a schema, to the
directory gitlab. Fails if a job fails, if it leaves no summary, if a growth does not fail, or if a
failure is not recorded.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import ruamel.yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "project")
EXAMPLES = f"{ROOT}/docs/templates/examples"


class Failure(Exception):
    pass


def load(path):
    with open(path, encoding="utf-8") as f:
        return list(ruamel.yaml.YAML(typ="safe").load_all(f))


def check(condition, text):
    if not condition:
        raise Failure(text)


def shell(script, directory, env):
    """Runs a script as CI systems do: it ends with the first command that fails."""
    environment = {name: os.environ[name] for name in ["PATH", "HOME"]}
    return subprocess.run(
        ["sh", "-e", "-c", script], cwd=directory, env=environment | env, check=False
    ).returncode


class Job:
    """A job, in a directory of its own."""

    def __init__(self, name, release, kernel):
        self.name, self.release, self.kernel = name, release, kernel
        self.directory = os.path.abspath(name)
        shutil.copytree(PROJECT, self.directory)
        self.summary = f"{self.directory}/step-summary"
        self.status = 0
        self.artifacts = []

    def github(self, steps):
        for step in steps:
            if "run" in step:
                self.shell(step["run"], {})
            elif step["uses"].startswith("vbts/vbts@"):
                self.action(step["with"])
            elif step["uses"].startswith("actions/download-artifact@"):
                shutil.copy(self.kernel, f"{self.directory}/{step['with']['name']}")
            else:
                check(step["uses"].startswith("actions/checkout@"), f"unknown: {step['uses']}")

    def shell(self, script, env):
        if not self.status:
            self.status = shell(script, self.directory, env | {"GITHUB_STEP_SUMMARY": self.summary})

    def action(self, given):
        (action,) = load(f"{ROOT}/action.yml")
        inputs = {name: value.get("default", "") for name, value in action["inputs"].items()}
        check(set(given) <= set(inputs), f"{self.name}: an input is not one of {set(inputs)}")
        inputs |= given | {"release": self.release}

        def expand(text):
            return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda name: inputs[name[1]], text)

        for step in action["runs"]["steps"]:
            if "run" in step:
                env = {name: expand(value) for name, value in step["env"].items()}
                self.shell(expand(step["run"]), env)
            else:
                check(step["uses"].startswith("actions/upload-artifact@"), step["uses"])
                self.artifacts.append(expand(step["with"]["path"]))

    def gitlab(self, job):
        variables = {name: str(value) for name, value in job.get("variables", {}).items()}
        for script in job["script"]:
            self.shell(script, variables)
        self.artifacts = job["artifacts"]["paths"]

    def results(self):
        """Returns the directory with the results, which has to be an artifact."""
        (path,) = self.artifacts
        return os.path.join(self.directory, path)


def component(given, release):
    """Returns the job that the component becomes, as GitLab does."""
    header, _ = load(f"{ROOT}/templates/vbts.yml")
    with open(f"{ROOT}/templates/vbts.yml", encoding="utf-8") as f:
        body = f.read().split("\n---\n")[1]
    inputs = {name: value.get("default") for name, value in header["spec"]["inputs"].items()}
    check(set(given) <= set(inputs), f"an input is not one of {set(inputs)}")
    inputs |= given | {"release": release}
    check(None not in inputs.values(), f"an input is missing: {inputs}")
    check(inputs["mode"] in header["spec"]["inputs"]["mode"]["options"], inputs["mode"])

    def text(name):
        value = inputs[name[1]]
        return json.dumps(value) if isinstance(value, list) else value

    return re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", text, body)


# The files of each mode, besides summary.md.
FILES = {
    "trace": ["index.html", "flamegraph.svg", "trace.btrace"],
    "coverage": ["lcov.info", "cobertura.xml", "index.html"],
    "count": ["counts.json", "counts.txt"],
    # A recording of what has not failed is not kept.
    "record": [],
    "test": ["report.xml", "ktap"],
}
# What a summary says.
FIGURES = {
    "trace": r"[\d,]+  instructions",
    "coverage": r"\| lines \| \d+ \| \d+ \| \d+\.\d % \|",
    "count": r"[\d,]+  instructions",
    "record": r"ended with status 0",
    "test": r"\| [1-9]\d* \| 0 \| \d+ \| 0 \|",
}


def judge(mode, job):
    check(job.status == 0, f"{job.name}: status {job.status}")
    for name in FILES[mode]:
        check(os.path.getsize(f"{job.results()}/{name}") > 0, f"{job.name}: {name} is empty")
    with open(f"{job.results()}/summary.md", encoding="utf-8") as f:
        summary = f.read()
    check(re.search(FIGURES[mode], summary), f"{job.name}: no figures in {summary}")
    with open(job.summary, encoding="utf-8") as f:
        check(f.read() == summary, f"{job.name}: the step's summary is another one")
    print(f"{job.name}: passed", flush=True)


def growth(job, run, counts):
    """Runs the job that counts again, with the counts of a run that executes less."""
    with open(counts, encoding="utf-8") as f:
        baseline = json.load(f)
    baseline["user"]["instructions"] = baseline["user"]["instructions"] * 98 // 100
    with open(f"{job.directory}/counts.json", "w", encoding="utf-8") as f:
        json.dump(baseline, f)
    run(job)
    check(job.status == 1, f"{job.name}: a growth of 2 % ends with status {job.status}")
    with open(f"{job.results()}/summary.md", encoding="utf-8") as f:
        check("**failed: status 1**" in f.read(), f"{job.name}: the summary shows no failure")
    print(f"{job.name}: passed", flush=True)


def failure(job, steps):
    """Runs the job that records with a program that fails: the recording is an artifact."""
    for step in steps:
        if "with" in step:
            step["with"]["command"] = "sh -c 'kill -SEGV $$'"
    job.github(steps)
    check(job.status == 139, f"{job.name}: a failure ends with status {job.status}")
    for name in ["recording.vbts", "tail.txt", "summary.md"]:
        check(os.path.getsize(f"{job.results()}/{name}") > 0, f"{job.name}: {name} is empty")
    print(f"{job.name}: passed", flush=True)


def main():
    release, kernel = sys.argv[1:]
    for mode in FILES:
        (workflow,) = load(f"{EXAMPLES}/github-{mode}.yml")
        (steps,) = (job["steps"] for job in workflow["jobs"].values())
        job = Job(f"github-{mode}", release, kernel)
        job.github(steps)
        judge(mode, job)
        if mode == "count":
            again = Job("github-count-growth", release, kernel)
            growth(
                again, lambda job, steps=steps: job.github(steps), f"{job.results()}/counts.json"
            )

        if mode == "record":
            failure(Job("github-record-failure", release, kernel), steps)

    (pipeline,) = load(f"{EXAMPLES}/gitlab.yml")
    os.mkdir("gitlab")
    modes = set()
    for include in pipeline["include"]:
        inputs = include["inputs"]
        text = component(inputs, release)
        with open(f"gitlab/{inputs['job']}.yml", "w", encoding="utf-8") as f:
            f.write(text)
        expanded = ruamel.yaml.YAML(typ="safe").load(text)
        job = Job(f"gitlab-{inputs['job']}", release, kernel)
        for needed in inputs["needs"]:
            if needed == "kernel":
                (name,) = pipeline[needed]["artifacts"]["paths"]
                shutil.copy(kernel, f"{job.directory}/{name}")
            else:
                for script in pipeline[needed]["script"]:
                    job.shell(script, {})
        job.gitlab(expanded[inputs["job"]])
        judge(inputs["mode"], job)
        modes.add(inputs["mode"])
        if inputs["mode"] == "count":
            again = Job("gitlab-count-growth", release, kernel)
            again.shell("make", {})
            growth(
                again,
                lambda job, expanded=expanded: job.gitlab(expanded["count"]),
                f"{job.results()}/counts.json",
            )
    check(modes == set(FILES), f"the example has the modes {modes}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"run.py: {failure}")
