//! The scopes of functions whose entries have no linkage name: namespaces and types around them
//! (DWARF 5, sections 3.2 and 5.7).

use std::collections::HashMap;

use gimli::{AttributeValue, DwLang, Reader as _, UnitRef, constants as dw};

use super::debug_info::{WholeUnit, WholeUnits};
use vbts_host::escape::prefix;

/// Maximum number of scopes that are kept.
const MAX_KEPT: usize = 1 << 19;
/// Maximum number of scopes around a function that its name has.
const MAX_AROUND: usize = 32;
/// Maximum size in bytes of the name of a scope.
const MAX_NAME: usize = 1 << 10;

/// The versions of C.
const C: [DwLang; 5] = [
    dw::DW_LANG_C,
    dw::DW_LANG_C89,
    dw::DW_LANG_C99,
    dw::DW_LANG_C11,
    dw::DW_LANG_C17,
];

/// A namespace or a type.
#[derive(Debug)]
struct Scope {
    /// Offset of its entry in the unit, and of what follows its children.
    start: usize,
    end: usize,
    /// Index of the scope in which it is.
    outer: Option<usize>,
    name: Box<str>,
}

/// The scopes of the units that were looked at.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    units: HashMap<usize, Vec<Scope>>,
    count: usize,
}

impl Scopes {
    /// The name of a function with the scopes around its entry, which is at `offset` of the unit.
    pub(super) fn qualify(
        &mut self,
        units: &WholeUnits,
        (index, whole): (usize, &WholeUnit),
        offset: usize,
        name: &str,
    ) -> String {
        if self.count >= MAX_KEPT {
            *self = Self::default();
        }
        let scopes = self.units.entry(index).or_insert_with(|| {
            let mut scopes = Vec::new();
            // What is malformed ends them.
            let _ = find(units, whole, &mut scopes);
            self.count += scopes.len();
            scopes
        });
        let after = scopes.partition_point(|scope| scope.start < offset);
        let mut at = after.checked_sub(1);
        let mut names = vec![name];
        while let Some(scope) = at.and_then(|at| scopes.get(at))
            && names.len() <= MAX_AROUND
        {
            if offset < scope.end {
                names.push(&scope.name);
            }
            at = scope.outer;
        }
        names.reverse();
        names.join("::")
    }
}

/// Finds the scopes of a unit that have children, in the order of their offsets.
fn find(units: &WholeUnits, whole: &WholeUnit, scopes: &mut Vec<Scope>) -> gimli::Result<()> {
    let unit = UnitRef::new(units.dwarf(), &whole.unit);
    let mut entries = whole.unit.entries_raw(None)?;
    // The depths of the scopes that are open, and their indices.
    let mut open: Vec<(isize, usize)> = Vec::new();
    while !entries.is_empty() {
        let (depth, at) = (entries.next_depth(), entries.next_offset().0);
        while let Some((outer, scope)) = open.last().copied()
            && outer >= depth
        {
            open.pop();
            if let Some(scope) = scopes.get_mut(scope) {
                scope.end = at;
            }
        }
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        let mut name = None;
        for attribute in abbreviation.attributes() {
            let attribute = entries.read_attribute(*attribute)?;
            match (attribute.name(), attribute.value()) {
                (dw::DW_AT_name, value) => name = Some(value),
                // No function of it has a scope, and none has a linkage name.
                (dw::DW_AT_language, AttributeValue::Language(language))
                    if C.contains(&language) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
        let unnamed = match abbreviation.tag() {
            dw::DW_TAG_namespace => Some("(anonymous namespace)"),
            dw::DW_TAG_module
            | dw::DW_TAG_class_type
            | dw::DW_TAG_structure_type
            | dw::DW_TAG_union_type
            | dw::DW_TAG_interface_type
            | dw::DW_TAG_enumeration_type => None,
            _ => continue,
        };
        if !abbreviation.has_children() || scopes.len() >= MAX_KEPT {
            continue;
        }
        let name = name.and_then(|name| unit.attr_string(name).ok());
        let name = name.and_then(|name| Some(name.to_string_lossy().ok()?.into_owned()));
        let Some(name) = name.as_deref().or(unnamed) else {
            continue;
        };
        open.push((depth, scopes.len()));
        scopes.push(Scope {
            start: at,
            // Unless its children end before the unit does.
            end: usize::MAX,
            outer: open
                .len()
                .checked_sub(2)
                .and_then(|at| Some(open.get(at)?.1)),
            name: prefix(name, MAX_NAME).into(),
        });
    }
    Ok(())
}
