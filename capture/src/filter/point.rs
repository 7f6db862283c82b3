//! Points in code, as the user names them.

use std::fmt;
use std::str::FromStr;

use super::object::is_module;
use vbts_symbols::{CodePlace, Symbolizer, Wanted};

/// Longest text of a point or an object in bytes.
pub(super) const MAX_TEXT: usize = 4096;

/// A point in code that execution reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    text: String,
    /// Where it is.
    pub place: PointPlace,
    /// The number of the time at which it counts, from 1 on.
    pub nth: u64,
}

/// Where a point is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointPlace {
    /// At an address.
    Address(u64),
    /// At the first instruction of a source line.
    Line {
        /// The path, or its last components.
        path: String,
        /// The number of the line.
        line: u32,
    },
    /// At an offset in a function, or in the file of a module.
    Named {
        /// The name of the function or of the module.
        name: String,
        /// The offset in bytes.
        offset: u64,
    },
}

impl PointPlace {
    /// Where it is in the file that is mapped as `name`, or in that of the kernel: offsets in the
    /// file, or addresses of the kernel. An address is in no file.
    pub fn find(&self, name: Option<&str>, symbols: &mut Symbolizer) -> Vec<CodePlace> {
        match self {
            Self::Address(_) => Vec::new(),
            Self::Line { path, line } => {
                let (path, line) = (path.clone(), *line);
                symbols.resolve(name, &Wanted::Line { path, line })
            }
            Self::Named {
                name: named,
                offset,
            } => {
                let mut functions = symbols.resolve(name, &Wanted::Function(named.clone()));
                functions.retain_mut(|place| {
                    place.at = place.at.saturating_add(*offset);
                    place.at < place.end
                });
                // A program often has the name of one of its functions.
                if functions.is_empty() && name.is_some_and(|name| is_module(name, named)) {
                    return symbols.resolve(name, &Wanted::At(*offset));
                }
                functions
            }
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEXT {
            return Err(format!("longer than {MAX_TEXT} bytes"));
        }
        let (place, nth) = match text.rsplit_once('#') {
            Some((place, nth)) if is_decimal(nth) => match nth.parse() {
                Ok(nth @ 1..) => (place, nth),
                _ => return Err("the number after # is a time, from 1 on".into()),
            },
            _ => (text, 1),
        };
        Ok(Self {
            text: text.into(),
            place: place.parse()?,
            nth,
        })
    }
}

impl FromStr for PointPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("names no code".into());
        }
        if text.starts_with("0x") {
            return address(text).map(Self::Address);
        }
        // A name in C++ or Rust has two colons.
        if let Some((path, line)) = text.rsplit_once(':')
            && is_decimal(line)
            && !path.ends_with(':')
        {
            return match line.parse() {
                Ok(line @ 1..) if !path.is_empty() => Ok(Self::Line {
                    path: path.into(),
                    line,
                }),
                _ => Err("write FILE:LINE, with a number from 1 on".into()),
            };
        }
        let named = |name: &str, offset| Self::Named {
            name: name.into(),
            offset,
        };
        match text.rsplit_once('+') {
            Some((name, offset)) if offset.starts_with("0x") && !name.is_empty() => {
                Ok(named(name, address(offset)?))
            }
            Some((name, offset)) if is_decimal(offset) && !name.is_empty() => {
                let offset = offset.parse().map_err(|_| "the offset is too large")?;
                Ok(named(name, offset))
            }
            _ => Ok(named(text, 0)),
        }
    }
}

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The number that `text` has in hexadecimal after `0x`.
pub(super) fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        Ok(address) if is_hex => Ok(address),
        _ => Err(format!("{text:?} is no hexadecimal number of 64 bits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_several_forms() {
        let named = |name: &str, offset| PointPlace::Named {
            name: name.into(),
            offset,
        };
        let line = |path: &str, line| PointPlace::Line {
            path: path.into(),
            line,
        };
        for (text, place, nth) in [
            ("main", named("main", 0), 1),
            ("main#3", named("main", 0), 3),
            ("main+0x1f", named("main", 0x1F), 1),
            ("libc.so.6+4096#2", named("libc.so.6", 4096), 2),
            ("a::b", named("a::b", 0), 1),
            ("main::{closure#0}", named("main::{closure#0}", 0), 1),
            ("a::operator+", named("a::operator+", 0), 1),
            ("fib.c:12", line("fib.c", 12), 1),
            ("/src/fib.c:12#9", line("/src/fib.c", 12), 9),
            ("0x401000", PointPlace::Address(0x40_1000), 1),
        ] {
            let point: Point = text.parse().unwrap();
            assert_eq!((&point.place, point.nth), (&place, nth), "{text}");
            assert_eq!(point.to_string(), text);
        }
        for text in [
            "",
            "#1",
            "main#0",
            "main#99999999999999999999",
            "0x",
            "0x+1",
            "0xg",
            "f.c:0",
            ":3",
            "f.c:99999999999",
            "main+0x",
            "main+99999999999999999999",
        ] {
            assert!(text.parse::<Point>().is_err(), "{text}");
        }
        assert!("x".repeat(MAX_TEXT + 1).parse::<Point>().is_err());
    }
}
