//! `vbts setup`: builds the guest's files from the sources of vbts, or fetches them, and puts them
//! where vbts finds them when it is installed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use vbts_guest_files::arch::Arch;
use vbts_host::exit::{Failure, say};

/// The guest's files: of `guest-kernel/build`, and of an installation.
const FILES: [&str; 3] = ["vmlinux", "agent", "ptrace_bts"];
/// A file that marks a directory as one that this command has filled.
const MARK: &str = "from-vbts-setup";
/// The script that fetches a release and installs it.
const INSTALLER: &str = include_str!("../install.sh");

/// Arguments of `vbts setup`.
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Directory with the sources of vbts
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub source: PathBuf,
    /// Architecture of the guest: i386 for processor models without a 64-bit mode
    #[arg(long, value_parser = arch(), default_value = Arch::X86_64.name())]
    pub arch: Arch,
    /// Fetch the files of this version's release instead of building them
    #[arg(long, conflicts_with_all = ["source", "arch"])]
    pub download: bool,
    /// Remove what an earlier call has installed
    #[arg(long, conflicts_with_all = ["source", "download"])]
    pub remove: bool,
}

/// Runs the command.
///
/// # Errors
/// The files cannot be built, installed or removed.
pub(crate) fn main(args: &SetupArgs) -> Result<u8, Failure> {
    let directory = vbts_guest_files::installation(args.arch);
    if args.remove {
        remove(&directory)?;
        say(format_args!(
            "removed the guest's files from {}",
            directory.display()
        ));
    } else {
        if args.download {
            download(&mut installer(), &directory)?;
        } else {
            install(&args.source, args.arch, &directory)?;
        }
        say(format_args!(
            "installed the guest's files in {}",
            directory.display()
        ));
    }
    Ok(0)
}

/// A parser of the name of an architecture.
fn arch() -> impl TypedValueParser<Value = Arch> {
    PossibleValuesParser::new(Arch::ALL.map(Arch::name)).map(|name| {
        let found = Arch::ALL.into_iter().find(|arch| arch.name() == name);
        found.unwrap_or(Arch::X86_64)
    })
}

/// Builds the files for `arch` from `source`, and copies them to `directory`.
fn install(source: &Path, arch: Arch, directory: &Path) -> anyhow::Result<()> {
    let program = source.join("guest-kernel/build");
    ensure!(
        program.is_file(),
        "--source {}: not the sources of vbts, because guest-kernel/build is missing",
        source.display()
    );
    check_owner(directory)?;
    let status = Command::new("bash")
        .arg(&program)
        .args(["--arch", arch.name()])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("Cannot run {}", program.display()))?;
    if !status.success() {
        bail!("{} failed: {status}", program.display());
    }
    let built = source
        .join("target")
        .join(vbts_guest_files::build_directory(arch));
    put(&built, directory)
}

/// The installer of the release of this version.
fn installer() -> Command {
    let mut shell = Command::new("sh");
    // The script reads itself from a pipe, so it fetches the release.
    shell.args(["-s", "--"]);
    shell
}

/// Fetches the release with `shell`, which reads the installer, and puts its files into
/// `directory`.
fn download(shell: &mut Command, directory: &Path) -> anyhow::Result<()> {
    check_owner(directory)?;
    let cannot = || format!("Cannot write to {}", directory.display());
    // The release has the program, too, which stays as it is.
    let release = directory.join("release.new");
    std::fs::create_dir_all(directory).with_context(cannot)?;
    let installed = fetch(shell, &release).and_then(|()| put(&release.join("lib/vbts"), directory));
    let removed = std::fs::remove_dir_all(&release);
    installed?;
    removed.with_context(cannot)
}

/// Has `shell` install the release in the directory `prefix`.
fn fetch(shell: &mut Command, prefix: &Path) -> anyhow::Result<()> {
    let script = INSTALLER
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@REPOSITORY@", env!("CARGO_PKG_REPOSITORY"));
    let mut shell = shell
        .arg("--prefix")
        .arg(prefix)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("Cannot run sh")?;
    if let Some(mut stdin) = shell.stdin.take() {
        // A shell that has ended has a status, which says more.
        let _ = stdin.write_all(script.as_bytes());
    }
    let status = shell.wait().context("Cannot wait for sh")?;
    ensure!(status.success(), "the release is not installed: {status}");
    Ok(())
}

/// Refuses a directory with the files of a package.
fn check_owner(directory: &Path) -> anyhow::Result<()> {
    let is_own = directory.join(MARK).exists();
    ensure!(
        is_own || FILES.iter().all(|name| !directory.join(name).exists()),
        "{} has the files of another installation",
        directory.display()
    );
    Ok(())
}

