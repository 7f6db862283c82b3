//! Which function a place is in.
//!
//! Files say where their functions are, by symbols or by the unwind table. In other code, functions
//! begin where calls lead to.

use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxHashMap;

use super::code::{Files, Symbol, SymbolKind};
use super::modules::{ModuleId, Modules, Place};

/// Number of a function.
pub type FunctionId = u32;

/// Maximum number of functions that calls have found in one module.
const MAX_FOUND: usize = 1 << 20;

/// A function that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Its first byte.
    pub start: Place,
    /// What it is.
    pub kind: SymbolKind,
    /// Its file names it.
    pub named: bool,
}

/// The functions of a module.
#[derive(Debug, Default)]
struct Known {
    symbols: Vec<Symbol>,
    /// Functions that calls have found.
    found: BTreeMap<u64, ()>,
}

impl Known {
    /// The symbol that contains `offset`.
    fn symbol(&self, offset: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|s| s.start <= offset);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        (offset < symbol.end).then_some(symbol)
    }

    /// Where the gap between symbols begins that contains `offset`.
    fn gap(&self, offset: u64) -> u64 {
        let after = self.symbols.partition_point(|s| s.start <= offset);
        let before = after.checked_sub(1).and_then(|at| self.symbols.get(at));
        before.map_or(0, |symbol| symbol.end)
    }

    /// Where the function begins that contains `offset`, which no symbol contains.
    fn unnamed_start(&self, offset: u64) -> u64 {
        let gap = self.gap(offset);
        let found = self.found.range(gap..=offset).next_back();
        found.map_or(gap, |(start, ())| *start)
    }
}

/// Which function a place is in.
#[derive(Debug, Default)]
pub struct Functions {
    known: HashMap<ModuleId, Known>,
    ids: FxHashMap<Place, FunctionId>,
    list: Vec<Function>,
}

impl Functions {
    /// The function with this number.
    pub fn get(&self, id: FunctionId) -> Function {
        let unmapped = Place {
            module: Modules::UNMAPPED,
            offset: 0,
        };
        let none = Function {
            start: unmapped,
            kind: SymbolKind::Function,
            named: false,
        };
        self.list.get(id as usize).copied().unwrap_or(none)
    }

    /// Whether the function is between a call and the function that is meant.
    pub fn is_linkage(&self, id: FunctionId) -> bool {
        self.get(id).kind.is_linkage()
    }

    /// The function that contains `place`; `None` if it was not executed.
    pub fn executed_at(&self, place: Place) -> Option<FunctionId> {
        let known = self.known.get(&place.module)?;
        let offset = match known.symbol(place.offset) {
            Some(symbol) => symbol.start,
            None => known.unnamed_start(place.offset),
        };
        self.ids.get(&Place { offset, ..place }).copied()
    }

    /// As [`Self::is_linkage`] for the function that contains `place`. It must have been executed.
    pub fn is_linkage_at(&self, place: Place) -> bool {
        self.executed_at(place)
            .is_some_and(|id| self.is_linkage(id))
    }

    /// Where the function ends, if its file says where it is.
    pub(super) fn end(&self, id: FunctionId) -> Option<u64> {
        let Place { module, offset } = self.get(id).start;
        let symbol = self.known.get(&module)?.symbol(offset)?;
        (symbol.start == offset).then_some(symbol.end)
    }

    /// Takes that the procedure linkage table leads to the function: it is the resolver, which has
    /// no name in a file without symbols.
    pub(super) fn mark_resolver(&mut self, id: FunctionId) {
        if let Some(function) = self.list.get_mut(id as usize) {
            function.kind = SymbolKind::Linkage;
        }
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The functions of which the file of a module says where they are; none, if no code of it was
    /// executed.
    pub fn symbols(&self, module: ModuleId) -> &[Symbol] {
        self.known
            .get(&module)
            .map_or(&[], |known| known.symbols.as_slice())
    }

    /// The function that contains `place`.
    pub fn at<F: Files>(&mut self, place: Place, modules: &Modules, files: &mut F) -> FunctionId {
        let known = self.known.entry(place.module).or_insert_with(|| Known {
            symbols: files.symbols(modules.get(place.module)),
            found: BTreeMap::new(),
        });
        let function = match known.symbol(place.offset) {
            Some(symbol) => Function {
                start: Place {
                    offset: symbol.start,
                    ..place
                },
                kind: symbol.kind,
                named: symbol.kind != SymbolKind::Unnamed,
            },
            None => Function {
                start: Place {
                    offset: known.unnamed_start(place.offset),
                    ..place
                },
                kind: SymbolKind::Function,
                named: false,
            },
        };
        self.id(function)
    }

    /// The function that a call to `place` executes.
    pub fn called<F: Files>(
        &mut self,
        place: Place,
        modules: &Modules,
        files: &mut F,
    ) -> FunctionId {
        let id = self.at(place, modules, files);
        if self.get(id).named || self.get(id).start == place {
            return id;
        }
        if let Some(known) = self.known.get_mut(&place.module)
            && known.symbol(place.offset).is_none()
            && known.found.len() < MAX_FOUND
        {
            known.found.insert(place.offset, ());
        }
        self.at(place, modules, files)
    }

    fn id(&mut self, function: Function) -> FunctionId {
        let list = &mut self.list;
        *self.ids.entry(function.start).or_insert_with(|| {
            list.push(function);
            list.len() as FunctionId - 1
        })
    }
}
