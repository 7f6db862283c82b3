#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prints the licences of the crates that are linked into vbts and the agent, with their texts.
A text that several crates have is printed once.
"""

import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ("vbts", "vbts-agent")
TARGET = "x86_64-unknown-linux-gnu"
TEXTS = re.compile(r"(licen[cs]e|copying|notice|copyright)", re.IGNORECASE)


def linked():
    """Returns the packages that are linked into PROGRAMS, sorted, without those of this project."""
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", TARGET],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found = set()
    waiting = [name for name, package in packages.items() if package["name"] in PROGRAMS]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for dependency in nodes[name]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    others = [packages[name] for name in found if packages[name]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """Yields the texts of a package's licences."""
    directory = os.path.dirname(package["manifest_path"])
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if TEXTS.match(name) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as f:
                yield "\n".join(line.rstrip() for line in f.read().strip().splitlines())


def main():
    users = {}
    print("Crates that are linked into vbts and its agent, and their licences:\n")
    for package in linked():
        title = f"{package['name']} {package['version']}"
        print(f"  {title}: {package['license'] or 'see its text'}")
        for text in texts(package):
            users.setdefault(text, []).append(title)
    for text, titles in users.items():
        print(f"\n{'-' * 72}\n{', '.join(titles)}:\n\n{text}")


if __name__ == "__main__":
    sys.exit(main())
