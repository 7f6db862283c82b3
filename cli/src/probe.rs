//! `vbts probe`: prints what this host offers.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use vbts_host::exit::Failure;
use vbts_host::sandbox;
use vbts_vmm::accel::{self, Choice, Host, ThisHost, native_code};
use vbts_vmm::config::{Accelerator, BtsMode};
use vbts_vmm::kvm::check::Report;
use vbts_vmm::kvm::check::speed::{Millions, Speed};
use vbts_vmm::kvm::device;
use vbts_vmm::kvm::passthrough::NoPassThrough;

/// Arguments of `vbts probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Host time for which the software CPU is measured.
const MEASURE: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// The software CPU cannot run, or standard output cannot be written.
pub(crate) fn main(args: &ProbeArgs) -> Result<u8, Failure> {
    let findings = Findings::new(&mut ThisHost::new(Path::new(device::DEVICE), MEASURE))?;
    let report = if args.json {
        format!("{}\n", findings.json())
    } else {
        findings.text()
    };
    let mut out = vbts_host::Output::stdout()?;
    out.write(report.as_bytes())?;
    Ok(0)
}

/// What a host offers.
struct Findings {
    vendor: String,
    kvm: Result<Report, String>,
    pass_through: Result<(), NoPassThrough>,
    soft: Speed,
    native_code: Result<(), String>,
    auto: Choice,
    sandbox: Sandbox,
}

/// To what the host can confine vbts.
#[derive(Debug, Clone, Copy)]
struct Sandbox {
    calls: bool,
    files: bool,
}

impl Sandbox {
    fn of_this_host() -> Self {
        Self {
            calls: sandbox::can_filter_calls(),
            files: sandbox::can_restrict_files(),
        }
    }

    fn text(self) -> &'static str {
        match (self.calls, self.files) {
            (true, true) => "strict: system calls (seccomp) and files (Landlock)",
            (true, false) => "system calls (seccomp), not files: Landlock is missing or too old",
            (false, _) => "no: the kernel cannot filter system calls (seccomp)",
        }
    }
}

impl Findings {
    fn new(host: &mut dyn Host) -> Result<Self, Failure> {
        Ok(Self {
            vendor: vendor(),
            kvm: host.kvm().cloned(),
            pass_through: host.pass_through(),
            soft: host.soft_speed()?,
            native_code: native_code::check().map_err(|error| error.to_string()),
            auto: accel::choose(Accelerator::Auto, BtsMode::Auto, false, &[], host)?,
            sandbox: Sandbox::of_this_host(),
        })
    }

    fn json(&self) -> Value {
        let reason = |outcome: &Result<(), String>| outcome.clone().err();
        let kvm = match &self.kvm {
            Err(why) => json!({"present": false, "usable": false, "reason": why}),
            Ok(report) => {
                let checks: Vec<Value> = report
                    .checks
                    .iter()
                    .map(|c| {
                        json!({
                            "name": c.name,
                            "passed": c.outcome.is_ok(),
                            "reason": reason(&c.outcome),
                        })
                    })
                    .collect();
                let failure = report.failure().map(|(name, why)| format!("{name}: {why}"));
                json!({
                    "present": true,
                    "usable": report.passed(),
                    "reason": failure,
                    "cpl0_instructions_per_second": report.cpl0,
                    "cpl3_instructions_per_second": report.cpl3,
                    "single_step": report.single_step.as_ref().map(|steps| json!({
                        "cpl0": steps[0].is_ok(),
                        "cpl3": steps[1].is_ok(),
                        "reason": steps.iter().find_map(reason),
                    })),
                    "checks": checks,
                })
            }
        };
        json!({
            "vendor": self.vendor,
            "kvm": kvm,
            "bts_passthrough": {
                "available": self.pass_through.is_ok(),
                "reason": self.pass_through.as_ref().err().map(ToString::to_string),
            },
            "soft": {"instructions_per_second": self.soft},
            "native_code": {
                "available": self.native_code.is_ok(),
                "reason": reason(&self.native_code),
            },
            "auto": {
                "accel": self.auto.accel.to_string(),
                "bts": self.auto.bts.to_string(),
                "reason": self.auto.why,
            },
            "sandbox": {"system_calls": self.sandbox.calls, "files": self.sandbox.files},
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{:17} {value}", format!("{name}:"));
        };
        let speed = |speed| format!("{} million instructions a second", Millions(speed));
        line("processor", &self.vendor);
        match &self.kvm {
            Err(why) => line("KVM", &format!("no: {why}")),
            Ok(report) => {
                let (all, failed) = (report.checks.len(), failures(report).count());
                line(
                    "KVM",
                    &match failed {
                        0 => format!("passed all {all} checks"),
                        _ => format!("would run guests wrongly: failed {failed} of {all} checks"),
                    },
                );
                for (name, why) in failures(report) {
                    line("  failed", &format!("{name}: {why}"));
                }
                let measured =
                    |s: Option<Speed>| s.map_or_else(|| "cannot be measured".into(), speed);
                line("  CPL 0", &measured(report.cpl0));
                line("  CPL 3", &measured(report.cpl3));
                for (cpl, outcome) in [0, 3].iter().zip(report.single_step.iter().flatten()) {
                    line(
                        "  single-step",
                        &match outcome {
                            Ok(()) => format!("works at CPL {cpl}"),
                            Err(why) => format!("does not work at CPL {cpl}: {why}"),
                        },
                    );
                }
            }
        }
        line(
            "BTS pass-through",
            &match &self.pass_through {
                Ok(()) => "yes".to_owned(),
                Err(why) => format!("no: {why}"),
            },
        );
        line("soft", &speed(self.soft));
        line(
            "--accel auto",
            &format!("{} ({})", self.auto.accel, self.auto.why),
        );
        line("--bts auto", &self.auto.bts.to_string());
        line(
            "--jit auto",
            &match &self.native_code {
                Ok(()) => "native code".to_owned(),
                Err(why) => format!("no native code: {why}"),
            },
        );
        line("--sandbox auto", self.sandbox.text());
        text
    }
}

fn failures(report: &Report) -> impl Iterator<Item = (&str, &str)> {
    report
        .checks
        .iter()
        .filter_map(|c| Some((c.name.as_str(), c.outcome.as_ref().err()?.as_str())))
}

/// The vendor string of the host's processor.
fn vendor() -> String {
    let leaf = std::arch::x86_64::__cpuid(0);
    let bytes: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx]
        .iter()
        .flat_map(|r| r.to_le_bytes())
        .collect();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a host with this file for /dev/kvm offers.
    fn findings(path: &str) -> Findings {
        let mut host = ThisHost::new(Path::new(path), Duration::from_millis(1));
        Findings::new(&mut host).unwrap()
    }

    #[test]
    fn a_host_without_kvm_says_why() {
        for (path, why) in [
            ("/no/such/kvm", "there is no /no/such/kvm"),
            ("/dev/null", "is not a KVM"),
        ] {
            let findings = findings(path);
            let text = findings.text();
            assert!(text.contains("KVM:              no: "), "{text}");
            assert!(text.contains(why), "{text}");
            assert!(text.contains("--accel auto:     soft (no KVM: "), "{text}");
            let json = findings.json();
            assert_eq!(json["kvm"]["present"], false);
            assert_eq!(json["auto"]["accel"], "soft");
            assert!(json["kvm"]["reason"].as_str().unwrap().contains(why));
        }
    }

    #[test]
    fn the_vendor_is_text() {
        assert_eq!(vendor().len(), 12);
    }
}
