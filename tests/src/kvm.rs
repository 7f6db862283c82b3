//! Tests that need a KVM: they run where there is one that is faithful, and say why not elsewhere.
//!
//! With VBTS_REQUIRE_KVM=1, as in `ci/upstream-kvm`, a test that cannot run has failed.

use std::path::Path;

use anyhow::Result;
use kvm_ioctls::Kvm;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use vbts_vmm::kvm::check;
use vbts_vmm::kvm::device::{self, DEVICE};

use crate::skips;

/// What a test needs of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A KVM.
    Kvm,
    /// One that passes all checks.
    Faithful,
}

/// A test.
pub type Test = fn(&Kvm) -> Result<()>;

/// Runs named tests under the command line of Rust's own test harness.
pub fn main(tests: &[(&str, Needs, Test)]) -> ! {
    let arguments = Arguments::from_args();
    let missing = [Needs::Kvm, Needs::Faithful].map(|needs| missing(needs).err());
    let trials = tests
        .iter()
        .map(|&(name, needs, test)| {
            let missing = missing[needs as usize].clone();
            let name = name.to_owned();
            Trial::ignorable_test(name.clone(), move || run(&name, test, missing))
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit()
}

fn run(name: &str, test: Test, missing: Option<String>) -> Result<Completion, Failed> {
    if let Some(why) = missing {
        return if std::env::var_os("VBTS_REQUIRE_KVM").is_some_and(|v| v == "1") {
            Err(format!("VBTS_REQUIRE_KVM is set, and {why}").into())
        } else {
            Ok(skips::ignored(name, &why))
        };
    }
    let fail = |error: anyhow::Error| Failed::from(format!("{error:#}"));
    let kvm = device::open(Path::new(DEVICE)).map_err(|error| fail(error.into()))?;
    test(&kvm).map(|()| Completion::Completed).map_err(fail)
}

/// Why the host does not offer what is needed.
///
/// # Errors
/// It does not.
pub fn missing(needs: Needs) -> Result<(), String> {
    let kvm = device::open(Path::new(DEVICE)).map_err(|why| why.to_string())?;
    if needs == Needs::Faithful {
        let report = check::run(&kvm);
        if let Some((name, why)) = report.failure() {
            return Err(format!("this KVM fails the check '{name}': {why}"));
        }
    }
    Ok(())
}
