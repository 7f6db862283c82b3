//! Where the guest's kernel keeps what a debugger needs of a task.
//!
//! A kernel without debugging information does not say so itself, but the data of its first task
//! (`init_task`, `init_signals`, `init_mm`) has known values at the members, each by itself or in a
//! known neighbourhood. `vbts_capture::machine::kernel` finds the numbers and the name in the same
//! way.

use object::{File, Object as _, ObjectSection as _};
use vbts_capture::machine::kernel::Kernel;
use vbts_cpu::Probe;

/// Priority of the first task in `pushable_tasks` (`MAX_PRIO`).
const MAX_PRIO: u64 = 140;
/// Bytes of a structure that are looked at, at most.
const MAX_SIZE: u64 = 32 << 10;

/// Offsets of members, and addresses of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// `init_task`, the head of the list of processes.
    pub init_task: u64,
    /// Offset of the current task's address in the data of a processor.
    pub current: u64,
    /// In `struct task_struct`: `pid`, which `tgid` follows.
    pub ids: u64,
    /// `comm`.
    pub name: u64,
    /// `stack`.
    pub stack: u64,
    /// `tasks`, in the list of the leaders of all processes.
    pub tasks: u64,
    /// `mm`.
    pub mm: u64,
    /// `signal`.
    pub signal: u64,
    /// `thread_node`, in the list of the threads of a process.
    pub thread_node: u64,
    /// `thread.sp`, in front of the segments.
    pub thread_sp: u64,
    /// In `struct signal_struct`: `thread_head`.
    pub thread_head: u64,
    /// In `struct mm_struct`: `pgd`.
    pub pgd: u64,
    /// The function in which a task waits for its tracer: its arguments tell the event.
    pub ptrace_stop: u64,
    /// `do_syscall_64(regs, nr)`, and `syscall_exit_to_user_mode(regs)`.
    pub system_call: Option<[u64; 2]>,
    /// The page of zeros (`empty_zero_page`) that programs share.
    pub zero_page: u64,
    /// The probe of a log of branches that notes the current task.
    pub task_probe: Probe,
}

impl Layout {
    /// Finds the layout of a 64-bit kernel by its file. `None`: the kernel has no symbols, or is
    /// another one.
    pub fn of(image: &[u8]) -> Option<Self> {
        let kernel = Kernel::parse(image)?;
        let file = File::parse(image).ok()?;
        if !file.is_64() {
            return None;
        }
        let symbol = |name| kernel.symbol(name);
        let (init_task, init_mm) = (symbol("init_task")?, symbol("init_mm")?);
        let init_signals = symbol("init_signals")?;
        let task = words(&file, init_task)?;
        let fields = kernel.task_fields()?;
        let (tasks, mm) = tasks_and_mm(&task, init_task, init_mm)?;
        let (thread_node, thread_head) = thread_list(&task, init_signals)?;
        Some(Self {
            init_task,
            current: kernel.current_task()?,
            ids: fields.ids,
            name: fields.name,
            stack: position(&task, symbol("init_stack")?)?,
            tasks,
            mm,
            signal: position(&task, init_signals)?,
            thread_node,
            thread_sp: position(&task, symbol("__top_init_kernel_stack")?)?,
            thread_head,
            pgd: position(&words(&file, init_mm)?, symbol("init_top_pgt")?)?,
            ptrace_stop: symbol("ptrace_stop")?,
            system_call: symbol("do_syscall_64")
                .zip(symbol("syscall_exit_to_user_mode"))
                .map(<[u64; 2]>::from),
            zero_page: symbol("empty_zero_page")?,
            task_probe: kernel.task_probe()?,
        })
    }
}

/// The words of the kernel's data from `address` on.
fn words(file: &File<'_>, address: u64) -> Option<Vec<u64>> {
    let section = file.sections().find(|section| {
        let start = section.address();
        start != 0 && address >= start && address - start < section.size()
    })?;
    let data = section.data().ok()?;
    let data = data.get(usize::try_from(address - section.address()).ok()?..)?;
    let (words, _) = data.as_chunks();
    let words = words.iter().take((MAX_SIZE / 8) as usize);
    Some(words.map(|word| u64::from_le_bytes(*word)).collect())
}

/// Offset of the first word with this value.
fn position(words: &[u64], value: u64) -> Option<u64> {
    let at = words.iter().position(|word| *word == value)?;
    Some(8 * at as u64)
}

/// The offsets of `tasks` and `mm`. Between them are `pushable_tasks`, a node of a list by priority
/// whose two lists are empty, and `pushable_dl_tasks`, three words. `active_mm` follows.
fn tasks_and_mm(task: &[u64], init_task: u64, init_mm: u64) -> Option<(u64, u64)> {
    let own = |at: usize| init_task.wrapping_add(8 * at as u64);
    let is_empty =
        |words: &[u64], at: usize| matches!(words, [a, b, ..] if *a == own(at) && *b == own(at));
    let found = task.windows(12).enumerate().find(|(at, w)| {
        is_empty(w, *at)
            && w[2] as u32 == MAX_PRIO as u32
            && is_empty(&w[3..], at + 3)
            && is_empty(&w[5..], at + 5)
            && w[10] == 0
            && w[11] == init_mm
    });
    found.map(|(at, _)| (8 * at as u64, 8 * (at as u64 + 10)))
}

/// The offsets of `thread_node` in a task and of `thread_head` in `struct signal_struct`: the first
/// task is alone in its list.
fn thread_list(task: &[u64], init_signals: u64) -> Option<(u64, u64)> {
    let found = task.windows(2).enumerate().find(|(_, pair)| {
        let offset = pair[0].wrapping_sub(init_signals);
        pair[0] == pair[1] && offset > 0 && offset < 0x1000
    });
    found.map(|(at, pair)| (8 * at as u64, pair[0] - init_signals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_their_neighbourhood() {
        let (at, mm) = (0xFFFF_FFFF_8180_0000, 0xFFFF_FFFF_8190_0000);
        let mut task = vec![0; 64];
        let own = |word: u64| at + 8 * word;
        // Another empty list.
        (task[5], task[6]) = (own(5), own(5));
        let list = [own(20), own(20), 140, own(23), own(23), own(25), own(25)];
        task[20..27].copy_from_slice(&list);
        task[31] = mm;
        assert_eq!(tasks_and_mm(&task, at, mm), Some((160, 240)));
        assert_eq!(tasks_and_mm(&task, at, mm + 8), None);
        let signals = 0xFFFF_FFFF_81A0_0000;
        (task[40], task[41]) = (signals, signals + 0x10);
        (task[50], task[51]) = (signals + 0x10, signals + 0x10);
        assert_eq!(thread_list(&task, signals), Some((400, 0x10)));
        assert_eq!(position(&task, signals), Some(320));
    }

    #[test]
    fn other_files_have_no_layout() {
        assert_eq!(Layout::of(b"\x7fELF"), None);
    }
}
