#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""usage: statements.py DIRECTORY VERSION
Writes what the packages of a directory are made of, beside them: a bill of materials (CycloneDX
1.5), and how they were built (in-toto statement, SLSA provenance 1). Neither is signed.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys

import crates

# Of the Debian sources that are in the packages.
LICENCES = {"linux": "GPL-2.0-only", "glibc": "LGPL-2.1-or-later"}


def sh(*args):
    return subprocess.run(
        args, cwd=crates.ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def built_using(package):
    """Returns the Debian sources that are in a package: pairs of name and version."""
    return re.findall(r"(\S+) \(= ([^)]+)\)", sh("dpkg-deb", "--field", package, "Built-Using"))


def url(name, version):
    return f"pkg:deb/debian/{name}@{version}?arch=source"


def bill(version, commit, time, sources):
    components = [
        {
            "type": "library",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "licenses": [{"expression": (package["license"] or "").replace("/", " OR ")}],
        }
        for package in crates.linked()
    ]
    components += [
        {
            "type": "operating-system" if name == "linux" else "library",
            "name": name,
            "version": source,
            "purl": url(name, source),
            "licenses": [{"expression": LICENCES[name]}],
        }
        for name, source in sources
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "component": {
                "type": "application",
                "name": "vbts",
                "version": version,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
                "properties": [{"name": "commit", "value": commit}],
            },
        },
        "components": components,
    }


def provenance(version, commit, sources, files):
    tools = {
        "rustc": sh("rustc", "--version"),
        "gcc": sh("gcc", "--version").splitlines()[0],
        "ld": sh("ld", "--version").splitlines()[0],
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": os.path.basename(path), "digest": {"sha256": digest(path)}} for path in files
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://vbts.invalid/ci/package/v1",
                "externalParameters": {"version": version},
                "internalParameters": tools,
                "resolvedDependencies": [
                    {"name": "vbts", "digest": {"gitCommit": commit}},
                    {"name": "crates", "digest": {"sha256": digest(f"{crates.ROOT}/Cargo.lock")}},
                ]
                + [{"name": name, "uri": url(name, source)} for name, source in sources],
            },
            "runDetails": {"builder": {"id": "https://vbts.invalid/ci/release"}},
        },
    }


def main():
    directory, version = sys.argv[1:]
    names = sorted(name for name in os.listdir(directory) if name.startswith("vbts"))
    files = [os.path.join(directory, name) for name in names]
    package = next(path for path in files if path.endswith(".deb"))
    commit = sh("git", "rev-parse", "HEAD")
    seconds = int(sh("git", "log", "-1", "--format=%ct"))
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
    sources = built_using(package)
    for kind, statement in [
        ("cdx", bill(version, commit, time, sources)),
        ("provenance", provenance(version, commit, sources, files)),
    ]:
        path = os.path.join(directory, f"vbts-{version}.{kind}.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(statement, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
