//! Finds the code that has a name.

use std::collections::BTreeMap;
use std::ops::Range;

use super::demangle::demangle;
use super::object_file::{Function, Kind, ObjectFile};
use crate::protocol::{CodePlace, Wanted};

/// Bytes around code without a function in which the straight line to it is expected.
const SURROUNDINGS: u64 = 4096;
/// What compilers append to the name of a part or of a variant of a function.
const SUFFIXES: [&str; 4] = ["cold", "part", "isra", "constprop"];

impl ObjectFile {
    /// The places with the name `wanted`: offsets in the file, or addresses if `absolute`.
    pub fn places(&self, absolute: bool, wanted: &Wanted) -> Vec<CodePlace> {
        let places = match wanted {
            Wanted::Function(name) => self.functions_called(name, |file, entry, _, places| {
                places.push(file.place(entry));
            }),
            Wanted::Code(name) => self.functions_called(name, |_, _, code, places| {
                places.extend(code.iter().map(|code| CodePlace {
                    at: code.start,
                    start: code.start,
                    end: code.end,
                }));
            }),
            Wanted::Line { path, line } => self.line_called(path, *line),
            Wanted::At(at) => {
                let address = match absolute {
                    true => Some(self.address_of_absolute(*at)),
                    false => self.address_of_offset(*at),
                };
                address
                    .map(|address| self.place(address))
                    .into_iter()
                    .collect()
            }
        };
        match absolute {
            true => places
                .into_iter()
                .map(|place| CodePlace {
                    at: self.absolute_of_address(place.at),
                    start: self.absolute_of_address(place.start),
                    end: self.absolute_of_address(place.end),
                })
                .collect(),
            false => places
                .into_iter()
                .filter_map(|p| self.by_offset(p))
                .collect(),
        }
    }

    /// The place with offsets in the place of addresses.
    fn by_offset(&self, place: CodePlace) -> Option<CodePlace> {
        let (at, room) = self.offset_of_address(place.at);
        let at = at?;
        Some(CodePlace {
            at,
            start: at.saturating_sub(place.at.wrapping_sub(place.start)),
            end: at.saturating_add(place.end.wrapping_sub(place.at).min(room)),
        })
    }

    /// The place of `at`, which is an address.
    fn place(&self, at: u64) -> CodePlace {
        match self.at(at) {
            Some(function) => CodePlace {
                at,
                start: function.start,
                end: function.end,
            },
            None => CodePlace {
                at,
                start: at.saturating_sub(SURROUNDINGS),
                end: at.saturating_add(SURROUNDINGS),
            },
        }
    }

    /// The functions with a name. If there are none, `inlined` adds the places of each inlined
    /// call, from where it begins and its code.
    fn functions_called(
        &self,
        wanted: &str,
        inlined: impl Fn(&Self, u64, &[Range<u64>], &mut Vec<CodePlace>),
    ) -> Vec<CodePlace> {
        let mut places: Vec<CodePlace> = self
            .named()
            .filter(|function| is_called(self.name(function), function, wanted))
            .map(|function| CodePlace {
                // An alias without a size has that of the function at its address.
                end: self.at(function.start).map_or(function.end, |f| f.end),
                at: function.start,
                start: function.start,
            })
            .collect();
        if places.is_empty() {
            let is_called = |name: &str| is_source_name(name, wanted);
            self.inlined_calls(is_called, &mut |entry, code| {
                inlined(self, entry, code, &mut places);
            });
        }
        places.sort_by_key(|place| place.at);
        places.dedup();
        places
    }

    /// The first instruction of the line in each function that has it.
    fn line_called(&self, wanted: &str, wanted_line: u32) -> Vec<CodePlace> {
        let mut places: BTreeMap<u64, CodePlace> = BTreeMap::new();
        self.line_rows(true, 0..u64::MAX, &mut |start, _, line, path| {
            if line == wanted_line && is_path(path, wanted) {
                let place = self.place(start);
                let first = places.entry(place.start).or_insert(place);
                first.at = first.at.min(start);
            }
            true
        });
        places.into_values().collect()
    }
}

/// Returns whether a function with `name` in the file is called `wanted`.
fn is_called(name: &[u8], function: &Function, wanted: &str) -> bool {
    let wanted = match (wanted.strip_suffix("@plt"), function.kind) {
        (Some(wanted), Kind::Stub) => wanted,
        (None, Kind::Symbol) => wanted,
        _ => return false,
    };
    let Ok(name) = str::from_utf8(name) else {
        return false;
    };
    if name == wanted || base_name(name) == wanted {
        return true;
    }
    // Making the name of each function would take long.
    let is_mangled = name.starts_with("_Z") || name.starts_with("_R");
    let last = wanted.rsplit("::").next().unwrap_or(wanted);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let last = last.split(|c| !is_word(c)).next().unwrap_or_default();
    if !is_mangled || !name.contains(last) {
        return false;
    }
    is_source_name(&demangle(name), wanted)
}

