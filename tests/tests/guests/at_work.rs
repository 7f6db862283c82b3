//! A Debian guest on a disk installs and removes packages and compiles programs, for
//! `VBTS_WORK_SECONDS`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule, setting};
use vbts_tests::programs;

use crate::stock_kernel::{debian, file, is_clean};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("apt_and_gcc_work", work)])
}

/// Texts with which the kernel reports a problem.
const COMPLAINTS: &str =
    "WARNING:|BUG:|Oops|Call Trace:|stall|lockup|blocked for more than|EXT4-fs error|I/O error";

/// A grammar for bison. Its parser adds and multiplies.
const GRAMMAR: &str = r#"
%{
#include <ctype.h>
#include <stdio.h>
int yylex(void);
void yyerror(const char *what) { puts(what); }
%}
%token NUMBER
%left '+'
%left '*'
%%
lines: | lines sum '\n' { printf("= %d\n", $2); }
sum: sum '+' sum { $$ = $1 + $3; } | sum '*' sum { $$ = $1 * $3; } | '(' sum ')' { $$ = $2; } | NUMBER
%%
int yylex(void)
{
	int c = getchar();
	if (!isdigit(c))
		return c == EOF ? 0 : c;
	for (yylval = 0; isdigit(c); c = getchar())
		yylval = yylval * 10 + c - '0';
	ungetc(c, stdin);
	return NUMBER;
}
int main(void) { return yyparse(); }
"#;

/// Compiler flags for hot.c.
const FLAGS: &str =
    "-O2 -mgeneral-regs-only -nostdlib -static -fno-pie -no-pie -fno-stack-protector";

/// A round of work, in which each step must succeed. The arguments are C files. FLAGS is set.
const ROUND: &str = "set -e; cd work
    apt='apt-get -qq -o Dir::Etc::SourceList=/srv/packages/sources.list -o Dir::Etc::SourceParts=/dev/null'
    export DEBIAN_FRONTEND=noninteractive
    $apt update
    $apt install -y bison flex >/dev/null
    bison -o grammar.c grammar.y
    gcc -O2 -o grammar grammar.c
    echo '2+3*(4+5)' | ./grammar
    for source; do gcc -O2 -Wall -c $source; done
    gcc $FLAGS -o hot hot.c
    ./hot 5
    $apt purge -y bison flex m4 libsigsegv2 >/dev/null
    dpkg --audit
    sync
    echo 3 >/proc/sys/vm/drop_caches";

/// Time for which the guest works, by the host's clock.
fn duration() -> Result<Duration> {
    Ok(Duration::from_secs(
        setting("VBTS_WORK_SECONDS")?.unwrap_or(1),
    ))
}

/// Number of C files of the guest kernel's tests that a round compiles.
const FILES: usize = 3;

/// Writes an archive of the files that the guest compiles, which is its second disk. Returns its
/// path and the names of the C files.
fn sources(directory: &Path) -> Result<(PathBuf, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = directory.join("sources");
    fs::create_dir(&sources)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("guest-kernel/tests"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".c") || name.ends_with(".h") {
            fs::copy(entry.path(), sources.join(&name))?;
        }
        if name.ends_with(".c") {
            names.push(name);
        }
    }
    names.sort();
    fs::copy(root.join("ci/bench.d/hot.c"), sources.join("hot.c"))?;
    fs::write(sources.join("grammar.y"), GRAMMAR)?;
    fs::write(sources.join("round"), ROUND)?;
    let archive = directory.join("sources.tar");
    let made = Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(&sources)
        .arg(".")
        .status()?;
    ensure!(made.success(), "cannot make an archive");
    Ok((archive, names))
}

/// The output of hot.c on this machine.
fn checksum(directory: &Path) -> Result<String> {
    let flags: Vec<&str> = FLAGS.split(' ').collect();
    let source = directory.join("sources/hot.c");
    let program = programs::gcc(&source, &directory.join("hot"), &flags)?;
    let run = Command::new(program).arg("5").output()?;
    Ok(String::from_utf8(run.stdout)?.trim().to_owned())
}

fn work(machine: &Machine) -> Result<()> {
    let limit = duration()?;
    file("rootfs.img")?;
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let (archive, names) = sources(directory)?;
    let disk = format!("{},ro", archive.display());
    let checksum = checksum(directory)?;
    let image = directory.join("root.img");
    let mut session = debian(machine, &image, &["--disk", &disk])?;
    session.expect(
        "stty -echo cols 200; systemctl is-system-running --wait",
        "running",
    )?;
    session.expect(
        "mkdir work; tar -C work -xf /dev/vdb && ls work",
        "stress.c",
    )?;
    let (start, mut rounds) = (Instant::now(), 0);
    let mut names = names.iter().map(String::as_str).cycle();
    while rounds == 0 || start.elapsed() < limit {
        let some: Vec<&str> = names.by_ref().take(FILES).collect();
        let line = format!(
            "FLAGS='{FLAGS}' sh work/round {}; echo status: $?",
            some.join(" ")
        );
        let output = session.command(&line)?;
        ensure!(
            output.contains("= 29\r\n")
                && output.contains(&checksum)
                && output.contains("status: 0\r\n"),
            "round {rounds}: {output}"
        );
        rounds += 1;
    }
    println!("{rounds} rounds in {:.0} s", start.elapsed().as_secs_f64());
    session.expect(
        "echo left: $(ls /usr/bin/bison /usr/bin/flex /usr/bin/m4 2>/dev/null | wc -l)",
        "left: 0\r\n",
    )?;
    let line = format!("dmesg | grep -E '{COMPLAINTS}'; echo complaints: $?");
    session.expect(&line, "complaints: 1\r\n")?;
    session.power_off()?;
    is_clean(&image)
}
