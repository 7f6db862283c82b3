//! The tasks that `--task` selects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Read, Seek};
use std::str::FromStr;

use anyhow::anyhow;
use glob::Pattern;
use vbts_host::escape::printable;
use vbts_trace::{Event, Reader};

/// Number of tasks that an error names.
const NAMED: usize = 8;

/// Which tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskPattern {
    /// That with this thread ID.
    Id(u32),
    /// Those that have executed a program with such a name, or that have had such a name in the
    /// kernel.
    Name(Pattern),
}

impl FromStr for TaskPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => Pattern::new(text)
                .map(Self::Name)
                .map_err(|error| format!("neither a thread ID nor a name: {error}")),
        }
    }
}

impl fmt::Display for TaskPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(pattern) => pattern.fmt(f),
        }
    }
}

impl TaskPattern {
    fn matches(&self, id: u32, names: &BTreeSet<String>) -> bool {
        match self {
            Self::Id(wanted) => id == *wanted,
            Self::Name(pattern) => names.iter().any(|name| pattern.matches(name)),
        }
    }

    /// The thread IDs of the tasks in a trace.
    ///
    /// # Errors
    /// The trace cannot be read, or has no such task.
    pub(super) fn find<R: Read + Seek>(
        &self,
        reader: &mut Reader<R>,
    ) -> anyhow::Result<BTreeSet<u32>> {
        let tasks = tasks(reader)?;
        let wanted = tasks.iter().filter(|(id, names)| self.matches(**id, names));
        let wanted: BTreeSet<u32> = wanted.map(|(id, _)| *id).collect();
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        let named = tasks.iter().take(NAMED).map(|(id, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{id} ({})", names.join(", "))
        });
        let named: Vec<String> = named.collect();
        let more = tasks.len().saturating_sub(NAMED);
        Err(anyhow!(match (named.is_empty(), more) {
            (true, _) => "--task: the trace does not say which tasks it has".to_owned(),
            (false, 0) => format!(
                "--task: there is no such task. There are {}",
                named.join(", ")
            ),
            (false, _) => format!(
                "--task: there is no such task. There are {} and {more} more: `vbts report tasks` \
                 shows them",
                named.join(", ")
            ),
        }))
    }
}

/// The thread IDs of all tasks, with the names of their programs and their own.
fn tasks<R: Read + Seek>(
    reader: &mut Reader<R>,
) -> Result<BTreeMap<u32, BTreeSet<String>>, vbts_trace::Error> {
    let command = reader.run().command.first().cloned().unwrap_or_default();
    let mut tasks: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    // Thread IDs of the tasks, by their numbers.
    let mut threads: BTreeMap<u64, u32> = BTreeMap::new();
    // What each task executes now.
    let mut current: BTreeMap<u32, String> = BTreeMap::new();
    reader.events_before(u64::MAX, |number, event| match event {
        Event::Start { id, parent, .. } => {
            threads.insert(number, id);
            let name = match current.get(&parent) {
                Some(name) => name.clone(),
                None => last_part(command.as_bytes()),
            };
            tasks.entry(id).or_default().insert(name.clone());
            current.insert(id, name);
        }
        Event::Exec { id, name, .. } => {
            threads.insert(number, id);
            let name = last_part(&name);
            tasks.entry(id).or_default().insert(name.clone());
            current.insert(id, name);
        }
        Event::ThreadName(name) => {
            if let Some(id) = threads.get(&number) {
                let name = printable(&name).to_string();
                tasks.entry(*id).or_default().insert(name);
            }
        }
        Event::Switch { id, name, .. } => {
            let name = printable(&name).to_string();
            tasks.entry(id).or_default().insert(name);
        }
        _ => {}
    })?;
    Ok(tasks)
}

/// The last part of a path.
fn last_part(path: &[u8]) -> String {
    let last = path.rsplit(|byte| *byte == b'/').next();
    printable(last.unwrap_or_default()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use vbts_trace::{Run, Summary, Writer};

    #[test]
    fn tasks_are_found_by_number_and_by_name() {
        let run = Run {
            command: vec!["/bin/sh".into()],
            ..Run::default()
        };
        let mut writer = Writer::new(Vec::new(), &run).unwrap();
        for (id, parent) in [(5, 0), (6, 5), (7, 5)] {
            let start = Event::Start {
                id,
                parent,
                process: id,
                time: 1,
            };
            writer.event(u64::from(id), &start).unwrap();
        }
        let exec = Event::Exec {
            id: 7,
            former: 7,
            time: 2,
            name: b"/usr/bin/gcc-12".to_vec(),
        };
        writer.event(7, &exec).unwrap();
        let named = Event::ThreadName(b"pool-1".to_vec());
        writer.event(6, &named).unwrap();
        writer.finish(&Summary::default()).unwrap();
        let file = std::mem::take(writer.output());
        let find = |text: &str| {
            let mut reader = Reader::new(Cursor::new(file.clone())).unwrap();
            let found = text.parse::<TaskPattern>().unwrap().find(&mut reader);
            found.map_err(|error| error.to_string())
        };
        assert_eq!(find("6"), Ok([6].into()));
        assert_eq!(find("gcc*"), Ok([7].into()));
        assert_eq!(find("pool-?"), Ok([6].into()));
        // It was a shell before.
        assert_eq!(find("sh"), Ok([5, 6, 7].into()));
        let message = find("999").unwrap_err();
        assert!(
            message.ends_with("There are 5 (sh), 6 (pool-1, sh), 7 (gcc-12, sh)"),
            "{message}"
        );
        assert_eq!(find("gcc").unwrap_err(), message);
        assert!("[".parse::<TaskPattern>().is_err());
    }
}
