//! The kernels that `vbts test` tests, and what each of them can run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use super::config::TestConfig;
use vbts_guest_files::arch::Arch;
use vbts_guest_files::{self, Api};
use vbts_host::exit::{Failure, say};
use vbts_suite::Case;
use vbts_suite::kernel_tree::{self, Purpose};
use vbts_suite::source::Source;

/// The kernels to test. The default one is of `arch`.
pub(super) fn kernels(config: &TestConfig, arch: Arch) -> Result<Vec<PathBuf>, Failure> {
    let mut kernels = Vec::new();
    for path in &config.kernels {
        let kernel = vbts_guest_files::kernel(Some(path), Api::New, arch)?;
        if kernels.contains(&kernel) {
            return Err(anyhow!("--kernel {}: named twice", kernel.display()).into());
        }
        kernels.push(kernel);
    }
    let tree = Path::new(".");
    if let Some(directory) = &config.build {
        let built = kernel_tree::build(tree, directory, &config.purpose)?;
        say(format_args!(
            "built {} ({})",
            built.path.display(),
            built.release
        ));
        kernels.push(built.path);
    }
    if kernels.is_empty()
        && config.api.is_none()
        && !vbts_guest_files::has_default_kernel_variable()
        && let Some(found) = kernel_tree::find(tree)?
    {
        say(format_args!(
            "testing ./vmlinux of this kernel tree ({})",
            found.release
        ));
        kernels.push(found.path);
    }
    if kernels.is_empty() {
        kernels.push(vbts_guest_files::kernel(
            None,
            config.api.unwrap_or(Api::New),
            arch,
        )?);
    }
    Ok(kernels)
}

/// Builds `targets` of the kernel's selftests.
pub(super) fn kselftests(config: &TestConfig, targets: &[String]) -> Result<Source, Failure> {
    let output = config
        .build
        .as_deref()
        .context("--kselftest needs --build")?;
    let (directory, names) = kernel_tree::install_selftests(Path::new("."), output, targets)?;
    say(format_args!(
        "installed {} tests in {}",
        names.len(),
        directory.display()
    ));
    Ok(Source::Kselftest {
        directory,
        cases: names.into_iter().map(Case::of_the_kernel).collect(),
    })
}

/// Returns those of `cases` that test `api`, the kernel's generation of the API.
pub(super) fn of_api(
    cases: &[Case],
    api: Api,
    config: &TestConfig,
    kernel: &Path,
) -> Result<Vec<Case>, Failure> {
    if let Some(wanted) = config.api
        && wanted != api
    {
        return Err(anyhow!(
            "--api {wanted}: {} has the API of '{api}'",
            kernel.display()
        )
        .into());
    }
    let of_api = cases.iter().filter(|case| case.api == api);
    let cases: Vec<Case> = of_api.cloned().collect();
    // In a matrix, other kernels have them.
    if cases.is_empty() && config.matrix.is_none() {
        let filter = config.filter.join(" ");
        return Err(anyhow!(
            "--filter {filter}: no such case tests the API of {}, which is '{api}'",
            kernel.display()
        )
        .into());
    }
    Ok(cases)
}

/// The failure of a test of a kernel that can run no case, with advice.
pub(super) fn nothing(config: &TestConfig, kernel: &Path, why: &str) -> Failure {
    let kernel = kernel.display();
    if config.purpose == Purpose::Kunit {
        anyhow!(
            "{kernel}: no case was run, because this kernel has no KUnit: it needs CONFIG_KUNIT=y and \
             tests that are built in, such as CONFIG_LIST_KUNIT_TEST=y ({why})"
        )
    } else if why.contains("not supported") || why.contains("No such device") {
        anyhow!(
            "{kernel}: no case was run, because the kernel finds no Branch Trace Store in this \
             machine"
        )
    } else {
        anyhow!(
            "{kernel}: no case was run, because this kernel has no PTRACE_BTS requests: it needs the \
             patches of guest-kernel/patches and CONFIG_X86_PTRACE_BTS=y (guest-kernel/build --source \
             DIR applies and builds them)"
        )
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::options::tests::config;

    #[test]
    fn a_kernel_of_another_generation_is_refused() {
        let cases = vec![Case::of_the_kernel("a.b".into())];
        let of = |words: &[&str], api| {
            of_api(&cases, api, &config(words), Path::new("vmlinux"))
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(of(&[], Api::New).unwrap().len(), 1);
        let error = of(&["--api", "2007-11"], Api::New).unwrap_err();
        assert!(
            error.contains("--api 2007-11: vmlinux has the API of 'new'"),
            "{error}"
        );
        let error = of(&["--filter", "a.b"], Api::December2007).unwrap_err();
        assert!(error.contains("--filter a.b"), "{error}");
    }
}
