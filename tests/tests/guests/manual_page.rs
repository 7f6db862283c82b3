//! The manual page of the kernel's API, guest-kernel/man/ptrace_bts.2: its example is compiled and
//! run. The page and syzkaller's description of the API have what the kernel's header has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{self, Branch};
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("the_page_is_well_formed", well_formed),
            ("the_example_prints_every_branch", example),
            ("the_page_describes_all_of_the_header", names),
            ("syzkaller_has_all_of_the_header", syzkaller),
        ],
    )
}

/// A file of guest-kernel.
fn guest_kernel(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../guest-kernel")
        .join(name)
}

fn page() -> Result<String> {
    Ok(std::fs::read_to_string(guest_kernel("man/ptrace_bts.2"))?)
}

fn well_formed(_: &Machine) -> Result<()> {
    let page = guest_kernel("man/ptrace_bts.2");
    let output = Command::new("mandoc")
        .args(["-T", "lint"])
        .arg(page)
        .output()
        .map_err(|error| Skip::program(format!("mandoc: {error}")))?;
    let complaints = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && complaints.is_empty(),
        "{complaints}"
    );
    Ok(())
}

/// The source of the page's program, with its escape sequences replaced.
fn program_source(page: &str) -> Result<String> {
    let (_, rest) = page
        .split_once("\n.SS Program source\n.EX\n")
        .context("no program")?;
    let (program, _) = rest
        .split_once("\n.EE\n")
        .context("no end of the program")?;
    let mut source = String::new();
    for line in program.lines() {
        ensure!(
            !line.starts_with(['.', '\'']),
            "a macro in the program: {line}"
        );
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('\\') {
            source.push_str(before);
            let mut characters = after.chars();
            match characters.next() {
                Some('-') => source.push('-'),
                Some('e') => source.push('\\'),
                Some('&') => {}
                other => bail!("unknown escape {other:?} in {line}"),
            }
            rest = characters.as_str();
        }
        source.push_str(rest);
        source.push('\n');
    }
    Ok(source)
}

