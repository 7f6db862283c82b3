# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Shared by the Python scripts of this directory: packages from apt, the name of the processor,
and, for those that boot Debian's kernels, modules and initial RAM disks.
"""

import lzma
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
FAILED = 125
# The packages of Debian 13's Python.
PYTHON = "python3.13"
OF_PYTHON = [
    f"{PYTHON}-minimal",
    f"lib{PYTHON}-minimal",
    f"lib{PYTHON}-stdlib",
    "libc6",
    "libexpat1",
    "zlib1g",
]
# The exit status of a suite that cannot run on this machine, as in common.sh.
SKIPPED = 77


def say(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)


def skipped(what):
    """Says that a check is left out, and why, as `skipped` of common.sh."""
    say(f"skipped: {what}")
    if path := os.environ.get("VBTS_CI_SKIPS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(what + "\n")


def die(message):
    say(message)
    sys.exit(FAILED)


def sh(*args, cwd=ROOT, **options):
    """Runs a program, which must succeed, and returns its standard output."""
    done = subprocess.run(
        args,
        cwd=cwd,
        stdin=options.pop("stdin", subprocess.DEVNULL),
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    if done.returncode:
        die(f"{shlex.join(args)}: exit status {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def install(*packages):
    """Installs the Debian packages that are missing."""
    sh("bash", "-c", "source ci/common.sh; packages " + shlex.join(packages))


def own_apt(kind, directory, architecture=None, release=None):
    """Returns the options of apt's programs for packages of this kind (deb, deb-src) from Debian's
    places that this machine knows, or of another `release` from one of them. They are in a
    configuration of their own in `directory`: the machine's does not change.
    """
    install("debian-archive-keyring")
    form = "$(ORIGIN)|$(REPO_URI) $(RELEASE) $(COMPONENT)"
    known = sh("apt-get", "indextargets", "--format", form, "Identifier: Packages")
    places = sorted(set(re.findall(r"^Debian\|(.*)$", known, re.MULTILINE)))
    if not places:
        die("apt has no sources of Debian: run apt-get update")
    if release:
        # Not those of updates, such as bookworm-security.
        main = [place for place in places if "-" not in place.split()[1]]
        places = [f"{(main or places)[0].split()[0]} {release} main"]
    # apt deletes what it does not know from the directory of its lists.
    configuration = os.path.join(directory, "apt")
    lists = os.path.join(configuration, "lists")
    os.makedirs(os.path.join(lists, "partial"), exist_ok=True)
    sources = os.path.join(configuration, "sources.list")
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    with open(sources, "w", encoding="utf-8") as f:
        f.writelines(f"{kind} [signed-by={keyring}] {place}\n" for place in places)
    settings = [
        f"Dir::Etc::sourcelist={sources}",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={lists}",
        "Dir::Cache::pkgcache=",
        "Dir::Cache::srcpkgcache=",
        "APT::Sandbox::User=root",
    ]
    if architecture:
        # No package of it is installed here.
        settings += [
            f"Dir::State::status={os.devnull}",
            f"APT::Architecture={architecture}",
            f"APT::Architectures={architecture}",
        ]
    options = ["-qq"] + [word for setting in settings for word in ("-o", setting)]
    # A mirror that lacks one of the lists may have the packages all the same.
    update = ["apt-get", *options, "update"]
    done = subprocess.run(update, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"apt-get update: {done.stderr.strip()}")
    return options


def fetch_source(package, directory, release=None):
    """Fetches the files of a source package, unless `directory` has them, and returns the name of
    its description (.dsc). `release` is another release of Debian than this machine's.
    """
    install("dpkg-dev")
    apt = ["apt-get", *own_apt("deb-src", directory, release=release)]
    # apt keeps the files that are already there.
    sh(*apt, "source", "--download-only", package, cwd=directory)
    files = sh(*apt, "source", "--print-uris", package).split()
    return next(name for name in files if name.endswith(".dsc"))


def source(package, directory, release=None):
    """Fetches the source of a package, with Debian's changes, into a subdirectory of `directory`,
    and returns that. `release` is another release of Debian than this machine's.
    """
    os.makedirs(directory, exist_ok=True)
    description = fetch_source(package, directory, release)
    tree = os.path.join(directory, description.removesuffix(".dsc"))
    if not os.path.exists(tree):
        shutil.rmtree(tree + ".new", ignore_errors=True)
        sh("dpkg-source", "--no-check", "--extract", description, tree + ".new", cwd=directory)
        os.rename(tree + ".new", tree)
    return tree


def python_root():
    """Returns a root with Python 3.13 of Debian 13, which it makes if there is none."""
    directory = os.path.join(TARGET, "python-frames")
    made = os.path.join(directory, "root")
    if os.path.exists(os.path.join(made, "tmp")):
        return made
    os.makedirs(directory, exist_ok=True)
    options = own_apt("deb", directory, release="trixie")
    for package in OF_PYTHON:
        unpack(package, directory, options, "root")
    for name in ("lib", "lib64"):
        link = os.path.join(made, name)
        if not os.path.lexists(link):
            os.symlink(f"usr/{name}", link)
    for name in ("dev", "proc", "sys", "tmp"):
        os.makedirs(os.path.join(made, name), exist_ok=True)
    return made


def processor():
    """Returns the name of this machine's processor, or its architecture."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        found = re.search(r"^model name\s*: (.*)$", f.read(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def kernel_package(meta, options=()):
    """Returns the package that has the kernel of a meta-package. `options` are those of apt."""
    depends = sh("apt-cache", *options, "depends", meta)
    image = re.search(r"Depends: (linux-image-\S+)", depends)
    if not image:
        die(f"apt knows no {meta}: run apt-get update")
    return image[1]


