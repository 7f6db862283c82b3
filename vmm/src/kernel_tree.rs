//! A Linux kernel's source tree or build directory: finds its `vmlinux`, or builds one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

/// The options that `vbts test` needs.
const FRAGMENT: &str = include_str!("../../guest-kernel/test.config");
/// The configuration without one of the user's.
const DEFAULT_CONFIG: &str = "x86_64_defconfig";

/// The kernel of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeKernel {
    /// The `vmlinux`.
    pub path: PathBuf,
    /// Its release, as `uname -r` prints it.
    pub release: String,
}

/// Finds the kernel if one was built in `directory`: a source tree, or the directory of `O=`.
///
/// # Errors
/// It is a source tree, and no kernel was built there.
pub fn find(directory: &Path) -> anyhow::Result<Option<TreeKernel>> {
    let path = directory.join("vmlinux");
    let release = std::fs::read_to_string(directory.join("include/config/kernel.release"));
    match release {
        Ok(release) if path.is_file() => Ok(Some(TreeKernel {
            path,
            release: release.trim().to_owned(),
        })),
        _ if is_source(directory) => bail!(
            "this kernel tree has no vmlinux: build it, let --build DIR build it, or name a kernel \
             with --kernel FILE"
        ),
        _ => Ok(None),
    }
}

/// Whether `directory` has the source of a kernel.
fn is_source(directory: &Path) -> bool {
    ["Kbuild", "MAINTAINERS", "arch/x86/Kconfig", "init/main.c"]
        .iter()
        .all(|file| directory.join(file).is_file())
}

/// Builds the kernel of the tree `source` in the directory `output`, which keeps its configuration;
/// a new one gets that of `x86_64_defconfig`. The options that `vbts test` needs are switched on.
/// What make prints goes to standard error.
///
/// # Errors
/// `source` is no kernel tree, or the tree cannot be configured or built.
pub fn build(source: &Path, output: &Path) -> anyhow::Result<TreeKernel> {
    ensure!(
        is_source(source),
        "--build: the working directory is no source tree of a kernel"
    );
    std::fs::create_dir_all(output)
        .with_context(|| format!("--build: cannot make {}", output.display()))?;
    let output = output
        .canonicalize()
        .with_context(|| format!("--build: cannot find {}", output.display()))?;
    let config = output.join(".config");
    if !config.exists() {
        make(source, &output, &[DEFAULT_CONFIG])?;
    }
    merge(&config)?;
    make(source, &output, &["olddefconfig"])?;
    let missing = missing(&std::fs::read_to_string(&config)?);
    ensure!(
        missing.is_empty(),
        "--build: {} cannot have {}: vbts test needs the patches of guest-kernel/patches, and a \
         configuration that allows these options",
        config.display(),
        missing.join(", ")
    );
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make(source, &output, &[&format!("-j{jobs}"), "vmlinux"])?;
    find(&output)?.context("--build: make has left no vmlinux")
}

/// Appends the fragment to a configuration. Kconfig takes the last value of an option.
fn merge(config: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(config)?;
    if missing(&text).is_empty() {
        return Ok(());
    }
    let mut file = std::fs::File::options().append(true).open(config)?;
    file.write_all(FRAGMENT.as_bytes())
        .with_context(|| format!("--build: cannot write {}", config.display()))
}

/// The options of the fragment that the configuration `text` does not have.
fn missing(text: &str) -> Vec<&'static str> {
    let wanted = FRAGMENT.lines().filter(|line| line.starts_with("CONFIG_"));
    wanted
        .filter(|wanted| !text.lines().any(|line| line == *wanted))
        .collect()
}

/// Runs make for x86-64 in `source`, with its products in `output`.
fn make(source: &Path, output: &Path, words: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("make")
        .arg("-s")
        .arg("-C")
        .arg(source)
        .arg(format!("O={}", output.display()))
        .arg("ARCH=x86_64")
        .args(words)
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .context("--build: cannot run make")?;
    ensure!(
        status.success(),
        "--build: make {} failed: {status}",
        words.join(" ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, files: &[&str]) {
        for file in files {
            let path = directory.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "6.12.94-test\n").unwrap();
        }
    }

    #[test]
    fn a_tree_has_a_kernel_once_it_is_built() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert_eq!(find(path).unwrap(), None);
        // A kernel alone is no tree.
        write(path, &["vmlinux"]);
        assert_eq!(find(path).unwrap(), None);
        write(path, &["include/config/kernel.release"]);
        let found = find(path).unwrap().unwrap();
        assert_eq!(found.release, "6.12.94-test");
        assert_eq!(found.path, path.join("vmlinux"));
    }

    #[test]
    fn a_source_tree_without_a_kernel_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let files = ["Kbuild", "MAINTAINERS", "arch/x86/Kconfig", "init/main.c"];
        write(directory.path(), &files);
        let error = find(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains("no vmlinux") && error.contains("--build"),
            "{error}"
        );
    }

    #[test]
    fn options_that_a_configuration_lacks_are_found() {
        assert_eq!(missing(FRAGMENT), [""; 0]);
        let text = FRAGMENT.replace("CONFIG_SHMEM=y", "# CONFIG_SHMEM is not set");
        assert_eq!(missing(&text), ["CONFIG_SHMEM=y"]);
    }
}
