//! Tasks of the guest's kernel: threads of a process, their registers and their memory.

use vbts_cpu::Cpu;
use vbts_cpu::state::{gpr, rflags};
use vbts_gdb::{Avx, Fxsave, Registers, ThreadId};
use vbts_vmm::machine::Machine;

use crate::layout::Layout;
use crate::task_registers::{
    FRAME_WORDS, Frame, XSAVE_AREA, from_xsave, in_user_mode, vector_registers,
};
use crate::view::by_pages;

/// Size in bytes of a stack of a task in the kernel (`THREAD_SIZE`).
const STACK_SIZE: u64 = 16 << 10;
/// The longest list of tasks that is followed.
const MAX_TASKS: usize = 1 << 16;
/// Bytes of `struct task_struct` in which the state of the vector registers is looked for.
const MAX_TASK: u64 = 16 << 10;

/// The segment registers by number.
const ES: usize = 0;
const DS: usize = 3;
const FS: usize = 4;
const GS: usize = 5;

/// The kernel's view of its tasks, at the present position of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Tasks<'a> {
    machine: &'a Machine,
    /// The processor that has its turn.
    cpu: &'a Cpu,
    layout: &'a Layout,
}

/// A task: the address of its `struct task_struct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task(u64);

impl<'a> Tasks<'a> {
    /// The tasks that the kernel with `layout` has in `machine`. `None`: it has no processor.
    pub fn new(machine: &'a Machine, layout: &'a Layout) -> Option<Self> {
        let (_, cpu) = machine.current_processor()?;
        Some(Self {
            machine,
            cpu,
            layout,
        })
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let is_read = self.cpu.read_quietly(address, &mut bytes);
        is_read.then(|| u64::from_le_bytes(bytes))
    }

    /// The task that the processor executes which has its turn.
    pub fn current(&self) -> Option<Task> {
        self.task_of(self.cpu)
    }

    /// The task that `cpu` executes.
    fn task_of(&self, cpu: &Cpu) -> Option<Task> {
        let state = cpu.state();
        // One of them is the program's, which is in the lower half: which, changes in the middle of
        // an entry.
        let bases = [state.seg[GS].base, state.msr.kernel_gs_base];
        let base = bases.into_iter().find(|base| (*base as i64) < 0)?;
        let task = self.word(base.wrapping_add(self.layout.current))?;
        Some(Task(task))
    }

    /// The number of the processor that executes `task`.
    pub(crate) fn processor_of(&self, task: Task) -> Option<usize> {
        let mut processors = self.machine.processors();
        processors.position(|cpu| self.task_of(cpu) == Some(task))
    }

    /// The number of the processor that executes `thread` in user mode, whether it has its turn or
    /// not.
    pub fn user_mode_processor(&self, thread: ThreadId) -> Option<usize> {
        let mut processors = self.machine.processors();
        processors.position(|cpu| {
            let task = (cpu.cpl == 3).then(|| self.task_of(cpu)).flatten();
            task.and_then(|task| self.id(task)) == Some(thread)
        })
    }

    /// A processor that executes a thread of `process` in user mode, the one that has its turn
    /// first, and the thread.
    pub fn user_mode_thread(&self, process: u32) -> Option<(usize, ThreadId)> {
        let (turn, _) = self.machine.current_processor()?;
        let processors = self.machine.processors().enumerate();
        let executing = processors.filter_map(|(number, cpu)| {
            let task = (cpu.cpl == 3).then(|| self.task_of(cpu)).flatten()?;
            let thread = self.id(task)?;
            (thread.process == process).then_some((number, thread))
        });
        executing.min_by_key(|(number, _)| *number != turn)
    }

    /// The task that the processor with this number executes.
    pub(crate) fn executed_by(&self, processor: usize) -> Option<Task> {
        self.task_of(self.machine.processors().nth(processor)?)
    }

    /// The task that the processor executes which has its turn, if it does so in user mode.
    pub(crate) fn in_user_mode(&self) -> Option<ThreadId> {
        let current = (self.cpu.cpl == 3).then(|| self.current()).flatten()?;
        self.id(current)
    }

    /// The threads whose code or system calls the processors execute, by their numbers. The kernel
    /// changes the current task after the stack when it switches, so the stack tells.
    pub fn executed(&self) -> Vec<Option<ThreadId>> {
        let processors = self.machine.processors();
        processors.map(|cpu| self.thread_on(cpu)).collect()
    }

    fn thread_on(&self, cpu: &Cpu) -> Option<ThreadId> {
        let current = self.task_of(cpu)?;
        if cpu.cpl == 3 {
            return self.id(current);
        }
        let pointer = cpu.state().gpr[gpr::RSP];
        let has_pointer = |task: &Task| {
            let stack = self.word(task.0.wrapping_add(self.layout.stack));
            stack.is_some_and(|stack| pointer.wrapping_sub(stack) < STACK_SIZE)
        };
        let leaders = self.leaders().into_iter();
        let tasks = leaders.flat_map(|leader| self.threads_of(leader));
        // Hostile lists may be circles, in circles.
        let mut tasks = tasks.take(MAX_TASKS);
        self.id(tasks.find(has_pointer).unwrap_or(current))
    }

