//! A Linux kernel's source tree or build directory: finds its `vmlinux`, or builds one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

/// The options that a kernel needs to run in vbts.
const MACHINE: &str = include_str!("../configs/machine.config");
/// The options that the suite of the requests needs.
const REQUESTS: &str = include_str!("../configs/requests.config");
/// The options that KUnit needs.
const KUNIT: &str = include_str!("../configs/kunit.config");
/// The options that the kernel's selftests need, besides those in a file of each target.
const KSELFTEST: &str = include_str!("../configs/kselftest.config");
/// Directory of the targets in a kernel tree.
const SELFTESTS: &str = "tools/testing/selftests";
/// The user's options for KUnit, in the build directory, as kunit.py has them.
const KUNIT_CONFIG: &str = ".kunitconfig";
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

/// What the kernel is built for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The suite of the requests.
    Requests,
    /// KUnit. The build directory can have more options in `.kunitconfig`.
    Kunit,
    /// These targets of tools/testing/selftests.
    Kselftest(Vec<String>),
}

impl Purpose {
    /// The options that a kernel in `output` needs.
    fn fragment(&self, output: &Path) -> anyhow::Result<String> {
        let mut text = MACHINE.to_owned();
        match self {
            Self::Requests => text.push_str(REQUESTS),
            Self::Kunit => {
                text.push_str(KUNIT);
                let own = output.join(KUNIT_CONFIG);
                if own.exists() {
                    let own = std::fs::read_to_string(&own)
                        .with_context(|| format!("--build: cannot read {}", own.display()))?;
                    text.push_str(&own);
                    text.push('\n');
                }
            }
            Self::Kselftest(_) => text.push_str(KSELFTEST),
        }
        Ok(text)
    }

    /// The options that the kernel should have if its tree in `source` allows them: those of the
    /// targets. They are built in, because the guests load no modules.
    fn wishes(&self, source: &Path) -> anyhow::Result<String> {
        let Self::Kselftest(targets) = self else {
            return Ok(String::new());
        };
        let mut text = String::new();
        for target in targets {
            let directory = source.join(SELFTESTS).join(target);
            ensure!(
                directory.join("Makefile").is_file(),
                "--kselftest {target}: {SELFTESTS} of this tree has no such target"
            );
            let config = directory.join("config");
            if config.exists() {
                let options = std::fs::read_to_string(&config)
                    .with_context(|| format!("--build: cannot read {}", config.display()))?;
                for line in options.lines().filter(|line| line.starts_with("CONFIG_")) {
                    let line = line.trim_end();
                    text.push_str(
                        &line
                            .strip_suffix("=m")
                            .map_or_else(|| format!("{line}\n"), |name| format!("{name}=y\n")),
                    );
                }
            }
        }
        Ok(text)
    }

    /// What a kernel may lack that cannot have all options.
    fn advice(&self) -> &'static str {
        match self {
            Self::Requests => {
                "vbts test needs the patches of guest-kernel/patches, and a configuration that \
                 allows these options"
            }
            Self::Kunit | Self::Kselftest(_) => {
                "the tree has no such options, or they depend on others"
            }
        }
    }
}

/// Builds the kernel of the tree `source` in the directory `output`, which keeps its configuration;
/// a new one gets that of `x86_64_defconfig`. The options that `purpose` needs are switched on.
/// What make prints goes to standard error.
///
/// # Errors
/// `source` is no kernel tree, or the tree cannot be configured or built.
pub fn build(source: &Path, output: &Path, purpose: &Purpose) -> anyhow::Result<TreeKernel> {
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
    let fragment = purpose.fragment(&output)?;
    merge(&config, &(purpose.wishes(source)? + &fragment))?;
    make(source, &output, &["olddefconfig"])?;
    let text = std::fs::read_to_string(&config)?;
    let missing = missing(&fragment, &text);
    ensure!(
        missing.is_empty(),
        "--build: {} cannot have {}: {}",
        config.display(),
        missing.join(", "),
        purpose.advice()
    );
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make(source, &output, &[&format!("-j{jobs}"), "vmlinux"])?;
    find(&output)?.context("--build: make has left no vmlinux")
}

