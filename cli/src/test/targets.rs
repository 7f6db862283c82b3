//! On what `vbts test` runs the cases: kernels, each in one machine or in those of `--matrix`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use vbts_guest_files::arch::Arch;
use vbts_guest_files::{self, Api};
use vbts_suite::guest::Settings;
use vbts_vmm::config::MachineConfig;
use vbts_vmm::layout::MAX_PROCESSORS;

/// A kernel, and the machine in which it is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// What the reports call it, if there are several.
    pub title: String,
    /// The kernel.
    pub kernel: PathBuf,
    /// Name of the processor model.
    pub model: String,
    /// Number of processors.
    pub processors: u32,
    /// Words to add to the kernel's command line.
    pub append: String,
    /// The program that becomes the first process, or nothing.
    pub program: Arc<[u8]>,
}

impl Target {
    /// The architecture of the kernel.
    pub(super) fn arch(&self) -> Arch {
        vbts_guest_files::arch_of(&self.kernel)
    }

    /// `kernel`, in the machine of the options.
    pub(super) fn of_kernel(kernel: PathBuf, machine: &MachineConfig, append: &str) -> Self {
        Self {
            title: kernel.display().to_string(),
            kernel,
            model: machine.model.clone(),
            processors: machine.processors,
            append: append.to_owned(),
            program: Arc::default(),
        }
    }

    /// `settings`, with this kernel and machine.
    pub(super) fn settings(&self, settings: &Settings) -> Settings {
        Settings {
            machine: MachineConfig {
                model: self.model.clone(),
                processors: self.processors,
                ..settings.machine.clone()
            },
            kernel: self.kernel.clone(),
            program: Arc::clone(&self.program),
            append: self.append.clone(),
            limit: settings.limit,
        }
    }
}

/// The contents of a file for `--matrix`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    kernels: Vec<String>,
    cpus: Option<Vec<String>>,
    smp: Option<Vec<u32>>,
    append: Option<Vec<String>>,
}

/// The targets of the file `path`: each combination of a kernel, a processor model, a number of
/// processors, and words of the command line. Those of `machine` take the place of what is missing.
///
/// # Errors
/// The file cannot be read, or names something that does not exist.
pub(super) fn of_matrix(path: &Path, machine: &MachineConfig) -> anyhow::Result<Vec<Target>> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("Cannot read {name}"))?;
    let matrix: Matrix =
        serde_json::from_str(&text).with_context(|| format!("{name}: no matrix"))?;
    let directory = path.parent().unwrap_or(Path::new(""));
    targets(&matrix, directory, machine).with_context(|| name.to_string())
}

fn targets(
    matrix: &Matrix,
    directory: &Path,
    machine: &MachineConfig,
) -> anyhow::Result<Vec<Target>> {
    let models = matrix.cpus.clone().unwrap_or(vec![machine.model.clone()]);
    let numbers = matrix.smp.clone().unwrap_or(vec![machine.processors]);
    let appended = matrix.append.clone().unwrap_or(vec![String::new()]);
    for model in &models {
        ensure!(
            vbts_cpu::model(model).is_some(),
            "cpus: there is no processor model '{model}'"
        );
    }
    for number in &numbers {
        ensure!(
            (1..=u32::from(MAX_PROCESSORS)).contains(number),
            "smp: {number} is not from 1 to {MAX_PROCESSORS}"
        );
    }
    let mut targets: Vec<Target> = Vec::new();
    for kernel in &matrix.kernels {
        let path = find(kernel, directory)?;
        for model in &models {
            for number in &numbers {
                for append in &appended {
                    let machine = format!("{kernel}, {model}, {number}");
                    let title = match append.as_str() {
                        "" => machine,
                        words => format!("{machine}, {words}"),
                    };
                    ensure!(
                        targets.iter().all(|target| target.title != title),
                        "'{title}' is there twice"
                    );
                    targets.push(Target {
                        title,
                        kernel: path.clone(),
                        model: model.clone(),
                        processors: *number,
                        append: append.clone(),
                        program: Arc::default(),
                    });
                }
            }
        }
    }
    ensure!(!targets.is_empty(), "a list is empty");
    Ok(targets)
}

/// The kernel `name`: a generation of the API, or a file relative to that of the matrix.
fn find(name: &str, directory: &Path) -> anyhow::Result<PathBuf> {
    let found = match Api::from_name(name) {
        Some(api) => vbts_guest_files::kernel(None, api, Arch::X86_64),
        None => vbts_guest_files::kernel(Some(&directory.join(name)), Api::New, Arch::X86_64),
    };
    found.map_err(|failure| anyhow::anyhow!("kernels: {failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Target>, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("vmlinux"), "").unwrap();
        let file = directory.path().join("matrix.json");
        std::fs::write(&file, text).unwrap();
        of_matrix(&file, &MachineConfig::default()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn each_combination_is_a_target() {
        let targets = parse(
            r#"{"kernels": ["vmlinux"], "cpus": ["core2", "conroe"], "smp": [1, 2],
                "append": ["", "pti=on"]}"#,
        )
        .unwrap();
        assert_eq!(targets.len(), 8);
        assert_eq!(targets[0].title, "vmlinux, core2, 1");
        let last = targets.last().unwrap();
        assert_eq!(last.title, "vmlinux, conroe, 2, pti=on");
        assert_eq!((last.model.as_str(), last.processors), ("conroe", 2));
        assert_eq!(last.append, "pti=on");
        let targets = parse(r#"{"kernels": ["vmlinux"]}"#).unwrap();
        assert_eq!(targets[0].title, "vmlinux, core2, 1");
    }

    #[test]
    fn a_mistake_has_a_message() {
        for (text, message) in [
            ("", "no matrix"),
            (
                r#"{"kernels": ["vmlinux"], "cpu": ["core2"]}"#,
                "unknown field `cpu`",
            ),
            (r#"{"kernels": ["none"]}"#, "Cannot read"),
            (r#"{"kernels": []}"#, "a list is empty"),
            (r#"{"kernels": ["vmlinux"], "smp": []}"#, "a list is empty"),
            (
                r#"{"kernels": ["vmlinux"], "smp": [9]}"#,
                "9 is not from 1 to 8",
            ),
            (
                r#"{"kernels": ["vmlinux"], "cpus": ["z80"]}"#,
                "no processor model 'z80'",
            ),
            (r#"{"kernels": ["vmlinux", "vmlinux"]}"#, "is there twice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