/// Puts the guest's files of the directory `from` into `directory`.
fn put(from: &Path, directory: &Path) -> anyhow::Result<()> {
    let cannot = || format!("Cannot write to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(cannot)?;
    std::fs::write(directory.join(MARK), "").with_context(cannot)?;
    for name in FILES {
        let file = from.join(name);
        // A guest that runs keeps the file that it has opened.
        let new = directory.join(format!("{name}.new"));
        std::fs::copy(&file, &new).with_context(|| format!("Cannot copy {}", file.display()))?;
        std::fs::rename(&new, directory.join(name)).with_context(cannot)?;
    }
    Ok(())
}

/// Removes the files of `directory`, and the directory and its parent (`lib`) if nothing else is in
/// them.
fn remove(directory: &Path) -> anyhow::Result<()> {
    let name = directory.display();
    ensure!(
        directory.join(MARK).exists(),
        "{name} has no files of vbts setup"
    );
    for file in FILES.into_iter().chain([MARK]) {
        match std::fs::remove_file(directory.join(file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("Cannot remove {name}/{file}"));
            }
            _ => {}
        }
    }
    for directory in directory.ancestors().take(2) {
        // It fails if the directory has other files.
        let _ = std::fs::remove_dir(directory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources whose build is `script`.
    fn sources(script: &str) -> tempfile::TempDir {
        let source = tempfile::tempdir().unwrap();
        let program = source.path().join("guest-kernel/build");
        std::fs::create_dir_all(source.path().join("target/guest")).unwrap();
        std::fs::create_dir(program.parent().unwrap()).unwrap();
        std::fs::write(&program, script).unwrap();
        source
    }

    const BUILD: &str = "cd \"${0%/*}/../target/guest\" && echo new >vmlinux && cp vmlinux agent && \
                         cp vmlinux ptrace_bts";

    #[test]
    fn files_are_built_installed_and_removed() {
        let source = sources(BUILD);
        let prefix = tempfile::tempdir().unwrap();
        let directory = prefix.path().join("lib/vbts");
        for _ in 0..2 {
            install(source.path(), Arch::X86_64, &directory).unwrap();
        }
        for name in FILES {
            assert_eq!(std::fs::read(directory.join(name)).unwrap(), b"new\n");
        }
        remove(&directory).unwrap();
        assert_eq!(std::fs::read_dir(prefix.path()).unwrap().count(), 0);
        assert!(remove(&directory).is_err());
    }

    #[test]
    fn files_of_a_package_stay() {
        let source = sources(BUILD);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("vmlinux"), "other").unwrap();
        let error = install(source.path(), Arch::X86_64, directory.path()).unwrap_err();
        assert!(
            error.to_string().contains("another installation"),
            "{error}"
        );
        assert!(remove(directory.path()).is_err());
        assert_eq!(
            std::fs::read(directory.path().join("vmlinux")).unwrap(),
            b"other"
        );
    }

    #[test]
    fn a_release_is_fetched_and_its_program_is_not_installed() {
        const BODY: &str = "cat >/dev/null; mkdir -p \"$1/bin\" \"$1/lib/vbts\"; cd \"$1\"; \
                            echo new | tee bin/vbts lib/vbts/vmlinux lib/vbts/agent \
                            lib/vbts/ptrace_bts >/dev/null";
        let prefix = tempfile::tempdir().unwrap();
        let directory = prefix.path().join("lib/vbts");
        // It has the arguments of the real one.
        let mut stand_in = Command::new("sh");
        stand_in.args(["-c", BODY]);
        download(&mut stand_in, &directory).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["agent", MARK, "ptrace_bts", "vmlinux"]);
        assert!(!prefix.path().join("bin").exists());
        remove(&directory).unwrap();
    }

    #[test]
    fn a_release_that_is_not_there_installs_nothing() {
        let prefix = tempfile::tempdir().unwrap();
        let mut shell = installer();
        shell.env("VBTS_RELEASE", "file:///nonexistent");
        let error = download(&mut shell, &prefix.path().join("lib/vbts")).unwrap_err();
        assert!(error.to_string().contains("exit status: 1"), "{error}");
        let left = std::fs::read_dir(prefix.path().join("lib/vbts")).unwrap();
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn a_build_that_fails_installs_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let installed = directory.path().join("vbts");
        let error = install(sources("exit 3").path(), Arch::X86_64, &installed).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        let error = install(directory.path(), Arch::X86_64, &installed).unwrap_err();
        assert!(
            error.to_string().contains("not the sources of vbts"),
            "{error}"
        );
        assert!(!installed.exists());
    }
}
