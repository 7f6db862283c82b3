//! The two views of a replay: what a thread is, and which one a processor executes.

use vbts_cpu::StopPoints;
use vbts_gdb::{Registers, ThreadId, ThreadInfo};

use crate::debugger::Debugger;

/// The part of a replay that a client debugs.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// A process, in user mode.
    Program {
        /// Its number, or the name of its program. `None`: the first one that crashed, or else the
        /// first.
        process: Option<&'a str>,
    },
    /// All that the processors execute, which are the threads.
    Kernel,
}

/// The number of the process whose threads are the processors.
pub(crate) const MACHINE: u32 = 1;

/// The thread that stands for a processor in the kernel's view.
pub(crate) fn thread_of(processor: usize) -> ThreadId {
    ThreadId {
        process: MACHINE,
        thread: u32::try_from(processor).map_or(u32::MAX, |number| number.saturating_add(1)),
    }
}

/// The processor for which `thread` stands there.
pub(crate) fn processor_of(thread: ThreadId) -> Option<usize> {
    let number = thread.thread.checked_sub(1)?;
    (thread.process == MACHINE).then_some(number as usize)
}

impl Debugger {
    /// The processor that executes `thread` where the client sees it: in the view of a program, in
    /// user mode. It may have its turn, or wait for it.
    pub(crate) fn processor_of(&self, thread: ThreadId) -> Option<usize> {
        match self.is_kernel_view {
            true => processor_of(thread),
            false => self.replay.tasks()?.user_mode_processor(thread),
        }
    }

    /// The thread that is executed at the present position: also in the kernel.
    pub(crate) fn current_thread(&self) -> Option<ThreadId> {
        let (processor, _) = self.replay.machine.current_processor()?;
        if self.is_kernel_view {
            return Some(thread_of(processor));
        }
        let tasks = self.replay.tasks()?;
        tasks.current().and_then(|task| tasks.id(task))
    }

    /// The threads that exist now.
    pub(crate) fn thread_list(&self) -> Vec<ThreadInfo> {
        if self.is_kernel_view {
            return self.processor_list();
        }
        let Some(tasks) = self.replay.tasks() else {
            return Vec::new();
        };
        let threads = tasks.threads(self.process).into_iter();
        let threads = threads.filter_map(|task| {
            let processor = tasks.processor_of(task);
            Some(ThreadInfo {
                id: tasks.id(task)?,
                name: tasks.name(task),
                processor: processor.and_then(|number| u32::try_from(number).ok()),
                state: String::new(),
            })
        });
        threads.collect()
    }

    /// A thread to name in a stop that none has caused: the current one, or the first.
    pub(crate) fn any_thread(&self) -> ThreadId {
        let threads = self.thread_list();
        let exists = |thread: &ThreadId| threads.iter().any(|other| other.id == *thread);
        let candidates = self.current_thread().into_iter().chain([self.stop.thread]);
        candidates
            .chain(threads.first().map(|thread| thread.id))
            .find(exists)
            .unwrap_or(self.stop.thread)
    }

    /// The registers of a thread now.
    pub(crate) fn registers_of(&self, thread: ThreadId) -> Option<Registers> {
        if self.is_kernel_view {
            return self.processor_registers(processor_of(thread)?);
        }
        let tasks = self.replay.tasks()?;
        tasks.find(thread).and_then(|task| tasks.registers(task))
    }

    /// Reads memory as `thread` sees it. Returns how many bytes could be read.
    pub(crate) fn read_as(&self, thread: ThreadId, address: u64, buffer: &mut [u8]) -> usize {
        if self.is_kernel_view {
            let cpu = processor_of(thread).and_then(|number| self.replay.processor(number));
            let read = cpu.map_or(0, |cpu| {
                by_pages(address, buffer, |at, bytes| cpu.read_quietly(at, bytes))
            });
            self.kernel_code
                .hide_int3(address, buffer.get_mut(..read).unwrap_or_default());
            return read;
        }
        let space = self.space_of(thread.process);
        let space_and_tasks = space.zip(self.replay.tasks());
        space_and_tasks.map_or(0, |(space, tasks)| tasks.read(space, address, buffer))
    }

    /// The name of what `thread` executes: of the task.
    pub(crate) fn name_of(&self, thread: ThreadId) -> Option<String> {
        let tasks = self.replay.tasks()?;
        let task = match self.is_kernel_view {
            true => tasks.executed_by(processor_of(thread)?),
            false => tasks.find(thread),
        };
        Some(tasks.name(task?))
    }

    /// The stop points at which a thread comes to where the client sees it, or leaves that.
    pub(crate) fn stay_points(&self) -> StopPoints {
        StopPoints {
            user_mode_of: self.space().filter(|_| !self.is_kernel_view),
            ..StopPoints::default()
        }
    }
}

/// Reads memory in parts that are in a page each, up to the first one that `read` cannot read.
/// Returns the number of bytes.
pub(crate) fn by_pages(
    address: u64,
    buffer: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> usize {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = address.wrapping_add(done as u64);
        let len = rest.len().min(0x1000 - (at & 0xFFF) as usize);
        if !rest.get_mut(..len).is_some_and(|bytes| read(at, bytes)) {
            break;
        }
        done += len;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_threads_from_1_on() {
        assert_eq!(thread_of(0).thread, 1);
        assert_eq!(processor_of(thread_of(3)), Some(3));
        let other = |process, thread| ThreadId { process, thread };
        assert_eq!(processor_of(other(MACHINE, 0)), None);
        assert_eq!(processor_of(other(2, 1)), None);
    }

    #[test]
    fn memory_is_read_up_to_the_first_page_that_is_not_there() {
        let read = |at: u64, bytes: &mut [u8]| {
            bytes.fill(1);
            at < 0x3000
        };
        assert_eq!(by_pages(0x1FF0, &mut [0; 0x2000], read), 0x1010);
        assert_eq!(by_pages(0x1FF0, &mut [0; 0x10], read), 0x10);
        assert_eq!(by_pages(0x3000, &mut [0; 4], read), 0);
        assert_eq!(by_pages(0, &mut [], read), 0);
    }
}