def unpack(package, directory, options=("-qq",), name="files"):
    """Fetches a package, unpacks it into a new subdirectory of that name, and returns that.
    `options` are those of apt.
    """
    sh("apt-get", *options, "download", package, cwd=directory)
    archive = [
        file
        for file in os.listdir(directory)
        if file.startswith(package + "_") and file.endswith(".deb")
    ]
    files = os.path.join(directory, name)
    sh("dpkg-deb", "-x", archive[0], files, cwd=directory)
    return files


def kernel_image(files):
    """Returns the path of the kernel in an unpacked package."""
    boot = os.path.join(files, "boot")
    return os.path.join(
        boot, next(name for name in os.listdir(boot) if name.startswith("vmlinuz-"))
    )


def modules(files, wanted):
    """Returns the modules `wanted` of an unpacked package and their dependencies, in the order of
    loading: (name, contents).
    """
    found = {}
    for directory, _, names in os.walk(files):
        for name in names:
            module = re.fullmatch(r"(.+)\.ko(\.xz)?", name)
            if module:
                found[module[1].replace("-", "_")] = os.path.join(directory, name)
    loaded = {}

    def load(name):
        name = name.replace("-", "_")
        if name in loaded or name not in found:  # a missing one is built in
            return
        opener = lzma.open if found[name].endswith(".xz") else open
        with opener(found[name], "rb") as f:
            data = f.read()
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in depends[1].decode().split(",") if depends else []:
            if needed:
                load(needed)
        loaded[name] = data

    for name in wanted:
        load(name)
    return list(loaded.items())


def cpio(files):
    """Returns a newc archive of {name: (mode, contents)}."""
    out = bytearray()
    for ino, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
        raw = name.encode() + b"\0"
        fields = (ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + raw
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def contents(path):
    with open(path, "rb") as f:
        return f.read()


def first_files(init, directories, busybox=None):
    """Returns the files of an initial RAM disk: busybox, the program `init`, empty directories."""
    files = {name: (0o40755, b"") for name in ["bin", "modules", *directories]}
    busybox = busybox or shutil.which("busybox") or "/bin/busybox"
    files["bin/busybox"] = (0o100755, contents(busybox))
    files["init"] = (0o100755, contents(init))
    return files
