//! Names of functions as in the source.
//!
//! A short mangled name can stand for a very long one: in C++ a name can refer to a part of itself
//! twice, and so can that part. The result has a limit.

use std::fmt::{self, Write};

use vbts_host::escape::prefix;

/// Maximum length of a name in bytes. A longer one ends with `…`.
pub(super) const MAX_NAME: usize = 4096;
/// Maximum length of a mangled name in bytes. What follows is ignored.
pub(crate) const MAX_MANGLED: usize = 16 << 10;

/// The name in the source, for Rust and C++.
pub(crate) fn demangle(name: &str) -> String {
    let mut out = Bounded::default();
    // Without a prefix of the ABI the name is that of the source. The demangler would take the
    // function "f" for the type `float`.
    let mangled = name.starts_with("_Z") || name.starts_with("_R");
    if !mangled || !write_demangled(&mut out, name) {
        out = Bounded::default();
        // An error means that the limit is reached.
        let _ = out.write_str(name);
    }
    out.finish()
}

/// Writes the name that `name` stands for. Returns false if it stands for none.
fn write_demangled(out: &mut Bounded, name: &str) -> bool {
    if let Ok(name) = rustc_demangle::try_demangle(name) {
        return write!(out, "{name:#}").is_ok() || out.full;
    }
    let Ok(symbol) = cpp_demangle::BorrowedSymbol::new(name.as_bytes()) else {
        return false;
    };
    let options = cpp_demangle::DemangleOptions::default();
    symbol.structured_demangle(out, &options).is_ok() || out.full
}

/// Text with a limit. A write beyond it fails, which ends the demangler.
#[derive(Debug, Default)]
struct Bounded {
    text: String,
    full: bool,
}

impl Bounded {
    fn finish(mut self) -> String {
        if self.full {
            self.text.push('…');
        }
        self.text
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.full {
            return Err(fmt::Error);
        }
        let shown = prefix(text, MAX_NAME - self.text.len());
        self.text.push_str(shown);
        self.full = shown.len() < text.len();
        if self.full { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use vbts_testkit::elf::nested_name;

    use super::*;

    #[test]
    fn names_are_demangled() {
        assert_eq!(demangle("_ZN3foo3barEv"), "foo::bar()");
        assert_eq!(demangle("_RNvC3foo3bar"), "foo::bar");
        assert_eq!(demangle("_ZN3foo3bar17h0123456789abcdefE"), "foo::bar");
        // These are types in the C++ ABI.
        for name in ["f", "i", "v", "PKc"] {
            assert_eq!(demangle(name), name);
        }
        for name in ["_Z", "_ZN", "_R"] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn names_have_a_limit() {
        for levels in [3, 30, 300] {
            let name = demangle(&nested_name(levels));
            assert!(
                name.starts_with("f(a, b<a, a>, b<b<a, a>, b<a, a> >"),
                "{name}"
            );
            assert_eq!(name.ends_with('…'), levels > 3);
            assert!(name.len() <= MAX_NAME + '…'.len_utf8());
        }
        let long = "ö".repeat(MAX_NAME);
        let shown = demangle(&long);
        assert!(shown.ends_with("ö…") && shown.len() <= MAX_NAME + '…'.len_utf8());
    }
}
