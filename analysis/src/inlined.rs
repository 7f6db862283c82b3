//! The names of inlined functions.

use std::collections::HashMap;

use vbts_symbols::INLINED;
use vbts_trace::profile::inlined::InlinedId;
use vbts_trace::profile::modules::{ModuleId, Modules};

use super::names::{Room, shown};

/// Maximum number of inlined functions with names.
const MAX_FUNCTIONS: usize = 1 << 20;
/// Name of further ones.
const OTHERS: &str = "[other functions]";

/// The names of inlined functions by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct InlinedNames {
    list: Vec<(String, ModuleId)>,
    numbers: HashMap<ModuleId, HashMap<String, InlinedId>>,
    room: Room,
}

impl InlinedNames {
    /// The number of a function that is inlined in a module.
    pub(crate) fn add(&mut self, module: ModuleId, name: &str) -> InlinedId {
        let numbers = self.numbers.entry(module).or_default();
        if let Some(known) = numbers.get(name) {
            return *known;
        }
        let is_full = self.list.len() >= MAX_FUNCTIONS;
        let text = self.room.take(shown(name) + INLINED).filter(|_| !is_full);
        let Some(text) = text else {
            return InlinedId::MAX;
        };
        let number = self.list.len() as InlinedId;
        numbers.insert(name.to_owned(), number);
        self.list.push((text, module));
        number
    }

    /// The name of a function, and the module in which it is inlined.
    pub(crate) fn get(&self, id: InlinedId) -> (&str, ModuleId) {
        let function = self.list.get(id as usize);
        function.map_or((OTHERS, Modules::UNMAPPED), |(name, module)| {
            (name, *module)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_number_in_each_module() {
        let mut names = InlinedNames::default();
        let numbers = [(3, "f"), (3, "g"), (3, "f"), (4, "f")].map(|(m, name)| names.add(m, name));
        assert_eq!(numbers, [0, 1, 0, 2]);
        assert_eq!(names.get(1), ("g (inlined)", 3));
        assert_eq!(names.get(InlinedId::MAX), (OTHERS, Modules::UNMAPPED));
    }
}
