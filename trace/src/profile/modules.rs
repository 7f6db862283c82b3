//! Modules: the files that are mapped as code, and code without a file.

use std::collections::HashMap;
use std::sync::Arc;

use crate::maps::{self, Mapping};

/// Number of a module.
pub type ModuleId = u32;

/// Start of the kernel's half of the address space.
pub const KERNEL_START: u64 = 1 << 63;
/// The page in the kernel's half that programs execute, for an old form of system calls.
const VSYSCALL: std::ops::Range<u64> = 0xFFFF_FFFF_FF60_0000..0xFFFF_FFFF_FF60_1000;
/// Maximum number of modules. Code in further ones belongs to no module.
const MAX_MODULES: usize = 1 << 16;
/// Maximum length of the names of all modules in bytes.
const MAX_NAMES: usize = 16 << 20;

/// What a module is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// Addresses that no mapping has. Offsets are addresses.
    Unmapped,
    /// The guest's kernel. Offsets are addresses.
    Kernel,
    /// A file.
    File,
    /// A mapping without a file, such as `[vdso]`. Offsets are those in the mapping.
    Special,
    /// Memory without a file: code that a program has made. Offsets are addresses.
    Anonymous,
}

/// A module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its number.
    pub id: ModuleId,
    /// What it is.
    pub kind: ModuleKind,
    /// Path of the file in the guest, or another name.
    pub name: String,
}

/// An address in a module, which does not depend on where it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The module.
    pub module: ModuleId,
    /// Offset in the module's file; see [`ModuleKind`].
    pub offset: u64,
}

/// The modules.
#[derive(Debug)]
pub struct Modules {
    list: Vec<Module>,
    by_name: HashMap<String, ModuleId>,
    /// Bytes of all names.
    size: usize,
}

impl Default for Modules {
    fn default() -> Self {
        let mut this = Self {
            list: Vec::new(),
            by_name: HashMap::new(),
            size: 0,
        };
        for (kind, name) in [
            (ModuleKind::Unmapped, "[unmapped]"),
            (ModuleKind::Kernel, "[kernel]"),
            (ModuleKind::Anonymous, "[anonymous]"),
        ] {
            this.add(kind, name.into());
        }
        this
    }
}

impl Modules {
    /// Code in no known mapping.
    pub const UNMAPPED: ModuleId = 0;
    /// The kernel.
    pub const KERNEL: ModuleId = 1;
    /// Code without a file.
    pub const ANONYMOUS: ModuleId = 2;

    fn add(&mut self, kind: ModuleKind, name: String) -> ModuleId {
        let id = self.list.len() as ModuleId;
        self.list.push(Module { id, kind, name });
        id
    }

    /// The module with this number.
    pub fn get(&self, id: ModuleId) -> &Module {
        self.list.get(id as usize).unwrap_or(&self.list[0])
    }

    /// All modules.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.list.iter()
    }

    /// The module of a mapping.
    fn of_mapping(&mut self, mapping: &Mapping) -> ModuleId {
        if mapping.name.is_empty() {
            return Self::ANONYMOUS;
        }
        if let Some(id) = self.by_name.get(&mapping.name) {
            return *id;
        }
        self.size += mapping.name.len();
        if self.list.len() >= MAX_MODULES || self.size > MAX_NAMES {
            return Self::UNMAPPED;
        }
        let kind = match mapping.name.starts_with('/') {
            true => ModuleKind::File,
            false => ModuleKind::Special,
        };
        let id = self.add(kind, mapping.name.clone());
        self.by_name.insert(mapping.name.clone(), id);
        id
    }
}

/// The mappings of a process, with their modules. Processes can share them.
#[derive(Debug, Clone, Default)]
pub struct AddressSpace {
    mappings: Arc<Vec<Mapping>>,
    modules: Arc<Vec<ModuleId>>,
}

impl AddressSpace {
    /// From the text of `/proc/PID/maps`.
    pub fn parse(text: &[u8], modules: &mut Modules) -> Self {
        let mappings = maps::parse(text);
        let modules: Vec<ModuleId> = mappings.iter().map(|m| modules.of_mapping(m)).collect();
        Self {
            mappings: Arc::new(mappings),
            modules: Arc::new(modules),
        }
    }

    /// The memory that it takes in bytes, or its part of that.
    pub fn bytes(&self) -> usize {
        maps::bytes(&self.mappings) / Arc::strong_count(&self.mappings)
    }

    /// Whether each mapping is in `later`, too.
    pub fn is_kept_in(&self, later: &Self) -> bool {
        let kept = |old: &Mapping| maps::find(&later.mappings, old.start) == Some(old);
        self.mappings.iter().all(kept)
    }

    /// The place of an address.
    pub fn place(&self, address: u64) -> Place {
        let (module, offset) = if is_kernel(address) {
            (Modules::KERNEL, address)
        } else {
            let after = self.mappings.partition_point(|m| m.start <= address);
            let at = after.checked_sub(1);
            let mapping = at.and_then(|at| Some((self.mappings.get(at)?, self.modules.get(at)?)));
            match mapping.filter(|(mapping, _)| address < mapping.end) {
                Some((_, &(Modules::ANONYMOUS | Modules::UNMAPPED))) => {
                    (Modules::ANONYMOUS, address)
                }
                Some((mapping, module)) => {
                    let distance = address - mapping.start;
                    (*module, mapping.offset.wrapping_add(distance))
                }
                None => (Modules::UNMAPPED, address),
            }
        };
        Place { module, offset }
    }
}

/// Whether an address belongs to the kernel.
pub fn is_kernel(address: u64) -> bool {
    address >= KERNEL_START && !VSYSCALL.contains(&address)
}
