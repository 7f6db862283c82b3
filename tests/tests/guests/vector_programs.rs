//! Programs built for x86-64-v3 print in the guest what they print on the host: those of
//! `tests/programs`, those of well-known libraries, and numpy, scipy and pandas.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, Skip, Test, TestModule};
use vbts_tests::programs;

/// The default model of `vbts trace`, and one that needs less of a host that executes it with KVM.
const MODELS: [&str; 2] = ["x86-64-v3", "x86-64-v3-basic"];

/// Compiler options.
const OPTIONS: [&[&str]; 2] = [
    &["-O3", "-march=x86-64-v3"],
    &["-O2", "-march=x86-64-v3", "-ffast-math", "-ftree-vectorize"],
];

/// Time for a traced run, on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// Parts of `scientific.py`.
const SCIENTIFIC: [&str; 3] = ["numpy", "pandas", "scipy"];

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let mut tests: Vec<(String, Test)> = vec![
        (
            "the_output_is_the_hosts".into(),
            Box::new(|machine| output(machine, "vectors.c", &OPTIONS, &["all"]).map(drop)),
        ),
        (
            "linux_saves_avx_state".into(),
            Box::new(linux_saves_avx_state),
        ),
        (
            "libraries_choose_their_code".into(),
            Box::new(libraries_choose_their_code),
        ),
    ];
    for part in SCIENTIFIC {
        tests.push((
            format!("slow::{part}"),
            Box::new(move |machine| scientific(machine, part)),
        ));
    }
    for name in library_programs() {
        tests.push((
            format!("slow::{name}"),
            Box::new(move |machine| library(machine, &name)),
        ));
    }
    machine::trials(module, tests)
}

/// The first of `models` that the host can execute. Skips the test if there is none.
fn model(models: &[&'static str]) -> Result<&'static str> {
    let mut missing = Vec::new();
    for name in models {
        missing = vbts_cpu::model(name).map_or_else(Vec::new, vbts_cpu::Model::missing_on_host);
        if missing.is_empty() {
            return Ok(name);
        }
    }
    bail!(Skip(format!("the host lacks {}", missing.join(", "))))
}

/// Compares what a program prints, built with each of `options`, and traced with each of `follow`.
/// Returns the hand-overs to KVM in each run.
fn output(
    machine: &Machine,
    source: &str,
    options: &[&[&str]],
    follow: &[&str],
) -> Result<Vec<u64>> {
    let model = model(&MODELS)?;
    let directory = tempfile::tempdir()?;
    let mut handovers = Vec::new();
    for options in options {
        let program = directory.path().join("program");
        build(source, options, &program)?;
        let host = machine::finish(Command::new(&program))?.expect(0)?;
        let trace = directory.path().join("trace");
        for follow in follow {
            let options = ["--stats", "--cpu", model, "--follow", follow];
            let run = machine
                .trace("btrace", &trace, &options, &[&program])?
                .expect(0)?;
            compare(&format!("{source} {options:?}"), &host, &run)?;
            handovers.push(to_kvm(&run.stderr)?);
        }
    }
    Ok(handovers)
}

/// The number of hand-overs to KVM that `--stats` has printed.
fn to_kvm(stats: &str) -> Result<u64> {
    let Some((_, rest)) = stats.split_once(" times, back: ") else {
        return Ok(0);
    };
    let number = rest.split(';').next().unwrap_or_default();
    Ok(number.parse()?)
}

/// The registers survive signals, switches of tasks, and hand-overs while they are in use. With
/// `--follow none`, tasks that are not traced run on KVM.
fn linux_saves_avx_state(machine: &Machine) -> Result<()> {
    let handovers = output(machine, "xstate.c", &OPTIONS[..1], &["all", "none"])?;
    if machine.accel() == "kvm" {
        let enough = handovers.iter().all(|number| *number >= 20);
        ensure!(enough, "hand-overs to KVM: {handovers:?}");
    }
    Ok(())
}

/// glibc calls its functions for AVX2, and OpenSSL finds AES-NI and AVX2.
fn libraries_choose_their_code(machine: &Machine) -> Result<()> {
    let model = model(&MODELS)?;
    let directory = tempfile::tempdir()?;
    let (program, trace) = (
        directory.path().join("program"),
        directory.path().join("trace"),
    );
    let options = ["-O1", "-fno-builtin", "-static"];
    build("string_functions.c", &options, &program)?;
    let options = ["--cpu", model];
    machine
        .trace("text", &trace, &options, &[&program])?
        .expect(0)?;
    let text = std::fs::read_to_string(&trace)?;
    for function in ["__strlen_avx2", "__memset_avx2_unaligned", "__memcmp_avx2"] {
        ensure!(text.contains(function), "{function} was not called");
    }

    let openssl = ["openssl", "info", "-cpusettings"];
    if let Err(error) = Command::new(openssl[0]).arg("version").output() {
        bail!(Skip::program(format!("cannot start openssl: {error}")));
    }
    let run = machine
        .trace("raw", &trace, &options, &openssl)?
        .expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    let words = output.trim().strip_prefix("OPENSSL_ia32cap=0x");
    let words = words.and_then(|words| words.split_once(":0x"));
    let Some((leaf1, leaf7)) = words else {
        bail!("unknown output of openssl: {output}");
    };
    // Words of two registers: EDX and ECX of leaf 1, EBX and ECX of leaf 7.
    let (leaf1, leaf7) = (
        u64::from_str_radix(leaf1, 16)?,
        u64::from_str_radix(leaf7, 16)?,
    );
    ensure!(leaf1 >> (32 + 25) & 1 != 0, "no AES: {output}");
    ensure!(leaf7 >> 5 & 1 != 0, "no AVX2: {output}");
    Ok(())
}

fn compare(name: &str, host: &Run, guest: &Run) -> Result<()> {
    ensure!(
        guest.stdout == host.stdout,
        "{name}: the guest printed\n{}and the host\n{}",
        String::from_utf8_lossy(&guest.stdout),
        String::from_utf8_lossy(&host.stdout)
    );
    Ok(())
}

fn build(source: &str, options: &[&str], program: &Path) -> Result<()> {
    let status = Command::new("cc")
        .args(options)
        .arg("-o")
        .arg(program)
        .arg(programs::source(source))
        .arg("-lm")
        .status()?;
    ensure!(status.success(), "cc: {status}");
    Ok(())
}

/// The crate with the programs of libraries, and with `scientific.py`.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vector_programs")
}

/// Names of the programs of libraries: those of the files in `src/bin`.
fn library_programs() -> Vec<String> {
    let files = directory().join("src/bin").read_dir();
    let paths = files
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path());
    let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<_> = paths.filter_map(stem).collect();
    names.sort();
    names
}