/// Builds the targets of tools/testing/selftests of the tree `source`, for a kernel that was built
/// in `output`, and installs them there. Returns their directory and the names of the tests,
/// TARGET.TEST.
///
/// # Errors
/// A target cannot be built, or has no tests.
pub fn install_selftests(
    source: &Path,
    output: &Path,
    targets: &[String],
) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let output = output
        .canonicalize()
        .with_context(|| format!("--build: cannot find {}", output.display()))?;
    let directory = output.join("kselftest_install");
    let list = directory.join("kselftest-list.txt");
    // The list of another run would have its tests.
    if list.exists() {
        std::fs::remove_file(&list)
            .with_context(|| format!("--kselftest: cannot delete {}", list.display()))?;
    }
    make(
        source,
        &output,
        &[
            "kselftest-install",
            &format!("TARGETS={}", targets.join(" ")),
            &format!("INSTALL_PATH={}", directory.display()),
        ],
    )?;
    let text = std::fs::read_to_string(&list)
        .with_context(|| format!("--kselftest: make has left no {}", list.display()))?;
    let names = selftests(&text);
    for target in targets {
        ensure!(
            names
                .iter()
                .any(|name| name.split('.').next() == Some(target.as_str())),
            "--kselftest {target}: make has installed no test; its messages say why"
        );
    }
    Ok((directory, names))
}

/// The tests in kselftest-list.txt, whose lines are TARGET:TEST.
fn selftests(list: &str) -> Vec<String> {
    let mut names: Vec<String> = list
        .lines()
        .filter(|line| line.bytes().all(|b| b.is_ascii_graphic()))
        .filter_map(|line| line.split_once(':'))
        .map(|(target, test)| format!("{target}.{test}"))
        .collect();
    // Tests of a target follow each other, because they share guests.
    names.sort();
    names.dedup();
    names
}

/// Appends the options of `fragment` that a configuration lacks. Kconfig takes the last value
/// of an option.
fn merge(config: &Path, fragment: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(config)?;
    let missing = missing(fragment, &text);
    let mut file = std::fs::File::options().append(true).open(config)?;
    missing
        .iter()
        .try_for_each(|option| writeln!(file, "{option}"))
        .with_context(|| format!("--build: cannot write {}", config.display()))
}

/// The options of `fragment` that the configuration `text` does not have.
fn missing<'a>(fragment: &'a str, text: &str) -> Vec<&'a str> {
    let wanted = fragment.lines().filter(|line| line.starts_with("CONFIG_"));
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
        let directory = tempfile::tempdir().unwrap();
        let fragment = Purpose::Requests.fragment(directory.path()).unwrap();
        assert_eq!(missing(&fragment, &fragment), [""; 0]);
        let text = fragment.replace("CONFIG_SHMEM=y", "# CONFIG_SHMEM is not set");
        assert_eq!(missing(&fragment, &text), ["CONFIG_SHMEM=y"]);
    }

    #[test]
    fn kunit_has_options_of_the_user() {
        let directory = tempfile::tempdir().unwrap();
        let wanted = |options: &str| {
            std::fs::write(directory.path().join(KUNIT_CONFIG), options).unwrap();
            Purpose::Kunit.fragment(directory.path()).unwrap()
        };
        assert!(wanted("CONFIG_LIST_KUNIT_TEST=y").ends_with("\nCONFIG_LIST_KUNIT_TEST=y\n"));
        assert!(!wanted("").contains("CONFIG_X86_PTRACE_BTS"));
    }

    #[test]
    fn targets_bring_options() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join(SELFTESTS).join("timers");
        write(&target, &["Makefile"]);
        std::fs::write(target.join("config"), "CONFIG_A=m\n# no\nCONFIG_B=y\n").unwrap();
        let wishes = |target: &str| {
            let targets = vec![target.to_owned()];
            Purpose::Kselftest(targets).wishes(directory.path())
        };
        assert_eq!(wishes("timers").unwrap(), "CONFIG_A=y\nCONFIG_B=y\n");
        let error = wishes("timer").unwrap_err().to_string();
        assert!(error.contains("no such target"), "{error}");
    }

    #[test]
    fn the_tests_of_a_target_are_together() {
        let list = "x86:b.sh\ntimers:a\nx86:a\nx86:a\n\nbad line:x\n";
        assert_eq!(selftests(list), ["timers.a", "x86.a", "x86.b.sh"]);
    }
}
