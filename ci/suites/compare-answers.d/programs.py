# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The programs: those of Debian, and small ones of tests/programs."""

import dataclasses
import os

# Debian's packages of the tools and programs.
PACKAGES = """binutils bzip2 clang file findutils gcc gdb gfortran git golang-go grep g++ gzip jq
    libclang-rt-dev llvm make mawk openssl perl sed sqlite3 tar uftrace valgrind xz-utils
    zstd""".split()
COMPILERS = {"C": "gcc", "C++": "g++", "Rust": "rustc", "Go": "go", "Fortran": "gfortran"}


@dataclasses.dataclass
class Program:
    """A program, its command, and what is asked about it."""

    name: str
    # In which it is written.
    language: str
    command: list[str]
    # A function, and the number of the call at which stacks are compared.
    stack: tuple[str, int] | None = None
    # Its name in the symbol table, if that is another one.
    symbol: str | None = None
    # The file in tests/programs, and flags of the compiler.
    source: str | None = None
    flags: list[str] = dataclasses.field(default_factory=list)


def installed(name, *arguments, stack=None, language="C"):
    return Program(os.path.basename(name), language, [name, *arguments], stack)


def compiled(source, language, *arguments, stack=None, symbol=None, flags=()):
    name = source.replace(".", "-")
    command = [f"./{name}", *arguments]
    return Program(name, language, command, stack, symbol, source, list(flags))


SQL = "create table t(a,b); insert into t values(3,4),(1,2); select * from t order by a;"
PERL = "my %n; $n{$_ % 7} += $_ for 1..500; print join(',', map {$n{$_}} sort keys %n), qq(\\n)"
PYTHON = "import json; print(json.dumps(sorted(str(n * n % 97) for n in range(200))))"

PROGRAMS = [
    installed("gzip", "-9c", "numbers"),
    installed("bzip2", "-c", "numbers", stack=("BZ2_blockSort", 1)),
    installed("xz", "-c", "numbers", stack=("lzma_code", 1)),
    installed("zstd", "-c", "--single-thread", "numbers"),
    installed("sort", "-n", "numbers", stack=("fflush_unlocked", 1)),
    installed("grep", "-c", "9[0-9]*1", "numbers"),
    installed("sed", "-n", "s/9*1/x/p", "numbers"),
    installed("mawk", "{n += $1} END {print n}", "numbers"),
    installed("ls", "/usr", stack=("readdir", 3)),
    installed("find", "/etc/apt", "-name", "*.d"),
    installed("tar", "-cf", "/dev/null", "numbers"),
    installed("sha256sum", "numbers"),
    installed("comm", "numbers", "numbers"),
    installed("factor", "600851475143", "18014398241046527"),
    installed("make", "--version"),
    installed("file", "numbers", stack=("magic_file", 1)),
    installed("jq", "-n", "[1,2,3]|map(.+1)", stack=("jv_parse_sized", 1)),
    installed("sqlite3", ":memory:", SQL, stack=("sqlite3_step", 2)),
    installed("openssl", "dgst", "-sha512", "numbers", stack=("EVP_DigestUpdate", 2)),
    installed("perl", "-e", PERL, stack=("Perl_pp_modulo", 10)),
    # That of Debian.
    installed("/usr/bin/python3", "-S", "-E", "-c", PYTHON, stack=("PyList_Sort", 3)),
    installed("cksum", "numbers"),
    installed("git", "--version"),
    installed("objdump", "-d", "/bin/true"),
    installed("readelf", "-s", "/bin/true"),
    compiled("answers.c", "C", stack=("insert", 100), flags=["-pthread"]),
    compiled("calc.c", "C", "2", "5", stack=("printf", 1)),
    compiled("inlined.c", "C", stack=("rare", 7)),
    compiled("words.cpp", "C++", stack=("__cxa_atexit", 1)),
    compiled("kinds.cpp", "C++"),
    compiled("words.rs", "Rust"),
    compiled("kinds.rs", "Rust", flags=["--edition=2021"]),
    compiled("words.go", "Go", stack=("main.count", 50)),
    compiled("kinds.go", "Go", stack=("main.refuseOdd", 6)),
    compiled(
        "words.f90",
        "Fortran",
        stack=("count_word", 50),
        symbol="count_word.0.isra.0",
        flags=["-fno-inline", "-fno-ipa-cp"],
    ),
    compiled("words.py", "Python"),
    compiled("kinds.py", "Python"),
]
