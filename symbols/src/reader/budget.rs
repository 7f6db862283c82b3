//! The memory that the files may take which the process keeps.

use crate::protocol::Refusal;

/// Maximum memory in bytes of all files that are kept.
const MAX_KEPT: u64 = 256 << 20;

/// The memory that all files together may take.
#[derive(Debug, Clone)]
pub struct Budget(u64);

impl Default for Budget {
    fn default() -> Self {
        Self(MAX_KEPT)
    }
}

impl Budget {
    /// Does `work`, and keeps what it has taken only if it succeeds.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) fn spend<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut left = self.clone();
        let result = work(&mut left)?;
        *self = left;
        Ok(result)
    }

    /// Takes `bytes` of it.
    ///
    /// # Errors
    /// Less is left.
    pub fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        let left = self.0.checked_sub(bytes as u64);
        self.0 = left.ok_or(Refusal::TooLarge)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::reader::object_file::ObjectFile;

    #[test]
    fn the_budget_is_for_all_files() {
        let exe = File::open(std::env::current_exe().unwrap()).unwrap();
        let mut budget = Budget::default();
        let fits = (0..1000).find(|_| ObjectFile::open(&exe, &mut budget).is_err());
        assert!((1..1000).contains(&fits.unwrap()), "{fits:?}");
    }
}
