//! The state of the tasks and processors of a trace at one of its branches, as events with which a
//! trace that begins at that branch can begin.

use std::collections::{BTreeMap, HashMap};

use vbts_trace::profile::generated::MAX_GENERATED;
use vbts_trace::{CodeSource, Event};

/// The state of live tasks and processes, and of processors, after the events so far.
#[derive(Debug, Default)]
pub(crate) struct TaskSnapshot {
    /// The last [`Event::AddressSpace`] and [`Event::Switch`] of each processor.
    processors: BTreeMap<u64, [Option<Event>; 2]>,
    tasks: BTreeMap<u64, Task>,
    /// Numbers of the live tasks, by thread ID.
    live: HashMap<u32, u64>,
    /// The mappings of each process.
    maps: BTreeMap<u32, Event>,
    /// Each [`Event::KernelCode`] and [`Event::KernelFile`].
    kernel: Vec<Event>,
    /// Code of live processes that is in no file; for all processes, the vDSO and build IDs.
    code: BTreeMap<Option<u32>, Vec<Event>>,
    /// Its size in bytes.
    code_size: usize,
}

/// A live task.
#[derive(Debug)]
struct Task {
    id: u32,
    parent: u32,
    process: u32,
    started: u64,
    /// Path of its program.
    name: Vec<u8>,
    /// The name that it has given itself; empty if none.
    thread_name: Vec<u8>,
    /// Its last [`Event::Exec`], and its thread ID before.
    exec: Option<(Event, u32)>,
    /// Branches that are left out.
    left_out: u64,
}

