//! A message about writes to shares that the host has refused.

use std::path::PathBuf;

use anyhow::anyhow;
use vbts_devices::ninep::RefusedWrites;

use vbts_host::exit::{Failure, say};

/// The writable shares, and the writes to them that the host refuses.
#[derive(Debug, Clone, Default)]
pub struct SharedWrites(Vec<(PathBuf, RefusedWrites)>);

impl SharedWrites {
    /// Adds the share of `directory`.
    pub(super) fn add(&mut self, directory: PathBuf, writes: RefusedWrites) {
        self.0.push((directory, writes));
    }

    /// The outcome of a run that had this one. If the guest has not reported an error, it may not
    /// have learnt of one.
    ///
    /// # Errors
    /// That of the run, or the host has refused a write.
    pub fn conclude(&self, outcome: Result<u8, Failure>) -> Result<u8, Failure> {
        match (outcome, self.refused()) {
            (outcome, None) => outcome,
            (Ok(0), Some(refused)) => Err(anyhow!(refused).into()),
            (outcome, Some(refused)) => {
                say(refused);
                outcome
            }
        }
    }

    /// Returns a message that names the files whose writes were refused, and why; `None` if there
    /// are none.
    fn refused(&self) -> Option<String> {
        let (mut files, mut more) = (Vec::new(), false);
        for (directory, writes) in &self.0 {
            let refused = writes.take();
            more |= refused.more;
            files.extend(refused.files.into_iter().map(|(path, error)| {
                let directory = directory.display();
                match path.as_os_str().is_empty() {
                    true => format!("a removed file in {directory}: {error}"),
                    false => format!("{directory}/{}: {error}", path.display()),
                }
            }));
        }
        let (least, count) = (if more { "at least " } else { "" }, files.len());
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| {
            format!(
                "the host has refused writes to {least}{count} file{plural} of the guest, whose \
                 contents are not complete: {}{}",
                files.join("; "),
                if more { "; …" } else { "" }
            )
        })
    }
}