    /// The numbers of a task.
    pub fn id(&self, task: Task) -> Option<ThreadId> {
        let ids = self.word(task.0.wrapping_add(self.layout.ids))?;
        Some(ThreadId {
            process: (ids >> 32) as u32,
            thread: ids as u32,
        })
    }

    /// The name of a task.
    pub fn name(&self, task: Task) -> String {
        let mut name = [0; 16];
        self.cpu
            .read_quietly(task.0.wrapping_add(self.layout.name), &mut name);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        name.escape_ascii().to_string()
    }

    /// The tasks of a list whose head is at `head`. The node of a task is at offset `node`.
    fn list(&self, head: u64, node: u64) -> Vec<Task> {
        let nodes = nodes_of_list(head, |at| self.word(at)).into_iter();
        nodes.map(|at| Task(at.wrapping_sub(node))).collect()
    }

    /// The leaders of all processes.
    fn leaders(&self) -> Vec<Task> {
        let head = self.layout.init_task.wrapping_add(self.layout.tasks);
        self.list(head, self.layout.tasks)
    }

    /// The leader of process `process`.
    pub(crate) fn leader(&self, process: u32) -> Option<Task> {
        let mut leaders = self.leaders().into_iter();
        leaders.find(|task| self.id(*task).is_some_and(|id| id.process == process))
    }

    /// The threads of process `process`, oldest first.
    pub fn threads(&self, process: u32) -> Vec<Task> {
        let leader = self.leader(process);
        leader.map_or_else(Vec::new, |leader| self.threads_of(leader))
    }

    fn threads_of(&self, leader: Task) -> Vec<Task> {
        let signal = self.word(leader.0.wrapping_add(self.layout.signal));
        let head = signal.map_or(0, |signal| signal.wrapping_add(self.layout.thread_head));
        self.list(head, self.layout.thread_node)
    }

    /// The task with these numbers.
    pub(crate) fn find(&self, thread: ThreadId) -> Option<Task> {
        let mut threads = self.threads(thread.process).into_iter();
        threads.find(|task| self.id(*task) == Some(thread))
    }

    /// The address space of a task, as CR3; `None` for one that has ended.
    pub fn space(&self, task: Task) -> Option<u64> {
        let mm = self.mm(task)?;
        let pgd = self.word(mm.wrapping_add(self.layout.pgd))?;
        self.cpu.translate_quietly(pgd)
    }

    /// The address of the kernel's description of the address space of a task.
    pub(crate) fn mm(&self, task: Task) -> Option<u64> {
        self.word(task.0.wrapping_add(self.layout.mm))
            .filter(|mm| *mm != 0)
    }

    /// Reads memory of the kernel. Returns whether all of it could be read.
    pub(crate) fn read_kernel(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.cpu.read_quietly(address, bytes)
    }

    /// Reads memory of a program in the address space `space`. Returns how many bytes could be
    /// read.
    pub fn read(&self, space: u64, address: u64, buffer: &mut [u8]) -> usize {
        by_pages(address, buffer, |at, bytes| {
            at < 1 << 47 && self.cpu.read_in(space, at, bytes)
        })
    }

    fn frame_address(&self, task: Task) -> Option<u64> {
        let stack = self.word(task.0.wrapping_add(self.layout.stack))?;
        Some(stack.wrapping_add(STACK_SIZE - 8 * FRAME_WORDS as u64))
    }