/// Writes the kernel's `<asm/ptrace-bts.h>` below `directory`, with all patches applied. Returns
/// the directory for the compiler's search path.
fn header(directory: &Path) -> Result<PathBuf> {
    let include = "arch/x86/include/uapi";
    let mut patches: Vec<PathBuf> = std::fs::read_dir(guest_kernel("patches"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    patches.retain(|path| path.extension().is_some_and(|e| e == "patch"));
    patches.sort();
    for patch in patches {
        // In a repository, git apply skips files that the repository ignores.
        let status = Command::new("git")
            .args(["apply", "--include", &format!("{include}/*")])
            .arg(patch.canonicalize()?)
            .current_dir(directory)
            .env("GIT_DIR", "/nonexistent")
            .status()
            .context("cannot start git")?;
        ensure!(status.success(), "{} does not apply", patch.display());
    }
    Ok(directory.join(include))
}

fn example(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let include = header(directory.path())?;
    let source = directory.path().join("branches.c");
    std::fs::write(&source, program_source(&page()?)?)?;
    let include = include.display().to_string();
    let flags = [
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-static",
        "-idirafter",
        &include,
    ];
    let example = programs::gcc(&source, &directory.path().join("branches"), &flags)?;
    let traced = programs::compile(
        &programs::source("recursion.c"),
        &directory.path().join("recursion"),
        &[],
    )?;

    let output = directory.path().join("trace");
    machine.trace("raw", &output, &[], &[&traced])?.expect(0)?;
    let expected = branches::parse_raw(&std::fs::read(&output)?)?;
    // The agent traces the example, while the example traces the program.
    let run = machine
        .trace("raw", &output, &[], &[&example, &traced])?
        .expect(0)?;
    let printed = String::from_utf8(run.stdout)?;
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let got: Vec<Branch> = printed
        .lines()
        .filter_map(|line| {
            // The program's own output can precede the record on its line.
            let line = line.get(line.find("0x")?..)?;
            let (from, to) = line.split_once(" -> ")?;
            Some(Branch {
                from: number(from)?,
                to: number(to)?,
            })
        })
        .collect();
    let symbols = branches::Symbols::read(&traced)?;
    if let Some(difference) = branches::first_difference(&expected, &got, &symbols) {
        bail!(difference);
    }
    // The example's buffer holds less, so it was read more than once.
    ensure!(got.len() > 4096, "only {} branches", got.len());
    let last = format!("\n{} branches\n", got.len());
    ensure!(printed.ends_with(&last), "no {last} at the end");

    let run = machine
        .trace("raw", &output, &[], &[&example, Path::new("/nonexistent")])?
        .expect(0)?;
    ensure!(
        run.stderr.contains("/nonexistent: No such file"),
        "{}",
        run.stderr
    );
    Ok(())
}

/// The names that the kernel's header defines, with their values as it writes them.
fn definitions() -> Result<Vec<(String, String)>> {
    let directory = tempfile::tempdir()?;
    let header = std::fs::read_to_string(header(directory.path())?.join("asm/ptrace-bts.h"))?;
    let definitions = header.lines().filter_map(|line| {
        let line = line.split("/*").next().unwrap_or_default();
        let (name, value) =
            (line.strip_prefix("#define")?.trim()).split_once(char::is_whitespace)?;
        let value = value.trim().trim_matches(['(', ')']);
        Some((name.to_string(), value.to_string()))
    });
    Ok(definitions.collect())
}

/// The page describes each name of the header with its number, and no other name.
fn names(_: &Machine) -> Result<()> {
    let page = page()?;
    let mut found = 0;
    for (name, value) in definitions()? {
        // The page describes the bits of the signal number without this name.
        if name.contains("SIGNR") {
            continue;
        }
        let tag = format!(".BR {name} \" ({value})\"\n");
        ensure!(
            page.contains(&tag),
            "the page does not describe {name} as {value}"
        );
        found += usize::from(name.starts_with("PTRACE_"));
    }
    let tags = page
        .lines()
        .filter(|line| line.starts_with(".BR PTRACE_BTS_") && line.ends_with(")\""));
    ensure!(
        tags.count() == found && found > 10,
        "the page describes a name that the header does not have"
    );
    Ok(())
}

/// syzkaller's description has each request of the header, and each of its names has the header's
/// value. The program with which the fuzzer begins makes each request after the tracee has
/// stopped.
fn syzkaller(_: &Machine) -> Result<()> {
    let file = |name| std::fs::read_to_string(guest_kernel("syzkaller").join(name));
    let (calls, values) = (file("ptrace_bts.txt")?, file("ptrace_bts.txt.const")?);
    let program = file("test/ptrace_bts")?;
    let (_, program) = program
        .split_once(" = wait4$ptrace_bts(")
        .context("no tracee stops")?;
    let mut constants: BTreeMap<&str, &str> = (values.lines())
        .filter_map(|line| line.split_once(" = "))
        .filter(|(name, _)| name.starts_with("PTRACE_BTS_"))
        .collect();
    for (name, value) in definitions()? {
        let is_request = name.starts_with("PTRACE_BTS_") && !name.starts_with("PTRACE_BTS_O_");
        ensure!(
            !is_request || calls.contains(&format!("(req const[{name}], pid pid_ptrace_bts, ")),
            "there is no call for {name}"
        );
        let Some(constant) = constants.remove(name.as_str()) else {
            ensure!(!is_request, "there is no value of {name}");
            continue;
        };
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16)?,
            None => value.parse()?,
        };
        ensure!(constant.parse() == Ok(value), "{name} is {value}");
        let call = name.trim_start_matches("PTRACE_");
        ensure!(
            !is_request || program.contains(&format!("ptrace${call}({value:#x}, r")),
            "the program does not call {call}"
        );
    }
    ensure!(constants.is_empty(), "not in the header: {constants:?}");
    Ok(())
}
