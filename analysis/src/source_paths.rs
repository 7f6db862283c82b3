//! Paths of source files by number.

use std::collections::HashMap;

/// Maximum number of source files.
const MAX_FILES: usize = 1 << 16;

/// Paths with numbers.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    numbers: HashMap<String, u32>,
    /// By number.
    pub list: Vec<String>,
}

impl Paths {
    /// The number of a path; `None` if there are too many.
    pub(crate) fn number(&mut self, path: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(path) {
            return Some(*number);
        }
        if self.list.len() >= MAX_FILES {
            return None;
        }
        let number = self.list.len() as u32;
        self.list.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        Some(number)
    }
}
