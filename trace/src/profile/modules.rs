//! Modules: the files that are mapped as code, and code without a file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::maps::{self, Mapping};

/// Number of a module.
pub type ModuleId = u32;

/// Start of the kernel's half of the address space.
pub const KERNEL_START: u64 = 1 << 63;
/// `PAGE_OFFSET` of a 32-bit kernel (CONFIG_VMSPLIT_3G).
pub const KERNEL_START_32: u64 = 0xC000_0000;
/// The page in the kernel's half that programs execute, for an old form of system calls.
const VSYSCALL: std::ops::Range<u64> = 0xFFFF_FFFF_FF60_0000..0xFFFF_FFFF_FF60_1000;
/// The name of the kernel's module.
pub const KERNEL: &str = "[kernel]";
/// The name of the module of mappings without a file.
pub const ANONYMOUS: &str = "[anonymous]";
/// The name of the vDSO's mapping, and that of its module in programs of 32 bits.
const VDSO: &str = "[vdso]";
const VDSO_32: &str = "[vdso, 32 bits]";
/// The first address that 32-bit code does not reach.
const END_OF_32_BITS: u64 = 1 << 32;
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
    /// Code that a process has made, of which the trace has the bytes or the names. Offsets are
    /// addresses.
    Generated,
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
    /// Code that processes have made.
    generated: HashMap<u32, ModuleId>,
    /// Bytes of all names.
    size: usize,
}

impl Default for Modules {
    fn default() -> Self {
        let mut this = Self {
            list: Vec::new(),
            by_name: HashMap::new(),
            generated: HashMap::new(),
            size: 0,
        };
        for (kind, name) in [
            (ModuleKind::Unmapped, "[unmapped]"),
            (ModuleKind::Kernel, KERNEL),
            (ModuleKind::Anonymous, ANONYMOUS),
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

    /// The file with this path.
    pub fn file(&self, path: &str) -> Option<ModuleId> {
        let id = self.by_name.get(path).copied();
        id.filter(|id| self.get(*id).kind == ModuleKind::File)
    }

    /// The module of a mapping of a process.
    fn of_mapping(&mut self, mapping: &Mapping, process: u32) -> ModuleId {
        let name = mapping.name.as_str();
        if is_anonymous(name)
            && let Some(id) = self.generated.get(&process)
        {
            return *id;
        }
        match name {
            "" => Self::ANONYMOUS,
            VDSO => self.vdso(mapping.start),
            _ => self.named(name),
        }
    }

    /// The module of the vDSO that is mapped at an address. Programs of 32 bits have another one.
    pub(super) fn vdso(&mut self, start: u64) -> ModuleId {
        self.named(match start {
            ..END_OF_32_BITS => VDSO_32,
            _ => VDSO,
        })
    }

    /// The module of the code that a process has made. It is that of the mappings that are parsed
    /// from here on.
    pub(super) fn generated(&mut self, process: u32) -> ModuleId {
        if let Some(id) = self.generated.get(&process) {
            return *id;
        }
        let id = self.add_limited(ModuleKind::Generated, &format!("[JIT {process}]"));
        if id != Self::UNMAPPED {
            self.generated.insert(process, id);
        }
        id
    }

    fn named(&mut self, name: &str) -> ModuleId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let kind = match name.starts_with('/') {
            true => ModuleKind::File,
            false => ModuleKind::Special,
        };
        let id = self.add_limited(kind, name);
        if id != Self::UNMAPPED {
            self.by_name.insert(name.to_owned(), id);
        }
        id
    }

    /// Adds a module, if there is room for it.
    fn add_limited(&mut self, kind: ModuleKind, name: &str) -> ModuleId {
        self.size += name.len();
        match self.list.len() >= MAX_MODULES || self.size > MAX_NAMES {
            true => Self::UNMAPPED,
            false => self.add(kind, name.to_owned()),
        }
    }
}

/// Whether a mapping with this name has no file: memory in which a program makes code.
pub fn is_anonymous(name: &str) -> bool {
    let starts = [
        "[anon",
        "[heap]",
        "[stack]",
        "/memfd:",
        "/dev/zero",
        "/SYSV",
    ];
    name.is_empty() || starts.iter().any(|start| name.starts_with(start))
}

/// A mapping of a file in the memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InMemory {
    /// The module of what is in memory.
    pub memory: ModuleId,
    /// Where the file is mapped.
    pub addresses: Range<u64>,
    /// The module of the file.
    pub module: ModuleId,
    /// Offset in the file of the first address.
    pub offset: u64,
}

/// The mappings of a process, with their modules. Processes can share them.
#[derive(Debug, Clone, Default)]
pub struct AddressSpace {
    mappings: Arc<Vec<Mapping>>,
    modules: Arc<Vec<ModuleId>>,
    /// The module of what has no mapping.
    other: ModuleId,
}

impl AddressSpace {
    /// From the text of `/proc/PID/maps` of a process.
    pub fn parse(text: &[u8], process: u32, modules: &mut Modules) -> Self {
        let mappings = maps::parse(text);
        let of = |mapping| modules.of_mapping(mapping, process);
        let ids: Vec<ModuleId> = mappings.iter().map(of).collect();
        let generated = modules.generated.get(&process).copied();
        Self {
            mappings: Arc::new(mappings),
            modules: Arc::new(ids),
            // Code can be made and unmapped before the mappings are looked at again.
            other: generated.unwrap_or(Modules::UNMAPPED),
        }
    }

    /// The mapped files of a process that has code in memory, some of which may have been written
    /// over that of the files.
    pub(super) fn files_in_memory(
        &self,
        process: u32,
        modules: &Modules,
    ) -> impl Iterator<Item = InMemory> {
        let memory = modules.generated.get(&process).copied();
        let mappings = self.mappings.iter().zip(self.modules.iter());
        mappings.filter_map(move |(mapping, module)| {
            let is_file = modules.get(*module).kind == ModuleKind::File;
            is_file.then_some(InMemory {
                memory: memory?,
                addresses: mapping.start..mapping.end,
                module: *module,
                offset: mapping.offset,
            })
        })
    }

    /// The memory that it takes in bytes, or its part of that.
    pub fn bytes(&self) -> usize {
        maps::bytes(&self.mappings) / Arc::strong_count(&self.mappings)
    }

    /// The modules of the mappings, by address.
    pub fn modules(&self) -> &[ModuleId] {
        &self.modules
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
                Some((_, module)) if *module == self.other => (self.other, address),
                Some((mapping, module)) => {
                    let distance = address - mapping.start;
                    (*module, mapping.offset.wrapping_add(distance))
                }
                None => (self.other, address),
            }
        };
        Place { module, offset }
    }
}

/// The address in a trace of an address in a 32-bit guest: the sign extends that of a kernel, so
/// that [`is_kernel`] is the same for all guests.
pub fn extend_32(address: u64) -> u64 {
    match address >= KERNEL_START_32 {
        true => address | !u64::from(u32::MAX),
        false => address,
    }
}

/// Whether an address belongs to the kernel.
pub fn is_kernel(address: u64) -> bool {
    address >= KERNEL_START && !VSYSCALL.contains(&address)
}
