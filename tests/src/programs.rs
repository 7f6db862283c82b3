//! The test programs: static executables without a C library, at fixed addresses, built when a test
//! needs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// No C library and no start files; fixed addresses; nothing that differs between machines.
const FLAGS: &[&str] = &[
    "-nostdlib",
    "-static",
    "-no-pie",
    "-fno-pie",
    "-ffreestanding",
    "-fno-builtin",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-mno-red-zone",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,--build-id=none",
];

/// A program of `tests/programs`.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name of the source file.
    pub source: &'static str,
    /// What it exits with.
    pub status: i32,
    /// Options for the compiler, besides those of all programs.
    pub flags: &'static [&'static str],
}

/// Every test program with one task.
pub const ALL: &[Program] = &[
    Program {
        source: "recursion.c",
        status: 0,
        flags: &[],
    },
    Program {
        source: "dispatch.c",
        status: 3,
        flags: &[],
    },
    Program {
        source: "strings.S",
        status: 0,
        flags: &[],
    },
    Program {
        source: "signal.c",
        status: 7,
        flags: &[],
    },
    Program {
        source: "long_loop.S",
        status: 0,
        flags: &[],
    },
    Program {
        source: "displacement.S",
        status: 0,
        flags: &[],
    },
    Program {
        source: "compat.S",
        status: 0,
        flags: &[],
    },
    Program {
        source: "syscalls.c",
        status: 0,
        flags: &[],
    },
    Program {
        source: "faults.c",
        status: 0,
        flags: &[],
    },
    Program {
        source: "self_modifying.c",
        status: 0,
        flags: &[],
    },
    Program {
        source: "floating.c",
        status: 0,
        flags: &[],
    },
    Program {
        source: "straight.S",
        status: 131,
        flags: &[],
    },
    Program {
        source: "ia32.c",
        status: 5,
        flags: &["-m32"],
    },
    Program {
        source: "ia32_far.S",
        status: 6,
        flags: &["-m32"],
    },
];

/// Those that can be 32-bit programs, as such.
pub const I386: &[Program] = &[
    Program {
        source: "recursion.c",
        status: 0,
        flags: &["-m32"],
    },
    Program {
        source: "dispatch.c",
        status: 3,
        flags: &["-m32"],
    },
    Program {
        source: "syscalls.c",
        status: 0,
        flags: &["-m32"],
    },
    Program {
        source: "floating.c",
        status: 0,
        flags: &["-m32"],
    },
    Program {
        source: "ia32.c",
        status: 5,
        flags: &["-m32"],
    },
];

/// The program that starts threads and processes.
pub const TASKS: Program = Program {
    source: "tasks.c",
    status: 3,
    flags: &[],
};

impl Program {
    /// The name without the language.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.source.split('.').next().unwrap_or(self.source)
    }

    /// Compiles the program into `directory`.
    ///
    /// # Errors
    /// If there is no `gcc`, or it does not like the program.
    pub fn build(&self, directory: &Path) -> Result<PathBuf> {
        compile(
            &source(self.source),
            &directory.join(self.name()),
            self.flags,
        )
    }
}

/// Path of a file of `tests/programs`.
#[must_use]
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}

/// Compiles one source file into a static executable, with `flags` besides the usual ones.
///
/// # Errors
/// If there is no `gcc`, or it does not like the source.
pub fn compile(source: &Path, output: &Path, flags: &[&str]) -> Result<PathBuf> {
    gcc(source, output, &[FLAGS, flags].concat())
}

/// Compiles one source file with exactly these flags.
///
/// # Errors
/// As [`compile`].
pub fn gcc(source: &Path, output: &Path, flags: &[&str]) -> Result<PathBuf> {
    let result = Command::new("gcc")
        .args(flags)
        .arg("-o")
        .args([output, source])
        .output()
        .context("cannot start gcc (install the gcc package)")?;
    if !result.status.success() {
        bail!(
            "gcc failed on {}:\n{}",
            source.display(),
            String::from_utf8_lossy(&result.stderr)
        );
    }
    Ok(output.to_owned())
}
