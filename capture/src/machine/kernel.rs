//! What the file of the guest's kernel tells about it: addresses of symbols, and where a task has
//! its numbers and its name.

use object::{BinaryFormat, File, Object as _, ObjectSection as _, ObjectSymbol, SymbolKind};
use vbts_cpu::{Probe, ProbeAction};

/// Where the kernel switches tasks; the second argument is the next one.
const SWITCH: &str = "__switch_to";
/// The first task, `struct task_struct`.
const INIT_TASK: &str = "init_task";
/// A kernel with this function has `stack_canary` between a task's numbers and its parent.
const STACK_PROTECTOR: &str = "__stack_chk_fail";
/// The name of the first task.
const INIT_NAME: &[u8] = b"swapper\0";
/// Bytes of a task that are looked at, at most.
const MAX_TASK: usize = 32 << 10;

/// A kernel with symbols, at the addresses that they have: an uncompressed one, without KASLR.
#[derive(Debug)]
pub struct Kernel<'a> {
    file: File<'a>,
}

/// Offsets in a task (`struct task_struct`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskFields {
    /// Thread ID (32 bits), followed by the process ID.
    pub ids: u64,
    /// Name (16 bytes).
    pub name: u64,
}

impl<'a> Kernel<'a> {
    /// The kernel of an ELF file; `None` if it is another one, or has no symbols.
    pub fn parse(image: &'a [u8]) -> Option<Self> {
        let file = File::parse(image).ok()?;
        let has_symbols = file.symbols().next().is_some();
        (has_symbols && file.format() == BinaryFormat::Elf).then_some(Self { file })
    }

    /// The address of a symbol.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let symbol = self.file.symbol_by_name(name)?;
        (symbol.address() != 0).then_some(symbol.address())
    }

    /// The function of the kernel that has `address`, and the offset in it.
    pub fn at(&self, address: u64) -> Option<(&str, u64)> {
        let functions = self
            .file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() <= address);
        let nearest = functions.max_by_key(ObjectSymbol::address)?;
        let offset = address - nearest.address();
        let is_inside = nearest.size() == 0 || offset < nearest.size();
        nearest
            .name()
            .ok()
            .filter(|_| is_inside)
            .map(|name| (name, offset))
    }

    /// The offset of the address of the current task in the data of a processor.
    pub fn current_task(&self) -> Option<u64> {
        // Linux 6.2 to 6.14 have it as the first member of a structure.
        self.symbol("pcpu_hot")
            .or_else(|| self.symbol("current_task"))
    }

    /// The offsets of what tells a task from others, if the symbols say how a task is laid out.
    pub fn task_fields(&self) -> Option<TaskFields> {
        let word = if self.file.is_64() { 8 } else { 4 };
        let at = self.symbol(INIT_TASK)?;
        let section = self.file.sections().find(|section| {
            let (start, size) = (section.address(), section.size());
            at >= start && at - start < size
        })?;
        let data = section.data().ok()?;
        let task = data.get(usize::try_from(at - section.address()).ok()?..)?;
        let task = task.get(..MAX_TASK).unwrap_or(task);
        let canary = match self.symbol(STACK_PROTECTOR) {
            Some(_) => word as u64,
            None => 0,
        };
        let family = family(task, at, word)?;
        Some(TaskFields {
            // `pid` and `tgid`, of 32 bits each, precede.
            ids: family.checked_sub(8 + canary)?,
            name: name(task)?,
        })
    }

    /// The probe that notes tasks, if the symbols say where it is and how a task is laid out.
    pub fn task_probe(&self) -> Option<Probe> {
        let TaskFields { ids, name } = self.task_fields()?;
        Some(Probe {
            address: self.symbol(SWITCH)?,
            action: ProbeAction::SwitchTask { ids, name },
        })
    }
}

/// The offset of `real_parent` in the first task, which is at address `at`, in a kernel whose
/// pointers have `word` bytes. Linux initializes the members from there on so: `real_parent` and
/// `parent` with the task itself, `children` and `sibling` as empty lists, `group_leader` with the
/// task.
fn family(task: &[u8], at: u64, word: usize) -> Option<u64> {
    let words: Vec<u64> = task
        .chunks_exact(word)
        .map(|bytes| {
            bytes
                .iter()
                .rfold(0, |value, byte| value << 8 | u64::from(*byte))
        })
        .collect();
    let found = words.windows(7).enumerate().find(|(index, w)| {
        let own = |member: usize| at.wrapping_add((word * (index + member)) as u64);
        **w == [at, at, own(2), own(2), own(4), own(4), at]
    });
    found.map(|(index, _)| (word * index) as u64)
}

/// The offset of `comm` in the first task.
fn name(task: &[u8]) -> Option<u64> {
    let at = task
        .windows(INIT_NAME.len())
        .position(|bytes| bytes == INIT_NAME);
    at.map(|at| at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A first task at `at`, whose family is 16 words from there, and whose name is 25.
    fn first_task(at: u64, word: usize) -> Vec<u8> {
        let mut task = vec![0; 32 * word];
        let own = |member: u64| at + word as u64 * (16 + member);
        let words = [at, at, own(2), own(2), own(4), own(4), at];
        for (value, bytes) in words.iter().zip(task[16 * word..].chunks_exact_mut(word)) {
            bytes.copy_from_slice(&value.to_le_bytes()[..word]);
        }
        task[25 * word..][..7].copy_from_slice(b"swapper");
        task
    }

    #[test]
    fn the_members_of_a_task_are_found() {
        for (at, word) in [(0xFFFF_FFFF_8180_0000, 8), (0xC142_F140, 4)] {
            let task = first_task(at, word);
            let place = |words: usize| Some((words * word) as u64);
            assert_eq!(family(&task, at, word), place(16));
            assert_eq!(name(&task), place(25));
            assert_eq!(family(&task, at + 8, word), None);
            assert_eq!(family(&task[..22 * word], at, word), None);
            assert_eq!(name(&task[..25 * word + 7]), None);
        }
    }

    #[test]
    fn other_files_are_no_kernels() {
        assert!(Kernel::parse(b"").is_none());
        assert!(Kernel::parse(b"\x7fELF").is_none());
        assert!(Kernel::parse(&[0; 4096]).is_none());
    }
}
