//! Names of functions, modules and programs, as printable text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use vbts_trace::profile::Watch;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::inlined::InlinedId;
use vbts_trace::profile::modules::{Module, ModuleId, ModuleKind, Modules, Place};
use vbts_trace::profile::tree::Label;

use super::Loaded;
use super::inlined::InlinedNames;
use super::interpreters::hint;
use super::short_names::short;
use vbts_host::escape::{prefix, printable};

/// Maximum length of a name in bytes. A longer one ends with `…`.
const MAX_NAME: usize = 1024;

/// Maximum size in bytes of the names that are kept at once.
const MAX_NAMES: usize = 64 << 20;

/// Room for names of all files together. A hostile file has long names for everything.
#[derive(Debug, Clone)]
pub(crate) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MAX_NAMES)
    }
}

impl Room {
    /// The name, if there is room for it.
    pub(crate) fn take(&mut self, name: String) -> Option<String> {
        self.0 = self.0.checked_sub(name.len())?;
        Some(name)
    }

    /// The name of a place without a function, or its offset if there is no room.
    fn place(&mut self, module: &Module, offset: u64) -> String {
        let name = self.take(place_name(module, offset));
        name.unwrap_or_else(|| format!("{offset:#x}"))
    }
}

/// The name of a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FunctionName {
    /// Its name, or its module and offset.
    pub name: String,
    /// Source file and line of its beginning.
    pub line: Option<(String, u32)>,
    /// Its module.
    pub module: ModuleId,
}

/// Names of what was executed.
#[derive(Debug)]
pub struct Names {
    functions: Vec<FunctionName>,
    inlined: InlinedNames,
    modules: Vec<String>,
    programs: Vec<String>,
}

impl Names {
    /// Asks for the names of all functions in the profile.
    pub fn of<W: Watch>(profile: &mut Loaded<W>) -> Self {
        let mut functions = Vec::new();
        let mut by_module: BTreeMap<ModuleId, Vec<(FunctionId, u64)>> = BTreeMap::new();
        let mut room = Room::default();
        for id in 0..profile.functions().len() as FunctionId {
            let start = profile.functions().get(id).start;
            let module = profile.modules().get(start.module);
            functions.push(FunctionName {
                name: room.place(module, start.offset),
                line: None,
                module: start.module,
            });
            by_module
                .entry(start.module)
                .or_default()
                .push((id, start.offset));
        }
        for (module, starts) in by_module {
            let offsets: Vec<u64> = starts.iter().map(|(_, offset)| *offset).collect();
            let (code, modules) = profile.code();
            let directory = code.files.directory.clone();
            let is_short = code.files.short_names;
            code.files
                .find(modules.get(module), &offsets, &mut |n, answer| {
                    let id = starts.get(n).map_or(0, |(id, _)| *id);
                    if let Some(function) = functions.get_mut(id as usize) {
                        if let Some((name, 0)) = answer.function
                            && let Some(name) = room.take(shown_function(name, is_short))
                        {
                            function.name = name;
                        }
                        function.line = answer.line.and_then(|(path, line)| {
                            Some((room.take(shown_path(&directory, path))?, line))
                        });
                    }
                });
        }
        let inlined = profile.code().0.files.inlined_names().clone();
        let modules = profile.modules().iter().map(|m| shown(&m.name)).collect();
        let programs = profile.programs().iter().map(|path| {
            // A task of the kernel has a name with a slash, such as `swapper/0`.
            let is_path = path.starts_with(b"/") || path.starts_with(b".");
            let last = path.rsplit(|byte| is_path && *byte == b'/').next();
            shown(&String::from_utf8_lossy(last.unwrap_or_default()))
        });
        let names = Self {
            functions,
            inlined,
            modules,
            programs: programs.collect(),
        };
        profile.code().0.files.interpreter = hint(profile, &names);
        names
    }

    /// The name of a function.
    pub fn function(&self, id: FunctionId) -> &FunctionName {
        const NONE: &FunctionName = &FunctionName {
            name: String::new(),
            line: None,
            module: 0,
        };
        self.functions.get(id as usize).unwrap_or(NONE)
    }

    /// The numbers of the functions with this name.
    pub fn called(&self, name: &str) -> BTreeSet<FunctionId> {
        let all = (0..).zip(&self.functions);
        let called = all.filter(|(_, function)| function.name == name);
        called.map(|(id, _)| id).collect()
    }

    /// The names of functions that are most like `name`, at most three; `None` if a function has
    /// this name.
    pub fn similar_to(&self, name: &str) -> Option<Vec<String>> {
        const MOST: usize = 3;
        const LEAST_SIMILAR: f64 = 0.8;
        if self.functions.iter().any(|function| function.name == name) {
            return None;
        }
        let all = self.functions.iter().map(|function| {
            let similarity = strsim::jaro_winkler(&function.name, name);
            (similarity, function.name.as_str())
        });
        let mut similar: Vec<_> = all.filter(|(much, _)| *much >= LEAST_SIMILAR).collect();
        similar.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        similar.dedup();
        let names = similar.into_iter().take(MOST).map(|(_, name)| name.into());
        Some(names.collect())
    }

