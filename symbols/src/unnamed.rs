//! The files whose names are missing in a trace.

use std::fmt;

use vbts_host::escape::printable;

/// Number of files that are shown.
const SHOWN: usize = 4;

/// The files whose names are missing, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unnamed {
    count: u64,
    /// The first of them.
    files: Vec<(String, &'static str)>,
}

impl Unnamed {
    /// Adds the file `name`. A later reason replaces an earlier one.
    pub fn add(&mut self, name: &str, reason: &'static str) {
        let name = printable(name.as_bytes());
        if let Some(last) = self.files.last_mut().filter(|last| last.0 == name) {
            last.1 = reason;
            return;
        }
        self.count += 1;
        if self.files.len() < SHOWN {
            self.files.push((name, reason));
        }
    }

    /// Returns whether no names are missing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (name, reason)) in self.files.iter().enumerate() {
            let separator = if n == 0 { "" } else { ", " };
            write!(f, "{separator}{name} ({reason})")?;
        }
        match self.count - self.files.len() as u64 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
