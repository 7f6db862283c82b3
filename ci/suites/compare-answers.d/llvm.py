# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The compilers and tools of LLVM that count the lines of a program."""

import os
import re
import shutil
import subprocess


class NotInstalled(Exception):
    """No tools can read the counts of the compiler."""


class Tools:
    """The commands for a language: a compiler that adds counters, the same without, and the tools
    that read the counts.
    """

    def __init__(self, language):
        if language == "Rust":
            # Functions that nothing calls are counted, too.
            self.plain = ["rustc", "-g", "-Clink-dead-code"]
            self.counting = ["rustc", "-Cinstrument-coverage"]
            version = output("rustc", "--version", "--verbose")
        else:
            compiler = {"C": "clang", "C++": "clang++"}[language]
            self.plain = [compiler, "-O0", "-g"]
            self.counting = [compiler, "-fprofile-instr-generate", "-fcoverage-mapping"]
            version = output(compiler, "--version")
        found = re.search(r"(?:LLVM|clang) version:? (\d+)", version)
        self.profdata, self.cov = tools(found[1] if found else "")


def tools(version):
    """Returns llvm-profdata and llvm-cov of this version: they read the counts of no other."""
    directories = [""]
    if shutil.which("rustc"):
        directories.append(os.path.join(output("rustc", "--print", "target-libdir"), "../bin/"))
    for directory in directories:
        for suffix in (f"-{version}", ""):
            profdata, cov = (f"{directory}llvm-{name}{suffix}" for name in ("profdata", "cov"))
            if shutil.which(cov) and f"LLVM version {version}." in output(cov, "--version"):
                return profdata, cov
    raise NotInstalled(f"no llvm-cov is of version {version}")


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