/// Returns whether a function with `name` in the source is called `wanted`, with or without its
/// parameters.
fn is_source_name(name: &str, wanted: &str) -> bool {
    name == wanted || name.split('(').next() == Some(wanted)
}

/// The name of the function of which `name` is a part or a variant.
fn base_name(name: &str) -> &str {
    match name.split_once('.') {
        Some((base, suffix)) if SUFFIXES.iter().any(|known| suffix.starts_with(known)) => base,
        _ => name,
    }
}

/// Returns whether `path` ends with the components of `wanted`.
fn is_path(path: &str, wanted: &str) -> bool {
    let before = path.strip_suffix(wanted);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::super::object_file::tests::read;
    use super::*;

    #[test]
    fn functions_have_several_names() {
        let function = |is_stub| Function {
            kind: match is_stub {
                true => Kind::Stub,
                false => Kind::Symbol,
            },
            ..Function::default()
        };
        for (name, stub, wanted, called) in [
            ("main", false, "main", true),
            ("main", false, "mai", false),
            ("main", true, "main", false),
            ("puts", true, "puts@plt", true),
            ("puts", false, "puts@plt", false),
            ("f.cold", false, "f", true),
            ("f.constprop.0", false, "f", true),
            ("f.0", false, "f", false),
            ("_ZN1a1bEi", false, "a::b", true),
            ("_ZN1a1bEi", false, "a::b(int)", true),
            ("_ZN1a1bEi", false, "b", false),
            ("_RNvCs1234_7package3foo", false, "package::foo", true),
        ] {
            let is = is_called(name.as_bytes(), &function(stub), wanted);
            assert_eq!(is, called, "{name} {wanted}");
        }
    }

    #[test]
    fn a_path_is_named_by_its_last_components() {
        assert!(is_path("/a/b/c.rs", "c.rs"));
        assert!(is_path("/a/b/c.rs", "b/c.rs"));
        assert!(is_path("/a/b/c.rs", "/a/b/c.rs"));
        assert!(!is_path("/a/b/cc.rs", "c.rs"));
    }

    #[inline(always)]
    fn only_inlined(number: u32) -> u32 {
        std::hint::black_box(number) + std::hint::black_box(1)
    }

    #[inline(never)]
    fn caller_of_an_inlined_function(number: u32) -> u32 {
        std::hint::black_box(number);
        only_inlined(number)
    }

    #[test]
    fn a_function_that_is_only_inlined_is_where_its_calls_are() {
        std::hint::black_box(caller_of_an_inlined_function(1));
        let file = read(&std::env::current_exe().unwrap()).unwrap();
        // Line tables alone have no scopes of functions.
        let places = |wanted: fn(String) -> Wanted, name: &str| {
            let scoped = file.places(true, &wanted(format!("{}::{name}", module_path!())));
            match scoped.as_slice() {
                [] => file.places(true, &wanted(name.into())),
                _ => scoped,
            }
        };
        let callers = places(Wanted::Function, "caller_of_an_inlined_function");
        let [caller] = callers.as_slice() else {
            panic!("{callers:x?}");
        };
        let calls = places(Wanted::Function, "only_inlined");
        let [call] = calls.as_slice() else {
            panic!("{calls:x?}");
        };
        assert_eq!((call.start, call.end), (caller.start, caller.end));
        assert!((call.start + 1..call.end).contains(&call.at), "{call:x?}");
        let code = places(Wanted::Code, "only_inlined");
        assert!(code.iter().any(|piece| piece.at == call.at), "{code:x?}");
        for piece in code {
            assert!(
                piece.start < piece.end && piece.end <= caller.end,
                "{piece:x?}"
            );
        }
        assert_eq!(places(Wanted::Function, "not_there"), []);
    }

    #[test]
    fn a_line_of_this_program_is_in_its_function() {
        let file = read(&std::env::current_exe().unwrap()).unwrap();
        let line = line!() + 1;
        assert!(std::hint::black_box(file.functions()) > 0);
        let wanted = Wanted::Line {
            path: "reader/resolve.rs".into(),
            line,
        };
        let places = file.places(true, &wanted);
        assert!(!places.is_empty());
        for place in &places {
            assert!((place.start..place.end).contains(&place.at), "{place:x?}");
        }
        let by_offset = file.places(false, &wanted);
        let back = |place: &CodePlace| file.address_of_offset(place.at);
        let addresses: Vec<_> = places.iter().map(|place| Some(place.at)).collect();
        assert_eq!(by_offset.iter().map(back).collect::<Vec<_>>(), addresses);
    }
}