/// Builds the programs of libraries, once. Returns where they are, or why there are none.
fn build_libraries() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/vector-programs");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--release", "--locked", "--quiet", "--target-dir"])
            .arg(&target)
            .current_dir(directory())
            .env("RUSTFLAGS", "-C target-cpu=x86-64-v3")
            .env("CFLAGS", "-O3 -march=x86-64-v3")
            .env("CARGO_INCREMENTAL", "0")
            .output()
            .map_err(|error| format!("cannot start cargo: {error}"))?;
        if !built.status.success() {
            let errors = String::from_utf8_lossy(&built.stderr);
            return Err(format!("cargo build: {}\n{errors}", built.status));
        }
        Ok(target.join("release"))
    };
    BUILT.get_or_init(build).clone()
}

/// Compares what a program of a library prints.
fn library(machine: &Machine, name: &str) -> Result<()> {
    model(&MODELS[..1])?;
    let programs = build_libraries().map_err(Skip::program)?;
    same(machine, name, &|| Command::new(programs.join(name)))
}

/// Compares results of the packages of Python in `target/tools/scientific`, to the last bit. They
/// choose their code by the processor: the host gets the code that the guest gets.
fn scientific(machine: &Machine, part: &str) -> Result<()> {
    model(&MODELS[..1])?;
    let packages = machine::find("VBTS_SCIENTIFIC", "tools/scientific")
        .map_err(|why| Skip::program(format!("{why:#}")))?;
    same(machine, part, &|| {
        let mut command = Command::new("/usr/bin/python3");
        command
            .args([&directory().join("scientific.py"), Path::new(part)])
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR")
            .env("OPENBLAS_CORETYPE", "Haswell")
            .env("OPENBLAS_NUM_THREADS", "1");
        command
    })
}

/// Compares what a command prints on the host and, as its default model, in a guest. Checks that
/// the trace is whole.
fn same(machine: &Machine, name: &str, command: &dyn Fn() -> Command) -> Result<()> {
    let host = machine::finish_within(command(), LIMIT)?.expect(0)?;
    ensure!(!host.stdout.is_empty(), "{name} printed nothing");
    let work = tempfile::tempdir()?;
    let output = work.path().join("trace.btrace");
    let mut trace = machine.command(["trace", "--accel", machine.accel(), "--output"]);
    trace.arg(&output).arg("--");
    machine::append(&mut trace, &command());
    let guest = machine::finish_within(trace, LIMIT)?.expect(0)?;
    compare(name, &host, &guest)?;
    ensure!(guest.stderr.contains(", lost: 0,"), "{}", guest.stderr);
    Ok(())
}