impl TaskSnapshot {
    /// Updates the state with an event of a task or processor.
    pub(crate) fn event(&mut self, number: u64, event: Event) {
        match event {
            Event::AddressSpace { .. } => self.processor(number)[0] = Some(event),
            Event::Switch { .. } => self.processor(number)[1] = Some(event),
            Event::Start {
                id,
                parent,
                process,
                time,
            } => {
                let from = self.live.get(&parent).and_then(|from| self.tasks.get(from));
                let task = Task {
                    id,
                    parent,
                    process,
                    started: time,
                    name: from.map_or_else(Vec::new, |from| from.name.clone()),
                    thread_name: Vec::new(),
                    exec: None,
                    left_out: 0,
                };
                self.tasks.insert(number, task);
                self.live.insert(id, number);
            }
            Event::Exec {
                id,
                former,
                ref name,
                ..
            } => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    (task.id, task.name) = (id, name.clone());
                    task.thread_name.clear();
                    task.exec = Some((event, former));
                }
                self.live.remove(&former);
                self.live.insert(id, number);
            }
            Event::Name(name) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.name = name;
                }
            }
            Event::ThreadName(name) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.thread_name = name;
                }
            }
            Event::End { .. } => self.end(number),
            Event::Untraced { id, .. } => {
                if let Some(number) = self.live.get(&id) {
                    self.end(*number);
                }
            }
            Event::Filtered(branches) => self.left_out(number, branches),
            Event::Maps { process, .. } => {
                self.maps.insert(process, event);
            }
            Event::ProcessEnd { process } => {
                self.maps.remove(&process);
                let code = self.code.remove(&Some(process)).unwrap_or_default();
                self.code_size -= code.iter().map(Event::size).sum::<usize>();
            }
            Event::Code {
                process, source, ..
            } => {
                let process = (source != CodeSource::Vdso).then_some(process);
                self.add_code(process, event);
            }
            Event::KernelCode { .. } | Event::KernelFile { .. } => self.kernel.push(event),
            Event::BuildId { .. } => self.add_code(None, event),
            Event::Lost(_)
            | Event::Invalid
            | Event::Signal { .. }
            | Event::Arrive { .. }
            | Event::Depart { .. }
            | Event::Crash { .. }
            | Event::Standing { .. }
            | Event::Gap { .. } => {}
        }
    }

    /// Adds to the number of branches of a task that are left out.
    pub(crate) fn left_out(&mut self, number: u64, branches: u64) {
        if let Some(task) = self.tasks.get_mut(&number) {
            task.left_out = task.left_out.saturating_add(branches);
        }
    }

    fn add_code(&mut self, process: Option<u32>, event: Event) {
        let size = self.code_size + event.size();
        if size <= MAX_GENERATED {
            self.code.entry(process).or_default().push(event);
            self.code_size = size;
        }
    }

    fn processor(&mut self, number: u64) -> &mut [Option<Event>; 2] {
        self.processors.entry(number).or_default()
    }

    fn end(&mut self, number: u64) {
        if let Some(task) = self.tasks.remove(&number)
            && self.live.get(&task.id) == Some(&number)
        {
            self.live.remove(&task.id);
        }
    }

    /// Returns events that recreate the state, each with the number of its task or processor.
    pub(crate) fn into_events(self) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        // What a reader takes for the names of tasks so far, by thread ID.
        let mut names: HashMap<u32, Vec<u8>> = HashMap::new();
        for (number, task) in self.tasks {
            let inherited = names.get(&task.parent).cloned().unwrap_or_default();
            let id = task.exec.as_ref().map_or(task.id, |(_, former)| *former);
            let start = Event::Start {
                id,
                parent: task.parent,
                process: task.process,
                time: task.started,
            };
            events.push((number, start));
            match task.exec {
                Some((exec, _)) => events.push((number, exec)),
                None if task.name == inherited => {}
                None => events.push((number, Event::Name(task.name.clone()))),
            }
            if !task.thread_name.is_empty() {
                events.push((number, Event::ThreadName(task.thread_name)));
            }
            names.insert(task.id, task.name);
            if task.left_out > 0 {
                events.push((number, Event::Filtered(task.left_out)));
            }
        }
        let code = self.code.into_values().flatten();
        let of_all = self.maps.into_values().chain(self.kernel).chain(code);
        events.extend(of_all.map(|event| (0, event)));
        for (number, of_processor) in self.processors {
            events.extend(
                of_processor
                    .into_iter()
                    .flatten()
                    .map(|event| (number, event)),
            );
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(id: u32, parent: u32) -> Event {
        Event::Start {
            id,
            parent,
            process: id,
            time: id.into(),
        }
    }

    fn exec(id: u32, former: u32, name: &str) -> Event {
        Event::Exec {
            id,
            former,
            time: 9,
            name: name.into(),
        }
    }

    fn end() -> Event {
        Event::End {
            time: 10,
            status: vbts_trace::Status::Exited(0),
        }
    }

    #[test]
    fn live_tasks_have_their_names_and_ended_ones_are_forgotten() {
        let mut known = TaskSnapshot::default();
        let maps = |process, text: &str| Event::Maps {
            process,
            text: text.into(),
        };
        let code = Event::KernelCode {
            address: 1 << 63,
            bytes: vec![0x90],
        };
        let in_memory = |process, source| Event::Code {
            process,
            source,
            at: 0,
            bytes: vec![0xC3],
        };
        for (number, event) in [
            (0, start(1, 0)),
            (0, exec(1, 1, "/bin/a")),
            (0, maps(1, "old")),
            (1, start(2, 1)),
            (2, start(3, 2)),
            (1, exec(2, 2, "/bin/b")),
            (1, exec(2, 2, "/bin/c")),
            (1, maps(2, "two")),
            (1, Event::Filtered(5)),
            (3, start(4, 2)),
            (3, maps(4, "four")),
            (0, maps(1, "new")),
            (3, end()),
            (0, Event::ProcessEnd { process: 4 }),
            (0, end()),
            (1, Event::Lost(7)),
            (0, code.clone()),
            (0, in_memory(2, CodeSource::Memory)),
            (0, in_memory(4, CodeSource::Memory)),
            (0, in_memory(4, CodeSource::Vdso)),
            (0, Event::ProcessEnd { process: 4 }),
        ] {
            known.event(number, event);
        }
        known.left_out(1, 2);
        known.left_out(0, 2);
        let expected = [
            (1, start(2, 1)),
            (1, exec(2, 2, "/bin/c")),
            (1, Event::Filtered(7)),
            (2, start(3, 2)),
            (2, Event::Name(b"/bin/a".into())),
            (0, maps(1, "new")),
            (0, maps(2, "two")),
            (0, code),
            (0, in_memory(4, CodeSource::Vdso)),
            (0, in_memory(2, CodeSource::Memory)),
        ];
        assert_eq!(known.into_events(), expected);
    }

    #[test]
    fn a_thread_that_has_executed_a_program_has_the_id_of_its_leader() {
        let mut known = TaskSnapshot::default();
        for (number, event) in [
            (0, start(1, 0)),
            (1, start(2, 1)),
            (0, end()),
            (1, exec(1, 2, "/bin/a")),
            (2, start(3, 1)),
        ] {
            known.event(number, event);
        }
        let expected = [
            (1, start(2, 1)),
            (1, exec(1, 2, "/bin/a")),
            (2, start(3, 1)),
        ];
        let expected = expected.map(|(number, mut event)| {
            if let Event::Start { id: 2, process, .. } = &mut event {
                *process = 2;
            }
            (number, event)
        });
        assert_eq!(known.into_events(), expected);
    }
}