    /// The name of an inlined function, and the module in which it is inlined.
    fn inlined(&self, id: InlinedId) -> (&str, ModuleId) {
        self.inlined.get(id)
    }

    /// The module of what a node of the call tree stands for, and the source file and line of its
    /// beginning.
    pub(crate) fn place(&self, label: Label) -> (ModuleId, Option<&(String, u32)>) {
        match label {
            Label::Function(id) => {
                let function = self.function(id);
                (function.module, function.line.as_ref())
            }
            Label::Inlined(id) => (self.inlined(id).1, None),
            Label::Program(_) | Label::Signal => (Modules::UNMAPPED, None),
        }
    }

    /// The path of a module, or another name in brackets.
    pub fn module(&self, id: ModuleId) -> &str {
        self.modules.get(id as usize).map_or("", String::as_str)
    }

    /// The last part of a module's path.
    pub(crate) fn short_module(&self, id: ModuleId) -> &str {
        let name = self.module(id);
        name.rsplit('/').next().unwrap_or(name)
    }

    /// The name of a program.
    pub fn program(&self, program: u32) -> &str {
        self.programs
            .get(program as usize)
            .map_or("", String::as_str)
    }

    /// What a node of the call tree stands for.
    pub fn label(&self, label: Label) -> &str {
        match label {
            Label::Program(program) => self.program(program),
            Label::Function(function) => &self.function(function).name,
            Label::Inlined(id) => self.inlined(id).0,
            Label::Signal => "[signal]",
        }
    }
}

/// The name of a place without a function.
pub(crate) fn place_name(module: &Module, offset: u64) -> String {
    let name = module.name.rsplit('/').next().unwrap_or_default();
    match module.kind {
        ModuleKind::Unmapped => format!("{offset:#x}"),
        _ => format!("{}+{offset:#x}", shown(name)),
    }
}

/// The name of a function as it is shown: in its short form if `is_short`.
pub(crate) fn shown_function(name: &str, is_short: bool) -> String {
    match is_short {
        true => shown(&short(name)),
        false => shown(name),
    }
}

/// Text from a file in a form that is printable and not too long.
pub(crate) fn shown(text: &str) -> String {
    let short = prefix(text, MAX_NAME);
    let mut name = printable(short.as_bytes());
    if short.len() < text.len() {
        name.push('…');
    }
    name
}

/// The name of a place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PlaceName {
    /// Such as `main+0x1f`.
    pub name: String,
    /// Such as `fib.c:12`; empty if it is not known.
    pub line: String,
}

impl fmt::Display for PlaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line.as_str() {
            "" => f.write_str(&self.name),
            line => write!(f, "{} ({line})", self.name),
        }
    }
}

/// A source line as it is shown to a person whose program runs in `directory`.
pub(crate) fn shown_line(directory: &Path, path: &str, line: u32) -> String {
    format!("{}:{line}", shown_path(directory, path))
}

/// The path of a source file as it is shown to a person whose program runs in `directory`.
pub(crate) fn shown_path(directory: &Path, path: &str) -> String {
    let path = Path::new(path);
    let short = path.strip_prefix(directory).unwrap_or(path);
    shown(&short.to_string_lossy())
}

/// The names of places, such as `main+0x1f (fib.c:12)`.
pub(crate) fn name_places<W: Watch>(profile: &mut Loaded<W>, places: &[Place]) -> Vec<String> {
    let names = names_of_places(profile, places).into_iter();
    names.map(|name| name.to_string()).collect()
}

/// The names of places.
pub(crate) fn names_of_places<W: Watch>(
    profile: &mut Loaded<W>,
    places: &[Place],
) -> Vec<PlaceName> {
    let mut room = Room::default();
    let mut names: Vec<PlaceName> = places
        .iter()
        .map(|place| PlaceName {
            name: room.place(profile.modules().get(place.module), place.offset),
            line: String::new(),
        })
        .collect();
    let mut by_module: BTreeMap<ModuleId, Vec<(usize, u64)>> = BTreeMap::new();
    for (at, place) in places.iter().enumerate() {
        by_module
            .entry(place.module)
            .or_default()
            .push((at, place.offset));
    }
    for (module, all) in by_module {
        let offsets: Vec<u64> = all.iter().map(|(_, offset)| *offset).collect();
        let (code, modules) = profile.code();
        let directory = code.files.directory.clone();
        let is_short = code.files.short_names;
        code.files
            .find(modules.get(module), &offsets, &mut |n, answer| {
                let Some(name) = all.get(n).and_then(|(at, _)| names.get_mut(*at)) else {
                    return;
                };
                if let Some((function, distance)) = answer.function
                    && let Some(function) = room.take(format!(
                        "{}+{distance:#x}",
                        shown_function(function, is_short)
                    ))
                {
                    name.name = function;
                }
                if let Some((path, line)) = answer.line {
                    let line = room.take(shown_line(&directory, path, line));
                    name.line = line.unwrap_or_default();
                }
            });
    }
    names
}
