//! The configuration of `vbts test`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vbts_guest_files::Api;
use vbts_host::Output;
use vbts_suite::Case;
use vbts_suite::kcidb::BuildId;
use vbts_suite::kernel_tree::Purpose;
use vbts_suite::report::ReportFormat;
use vbts_suite::shard::Shard;
use vbts_vmm::config::MachineConfig;

/// A run of test cases on kernels.
#[derive(Debug, Clone)]
pub(crate) struct TestConfig {
    /// The machine of a kernel. Its time limit is that of the whole run.
    pub machine: MachineConfig,
    /// The cases to choose from: those of the suite, or those of the kernel.
    pub purpose: Purpose,
    /// Kernels to test.
    pub kernels: Vec<PathBuf>,
    /// Directory in which the kernel tree in the working directory is built.
    pub build: Option<PathBuf>,
    /// File that names kernels and machines.
    pub matrix: Option<PathBuf>,
    /// Words to add to the command lines of kernels.
    pub append: String,
    /// Generation of the API that the kernels must have.
    pub api: Option<Api>,
    /// Patterns of the names of cases. None selects all cases.
    pub filter: Vec<String>,
    /// Part of the cases.
    pub shard: Option<Shard>,
    /// Prints the names of the cases instead of running them.
    pub list: bool,
    /// Time after which a case fails.
    pub case_limit: Duration,
    /// Number of times that a case that fails is run again.
    pub retries: u32,
    /// File that receives the consoles of all guests.
    pub console: PathBuf,
    /// That file stays if all cases pass, too: the user has named it, or that of the report.
    pub keeps_console: bool,
    /// The report.
    pub report: ReportConfig,
}

/// A report of results.
#[derive(Debug, Clone)]
pub(crate) struct ReportConfig {
    /// Format, if it is not the default one.
    pub format: Option<ReportFormat>,
    /// File, if it is not standard output.
    pub file: Option<PathBuf>,
    /// The build that is tested, in KernelCI's database.
    pub build: Option<BuildId>,
}

/// Reports of runs, and the report to make of them all.
#[derive(Debug, Clone)]
pub(crate) struct MergeConfig {
    /// The reports of runs.
    pub reports: Vec<PathBuf>,
    /// The report to make.
    pub report: ReportConfig,
}

impl TestConfig {
    /// Whether `case` belongs to the part of the cases to run.
    pub(crate) fn is_in_shard(&self, case: &Case) -> bool {
        self.shard.is_none_or(|shard| shard.has(&case.name))
    }
}

impl ReportConfig {
    /// The file.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Opens the file and discards its contents. `None` is standard output.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn open(&self) -> anyhow::Result<Option<Output>> {
        use anyhow::Context as _;

        let Some(path) = &self.file else {
            return Ok(None);
        };
        let file = Output::open(path).context("--output")?;
        file.truncate().context("--output")?;
        Ok(Some(file))
    }
}
