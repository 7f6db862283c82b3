#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""usage: wheel.py STAGE VERSION REPOSITORY OUTPUT
Makes a wheel for pip, pipx and uv of what ci/package has staged: the program as a script, and the
guest's files in lib/vbts beside it, where the program finds them in each scheme of installation
that has one directory for both (virtual environments, --user, the system). Prints its name.

The wheel depends on these files only: times are SOURCE_DATE_EPOCH, and the order is by name.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile

# The program is static, so that any C library will do.
TAG = "py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64"
# What a wheel has of share/: manual pages, and completions where shells look for them.
SHARE = ["man", "bash-completion", "fish", "zsh"]
LICENCES = [
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "COPYING.GPL-2",
    "COPYING.LGPL-2.1",
    "copyright",
    "crates.txt",
]

METADATA = """\
Metadata-Version: 2.4
Name: vbts
Version: {version}
Summary: Exact branch traces, coverage and counts of Linux programs, without hardware support
License-Expression: (Apache-2.0 OR MIT) AND GPL-2.0-only AND LGPL-2.1-or-later
{licences}
Project-URL: Repository, {repository}
Project-URL: Sources, {repository}/releases/download/v{version}/vbts-{version}-sources.tar
Requires-Python: >=3.6
Description-Content-Type: text/markdown

{description}

## Sources

The guest's kernels in this wheel (lib/vbts/vmlinux, lib/vbts/*/vmlinux) are under the GPL-2.0, and
the programs are linked with the GNU C Library, which is under the LGPL-2.1. The complete sources of
both, with everything that is needed to build them, are in vbts-{version}-sources.tar, which is
offered, without charge, where the release of this version is:
{repository}/releases/download/v{version}/vbts-{version}-sources.tar
"""

DESCRIPTION = """\
`vbts trace -- PROGRAM` runs a program of this machine in a small virtual machine, and records every
branch that it takes. It needs no hardware support, no KVM and no privileges.

    vbts trace -- ls
    vbts stat -- ls
    vbts help"""


def files_of(stage):
    """Returns pairs of a name in the wheel's data directory and a path."""
    pairs = [("scripts/vbts", f"{stage}/bin/vbts")]
    for top in ["lib"] + [f"share/{name}" for name in SHARE]:
        for directory, _, names in os.walk(f"{stage}/{top}"):
            for name in names:
                path = os.path.join(directory, name)
                pairs.append(("data/" + os.path.relpath(path, stage), path))
    return pairs


def read(path):
    with open(path, "rb") as f:
        return f.read()


def main():
    stage, version, repository, output = sys.argv[1:]
    information = f"vbts-{version}.dist-info"
    metadata = METADATA.format(
        version=version,
        repository=repository,
        licences="\n".join(f"License-File: {name}" for name in LICENCES),
        description=DESCRIPTION,
    )
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in TAG.split("-")[2].split("."))
    # Names, contents, and whether the file can be executed.
    files = [
        (f"vbts-{version}.data/{name}", read(path), os.access(path, os.X_OK))
        for name, path in files_of(stage)
    ]
    files += [
        (f"{information}/licenses/{name}", read(f"{stage}/share/doc/vbts/{name}"), False)
        for name in LICENCES
    ]
    files += [
        (f"{information}/METADATA", metadata.encode(), False),
        (
            f"{information}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: vbts\nRoot-Is-Purelib: false\n{tags}".encode(),
            False,
        ),
    ]
    files.sort()
    record = ""
    for name, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{information}/RECORD,,\n"
    files.append((f"{information}/RECORD", record.encode(), False))
    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    wheel = f"vbts-{version}-{TAG}.whl"
    with zipfile.ZipFile(f"{output}/{wheel}", "w") as archive:
        for name, data, executable in files:
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, data, compresslevel=9)
    print(wheel)


if __name__ == "__main__":
    main()