    fn frame(&self, task: Task) -> Option<Frame> {
        let at = self.frame_address(task)?;
        let mut words = [0; FRAME_WORDS];
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.word(at.wrapping_add(8 * n as u64))?;
        }
        Some(Frame::new(words))
    }

    /// The address of the frame of a task, and its words with the general registers, RIP and flags
    /// of `registers`.
    pub(crate) fn frame_with(
        &self,
        task: Task,
        registers: &Registers,
    ) -> Option<(u64, [u64; FRAME_WORDS])> {
        let words = self.frame(task)?.with(registers);
        Some((self.frame_address(task)?, words))
    }

    /// The number of the system call in which the current task is.
    pub fn current_call(&self) -> Option<u64> {
        let frame = self.frame(self.current()?)?;
        Some(frame.registers().orig_rax)
    }

    /// The registers of a task: those of the processor, or those that it has saved when it entered
    /// the kernel.
    pub fn registers(&self, task: Task) -> Option<Registers> {
        let mut processors = self.machine.processors();
        let executed = processors
            .find(|cpu| self.task_of(cpu) == Some(task))
            .map(|cpu| (cpu.cpl, cpu.state()));
        let mut registers = match &executed {
            Some((3, state)) => in_user_mode(state),
            _ => self.frame(task)?.registers(),
        };
        // A return from a fault sets RF, which no program can see: PUSHF stores it as 0.
        registers.rflags &= !rflags::RF;
        if let Some((cpl, state)) = &executed {
            let user_gs = match cpl {
                3 => state.seg[GS].base,
                // An entry that has not exchanged them yet has the program's in the register.
                _ if (state.seg[GS].base as i64) < 0 => state.msr.kernel_gs_base,
                _ => state.seg[GS].base,
            };
            (registers.fs_base, registers.gs_base) = (state.seg[FS].base, user_gs);
            registers.segments = std::array::from_fn(|n| match n {
                1 | 2 => registers.segments[n],
                _ => state.seg[n].selector,
            });
            let (fxsave, avx) = vector_registers(state);
            (registers.fxsave, registers.avx) = (Some(fxsave), Some(avx));
        } else {
            // `fsbase` and `gsbase` follow `sp` and four selectors in `struct thread_struct`.
            let thread = task.0.wrapping_add(self.layout.thread_sp);
            let selectors = self.word(thread.wrapping_add(8))?;
            for (n, register) in [ES, DS, FS, GS].into_iter().enumerate() {
                registers.segments[register] = (selectors >> (16 * n)) as u16;
            }
            registers.fs_base = self.word(thread.wrapping_add(16))?;
            registers.gs_base = self.word(thread.wrapping_add(24))?;
            (registers.fxsave, registers.avx) = self.saved_vectors(task).unzip();
        }
        Some(registers)
    }

    /// The vector registers of a task that the processor does not execute. The kernel keeps them at
    /// the end of the task, and has a pointer there to them (`fpstate` of `struct fpu`): the only
    /// one to an aligned place behind itself in the task that begins with the size of such a state.
    fn saved_vectors(&self, task: Task) -> Option<(Fxsave, Avx)> {
        let mut bytes = vec![0; MAX_TASK as usize];
        let start = self.layout.thread_sp;
        let room = bytes.get_mut(start as usize..)?;
        // The task may end in a page before.
        for (n, page) in room.chunks_mut(64).enumerate() {
            if !self
                .cpu
                .read_quietly(task.0.wrapping_add(start + 64 * n as u64), page)
            {
                break;
            }
        }
        let word = |at: u64| {
            let bytes = bytes.get(at as usize..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let state = (start..MAX_TASK).step_by(8).find_map(|at| {
            let target = word(at)?.wrapping_sub(task.0);
            let is_behind =
                target > at && target < MAX_TASK && task.0.wrapping_add(target).is_multiple_of(64);
            let size = is_behind.then(|| word(target)).flatten()? as u32;
            (576..=4096).contains(&size).then_some(target)
        })?;
        // The state begins with sizes and features, in 64 bytes.
        let mut area = [0; XSAVE_AREA];
        self.cpu
            .read_quietly(task.0.wrapping_add(state + 64), &mut area)
            .then(|| from_xsave(&area))
    }
}

/// The nodes of a list whose head is at `head`, at most [`MAX_TASKS`]. `next` reads the link of a
/// node.
///
/// A hostile list can lead into a circle without its head. Brent's algorithm ends it soon after the
/// first round: each node is compared with an earlier one, which is replaced by the node after 1,
/// 2, 4, … nodes.
fn nodes_of_list(head: u64, next: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
    let mut nodes = Vec::new();
    let mut earlier = head;
    let mut at = next(head);
    while let Some(node) = at.filter(|at| ![head, earlier].contains(at)) {
        if nodes.len() == MAX_TASKS {
            break;
        }
        nodes.push(node);
        if nodes.len().is_power_of_two() {
            earlier = node;
        }
        at = next(node);
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes of a list of `len` nodes, 8, 16, 24, …, whose last one leads to `back`.
    fn nodes(len: u64, back: u64) -> Vec<u64> {
        nodes_of_list(0, |at| {
            (at <= 8 * len).then(|| if at == 8 * len { back } else { at + 8 })
        })
    }

    #[test]
    fn a_list_ends_at_its_head() {
        for len in [0, 1, 2, 3, 100] {
            let expected: Vec<u64> = (1..=len).map(|n| 8 * n).collect();
            assert_eq!(nodes(len, 0), expected);
        }
        assert_eq!(nodes(1 << 20, 0).len(), MAX_TASKS);
    }

    #[test]
    fn a_circle_without_the_head_ends_soon() {
        for len in 1..200 {
            for first in 1..=len {
                let found = nodes(len, 8 * first);
                assert!(
                    (len..=3 * len + 1).contains(&(found.len() as u64)),
                    "{len} {first}"
                );
            }
        }
    }
}
