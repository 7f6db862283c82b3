//! Takes the events of a trace.

use super::code::Files;
use super::counts::TaskCount;
use super::limits::{MAX_ENDED, MAX_PATH, MAX_PROGRAMS, MAX_TASKS};
use super::modules::{AddressSpace, Modules};
use super::space::{Space, Transfer};
use super::stack::NOWHERE;
use super::{Ended, Profile, Task, Watch};
use crate::{CodeSource, Event};

/// Index of RIP among the registers of [`Event::Crash`].
const RIP: usize = 16;

impl<F: Files, W: Watch> Profile<F, W> {
    pub(super) fn event(&mut self, number: u64, event: Event) {
        match event {
            Event::Start {
                id,
                parent,
                process,
                ..
            } => self.start(number, id, parent, process),
            Event::Exec { id, name, .. } => {
                self.last_line(number, None);
                let program = self.program(&name);
                if let Some(task) = self.tasks.get_mut(&number) {
                    if self.live.get(&task.count.id) == Some(&number) {
                        self.live.remove(&task.count.id);
                    }
                    task.stack.clear();
                    (task.at, task.parent_at, task.read_from) = (NOWHERE, None, None);
                    (task.count.id, task.count.program) = (id, program);
                    task.count.thread_name = None;
                    self.live.insert(id, number);
                }
            }
            Event::Name(name) => {
                let program = self.program(&name);
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.count.program = program;
                }
            }
            Event::ThreadName(name) => {
                let name = self.program(&name);
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.count.thread_name = Some(name).filter(|name| *name != task.count.program);
                    let program = self.tree.program(task.count.name());
                    task.stack.rename(program, &mut self.tree);
                    self.watch.renamed(number, &task.stack);
                }
            }
            Event::Crash(crash) => {
                self.last_line(number, crash.registers.get(RIP).copied());
            }
            Event::End { .. } => {
                self.last_line(number, None);
                if let Some(task) = self.tasks.remove(&number) {
                    self.show_end(number, &task);
                    if self.live.get(&task.count.id) == Some(&number) {
                        self.live.remove(&task.count.id);
                    }
                    self.end(number, task.count);
                }
            }
            Event::Lost(records) => {
                self.counts.lost = self.counts.lost.saturating_add(records);
                self.lose(number);
            }
            Event::Invalid => {
                self.counts.lost = self.counts.lost.saturating_add(1);
                self.lose(number);
            }
            Event::Gap { .. } | Event::Filtered(_) => self.lose(number),
            Event::Switch {
                id, process, name, ..
            } => self.switch(number, id, process, &name),
            Event::Maps { process, text } => {
                let mut map = AddressSpace::parse(&text, process, &mut self.modules);
                for written in map.files_in_memory(process, &self.modules) {
                    self.code.change_as_in(written);
                }
                let space = self.spaces.remove(&process);
                if self.is_full(space.as_ref()) {
                    return;
                }
                if !self.has_room_for(&map) {
                    map = AddressSpace::default();
                }
                let mut space = space.unwrap_or_default();
                // Transfers in code that had no mapping would keep their places.
                let is_kept = space.map.is_kept_in(&map);
                if !is_kept || !space.transfers.iter().all(|t| is_mapped(&space.map, t)) {
                    self.add_up(&mut space);
                }
                space.map = map;
                self.spaces.insert(process, space);
            }
            Event::KernelCode { address, bytes } => {
                self.code.change(Modules::KERNEL, address, &bytes);
            }
            Event::Code {
                process,
                source,
                at,
                bytes,
            } => self.add_code(process, source, at, &bytes),
            Event::BuildId { id, name } => self.code.files.add_build_id(&name, id),
            Event::ProcessEnd { process } => {
                if let Some(mut space) = self.spaces.remove(&process) {
                    self.add_up(&mut space);
                }
            }
            _ => {}
        }
    }

    /// Code that is in no file. It belongs to the mappings that follow.
    fn add_code(&mut self, process: u32, source: CodeSource, at: u64, bytes: &[u8]) {
        let module = match source {
            CodeSource::Vdso => self.modules.vdso(at),
            _ => self.modules.generated(process),
        };
        let module = self.modules.get(module);
        match source {
            _ if module.id == Modules::UNMAPPED => {}
            CodeSource::Memory => self.code.change(module.id, at, bytes),
            _ => self.code.files.add_code(module, source, at, bytes),
        }
    }

    /// A processor, the stream with this number, executes another task of its kernel. Each of these
    /// has a stack of its own, and the straight line goes on.
    fn switch(&mut self, number: u64, id: u32, process: u32, name: &[u8]) {
        // Each processor has an idle task with thread ID 0.
        let key = |id: u32| match id {
            0 => (0, number),
            _ => (id, 0),
        };
        let program = self.program(name);
        let last = self.tasks.remove(&number).unwrap_or_default();
        let (at, transfer, branch) = (last.at, last.last, last.branch);
        if self.asleep.len() < MAX_TASKS {
            self.asleep.insert(key(last.count.id), last);
        } else {
            self.counts.too_deep += 1;
            self.end(number, last.count);
        }
        let mut next = self.asleep.remove(&key(id)).unwrap_or_default();
        next.count.id = id;
        (next.count.process, next.count.program) = (process, program);
        (next.at, next.last, next.branch) = (at, transfer, branch);
        self.tasks.insert(number, next);
    }

    fn start(&mut self, number: u64, id: u32, parent: u32, process: u32) {
        if self.tasks.len() >= MAX_TASKS {
            self.counts.too_deep += 1;
            return;
        }
        let mut task = Task {
            count: TaskCount {
                id,
                process,
                ..TaskCount::default()
            },
            ..Task::default()
        };
        let parent = self.live.get(&parent).and_then(|from| self.tasks.get(from));
        if let Some(parent) = parent {
            task.count.program = parent.count.program;
            task.parent_at = Some(parent.at).filter(|at| *at != NOWHERE);
            if parent.count.process != process {
                // A fork has the stack of its parent. A thread begins with one of its own.
                task.stack.fork(&parent.stack);
                task.read_from = parent.read_from;
                self.added.frames += task.stack.held();
                if self.spaces.len() < MAX_TASKS
                    && !self.spaces.contains_key(&process)
                    && let Some(space) = self.spaces.get(&parent.count.process)
                {
                    let space = Space::with(space.map.clone());
                    self.spaces.insert(process, space);
                }
            }
        }
        self.live.insert(id, number);
        self.tasks.insert(number, task);
        self.make_room();
    }

    fn program(&mut self, name: &[u8]) -> u32 {
        let name = name.get(..MAX_PATH).unwrap_or(name);
        let known = self.programs.iter().position(|program| program == name);
        let program = known.unwrap_or_else(|| {
            // A few hundred programs are many.
            match self.programs.len() + 1 {
                // A copy: a long name that is cut short in place can keep its allocation.
                ..MAX_PROGRAMS => self.programs.push(name.to_vec()),
                MAX_PROGRAMS => self.programs.push(b"[other programs]".into()),
                _ => {}
            }
            self.programs.len() - 1
        });
        program as u32
    }

    pub(super) fn lose(&mut self, number: u64) {
        if let Some(task) = self.tasks.get_mut(&number) {
            (task.at, task.parent_at) = (NOWHERE, None);
        }
    }

    pub(super) fn show_end(&mut self, number: u64, task: &Task) {
        let none = Space::default();
        let space = self.spaces.get(&task.count.process).unwrap_or(&none);
        self.watch.end(&Ended {
            task: number,
            count: &task.count,
            last: task.branch,
            stack: &task.stack,
            map: &space.map,
            read_from: task.read_from,
        });
    }

    pub(super) fn end(&mut self, number: u64, count: TaskCount) {
        self.counts.branches += count.branches;
        self.counts.instructions += count.instructions;
        // A run with more tasks than this has enough of them in the list.
        if self.ended.len() < MAX_ENDED {
            self.ended.push((number, count));
        }
    }
}

fn is_mapped(map: &AddressSpace, transfer: &Transfer) -> bool {
    let addresses = [transfer.start, transfer.from, transfer.to];
    let mut places = addresses.iter().map(|address| map.place(*address));
    places.all(|place| place.module != Modules::UNMAPPED)
}
