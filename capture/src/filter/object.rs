//! Parts of the code, as the user names them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use vbts_trace::profile::modules::ANONYMOUS;

use super::point::{MAX_TEXT, address};

/// A part of the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    text: String,
    /// The addresses, if it is named by these.
    pub range: Option<Range<u64>>,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Object {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = match text.split_once('-') {
            Some((first, end)) if first.starts_with("0x") => {
                let range = address(first)?..address(end)?;
                if range.is_empty() {
                    return Err("the range is empty: write 0xFIRST-0xEND".into());
                }
                Some(range)
            }
            _ if text.starts_with("0x") => return Err("write a range as 0xFIRST-0xEND".into()),
            _ if text.is_empty() => return Err("names no code".into()),
            _ if text.len() > MAX_TEXT => return Err(format!("longer than {MAX_TEXT} bytes")),
            _ => None,
        };
        Ok(Self {
            text: text.into(),
            range,
        })
    }
}

impl Object {
    /// Its name, if it is not named by addresses.
    pub fn name(&self) -> Option<&str> {
        self.range.is_none().then_some(&self.text)
    }

    /// The name of the function that it can be.
    pub fn function(&self) -> Option<&str> {
        let is_module = self.text.starts_with(['[', '/']) || self.text.contains(".so");
        self.name().filter(|_| !is_module)
    }
}

/// Returns whether the mapping called `mapping` is that of the module `name`: the path of its file,
/// the last component of the path, or a name in brackets.
pub(crate) fn is_module(mapping: &str, name: &str) -> bool {
    let path = mapping.strip_suffix(" (deleted)").unwrap_or(mapping);
    match path {
        "" => name == ANONYMOUS,
        _ => path == name || path.rsplit('/').next() == Some(name),
    }
}

#[cfg(test)]
mod tests {
    use vbts_trace::profile::modules::KERNEL;

    use super::*;

    #[test]
    fn objects_have_several_forms() {
        let object = |text: &str| text.parse::<Object>();
        let range = object("0x1000-0x2000").unwrap();
        assert_eq!(
            (range.range.clone(), range.name()),
            (Some(0x1000..0x2000), None)
        );
        for (text, function) in [
            ("main", true),
            ("a-b", true),
            ("libc.so.6", false),
            ("/bin/true", false),
            (KERNEL, false),
        ] {
            let object = object(text).unwrap();
            assert_eq!(object.name(), Some(text));
            assert_eq!(object.function().is_some(), function, "{text}");
        }
        for text in ["", "0x1000", "0x1000-", "0x1000-0x1000", "0x2-0x1", "0x1-y"] {
            assert!(object(text).is_err(), "{text}");
        }
    }

    #[test]
    fn modules_are_named_by_their_files() {
        assert!(is_module("/lib/libc.so.6", "libc.so.6"));
        assert!(is_module("/lib/libc.so.6 (deleted)", "/lib/libc.so.6"));
        assert!(is_module("", "[anonymous]"));
        assert!(is_module("[vdso]", "[vdso]"));
        assert!(!is_module("/lib/libc.so.6", "c.so.6"));
        assert!(!is_module("", ""));
    }
}
