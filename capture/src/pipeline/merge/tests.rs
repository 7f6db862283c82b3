//! Any order of messages gives one order of segments, and bounded memory.

use std::convert::Infallible;

use proptest::prelude::*;
use vbts_trace::{Branch, Status};

use super::*;
use crate::records::tests::{contents, records};

/// What the merge has given out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given {
    /// Task, and first value of each record that is a branch.
    branches: Vec<(u32, u64)>,
    events: Vec<(u32, &'static str)>,
    maps: Vec<Vec<u8>>,
    ended: Vec<u32>,
    failed: Option<MergeError>,
}

#[derive(Debug, PartialEq, Eq)]
struct Failed(MergeError);

impl From<MergeError> for Failed {
    fn from(error: MergeError) -> Self {
        Self(error)
    }
}

impl From<Infallible> for Failed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Sink for Given {
    type Error = Failed;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), Failed> {
        assert!(!branches.is_empty());
        let branches = branches.iter().map(|branch| (task.id, branch.from));
        self.branches.extend(branches);
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &Event) -> Result<(), Failed> {
        let (id, name) = match event {
            Event::Start { .. } => (task.id, "start"),
            Event::Exec { .. } => (task.id, "exec"),
            Event::Signal { .. } => (task.id, "signal"),
            Event::End { .. } => (task.id, "end"),
            Event::Lost(_) => (task.id, "lost"),
            Event::Crash(_) => (task.id, "crash"),
            Event::Standing { .. } => (task.id, "standing"),
            Event::Untraced { id, .. } => (*id, "untraced"),
            Event::Maps { text, .. } => {
                self.maps.push(text.clone());
                return Ok(());
            }
            Event::ProcessEnd { process } => {
                self.ended.push(*process);
                return Ok(());
            }
            Event::Arrive { .. } | Event::Depart { .. } | Event::Invalid => return Ok(()),
            event => panic!("{event:?}"),
        };
        self.events.push((id, name));
        Ok(())
    }
}

fn start(task: u32, parent: u32, time: u64) -> AgentEvent {
    AgentEvent::Start {
        task,
        parent,
        process: task,
        capacity: 10,
        time,
    }
}

fn end(task: u32, time: u64) -> AgentEvent {
    let status = Status::Exited(0);
    let event = Event::End { time, status };
    AgentEvent::Event { task, event }
}

/// A segment from time `from` to `to` with one branch, whose address is `from`.
fn segment(task: u32, from: u64, to: u64) -> AgentEvent {
    let records = records(&[[2, from, 0], [1, from, 0], [3, to, 0]]);
    AgentEvent::Records { task, records }
}

fn merged(inputs: Vec<AgentEvent>) -> (Merge, Given) {
    let (mut merge, mut given) = (Merge::new(1 << 20), Given::default());
    for input in inputs {
        merge.push(input, &mut given).unwrap();
    }
    (merge, given)
}

#[test]
fn the_records_of_a_single_task_do_not_wait() {
    let branch = |task, n| AgentEvent::Records {
        task,
        records: records(&[[1, n, 0]]),
    };
    let (merge, given) = merged(vec![start(5, 0, 100), branch(5, 1), branch(5, 2)]);
    assert_eq!(given.branches, [(5, 1), (5, 2)]);
    assert_eq!((merge.tasks(), merge.capacity()), (1, 10));
    assert!(!merge.is_unordered());
}

#[test]
fn records_wait_for_a_task_that_can_have_older_ones() {
    let (mut merge, mut given) = merged(vec![
        start(5, 0, 100),
        start(6, 5, 110),
        segment(6, 120, 130),
    ]);
    assert_eq!(given.branches, []);
    let drained = |time| AgentEvent::Drained { task: 5, time };
    merge.push(drained(119), &mut given).unwrap();
    assert_eq!(given.branches, []);
    merge.push(drained(140), &mut given).unwrap();
    assert_eq!(given.branches, [(6, 120)]);
    merge.push(segment(6, 150, 160), &mut given).unwrap();
    merge.push(segment(5, 145, 149), &mut given).unwrap();
    assert_eq!(given.branches, [(6, 120), (5, 145)]);
    merge.push(end(5, 149), &mut given).unwrap();
    assert_eq!(given.branches, [(6, 120), (5, 145), (6, 150)]);
    merge.push(end(6, 170), &mut given).unwrap();
    assert_eq!(
        given.events,
        [(5, "start"), (6, "start"), (5, "end"), (6, "end")]
    );
    assert_eq!(given.ended, [5, 6]);
    assert_eq!((merge.bytes, merge.capacity()), (0, 0));
    assert!(merge.streams.is_empty() && merge.processes.is_empty());
}

#[test]
fn a_later_time_counts_while_an_earlier_one_waits_to_be_given_out() {
    let drained = |time| AgentEvent::Drained { task: 5, time };
    let (_, given) = merged(vec![
        start(5, 0, 100),
        start(6, 5, 110),
        // Task 6 can have older records, so this waits.
        drained(120),
        drained(140),
        segment(6, 130, 135),
    ]);
    assert_eq!(given.branches, [(6, 130)]);
}

#[test]
fn a_thread_that_executes_takes_the_id_of_its_process() {
    let exec = AgentEvent::Event {
        task: 7,
        event: Event::Exec {
            id: 5,
            former: 7,
            time: 130,
            name: b"/bin/sh".to_vec(),
        },
    };
    let (merge, given) = merged(vec![
        start(5, 0, 100),
        start(7, 5, 110),
        end(5, 120),
        segment(7, 121, 125),
        exec,
        segment(5, 131, 132),
        start(8, 5, 140),
        end(8, 141),
        end(5, 150),
    ]);
    assert_eq!(given.branches, [(7, 121), (5, 131)]);
    assert_eq!(given.events.last(), Some(&(5, "end")));
    assert_eq!(merge.tasks(), 3);
}

#[test]
fn mappings_are_given_out_before_the_first_records_that_need_them() {
    let maps = |text: &str| AgentEvent::Maps {
        process: 5,
        text: text.into(),
    };
    let (mut merge, mut given) = merged(vec![
        start(5, 0, 100),
        start(6, 5, 101),
        maps("one"),
        maps("two"),
        segment(5, 102, 110),
    ]);
    assert_eq!(given.maps, [b""; 0]);
    merge.push(maps("three"), &mut given).unwrap();
    merge.push(segment(5, 111, 115), &mut given).unwrap();
    merge.finish(&mut given).unwrap();
    assert_eq!(given.maps, [&b"two"[..], b"three"]);
    // They are counted while they are kept.
    merge.push(maps("four"), &mut given).unwrap();
    assert_eq!(merge.bytes, 4);
    merge.push(end(5, 120), &mut given).unwrap();
    merge.push(end(6, 120), &mut given).unwrap();
    assert_eq!(merge.bytes, 0);
}

#[test]
fn a_task_without_a_trace_is_in_the_order_of_time() {
    let untraced = |task, parent, time| {
        let event = Event::Untraced {
            id: task,
            parent,
            time,
            name: Vec::new(),
            reason: Vec::new(),
        };
        AgentEvent::Untraced { task, event }
    };
    let (merge, given) = merged(vec![
        untraced(3, 2, 50),
        start(5, 0, 100),
        start(6, 5, 101),
        untraced(9, 6, 105),
        untraced(6, 5, 106),
        // These are older than the task that their own task has started.
        segment(5, 102, 104),
        end(5, 107),
    ]);
    assert_eq!(
        given.events,
        [
            (3, "untraced"),
            (5, "start"),
            (6, "start"),
            (9, "untraced"),
            (6, "untraced"),
            (5, "end")
        ]
    );
    assert_eq!(given.branches, [(5, 102)]);
    assert!(!merge.is_unordered());
    assert_eq!((merge.tasks(), merge.bytes, merge.streams.len()), (2, 0, 0));
}

#[test]
fn records_older_than_what_was_said_to_be_complete_are_noticed() {
    let drained = AgentEvent::Drained { task: 5, time: 120 };
    let (merge, _) = merged(vec![start(5, 0, 100), drained, segment(5, 110, 115)]);
    assert!(merge.is_unordered());
}

#[test]
fn messages_that_make_no_sense_are_errors() {
    for (inputs, error) in [
        (vec![segment(1, 2, 3)], MergeError::UnknownTask(1)),
        (vec![end(1, 2)], MergeError::UnknownTask(1)),
        (
            vec![start(1, 0, 1), end(1, 2), segment(1, 3, 4)],
            MergeError::UnknownTask(1),
        ),
        (
            vec![start(1, 0, 1), start(1, 0, 2)],
            MergeError::StartedTwice(1),
        ),
        (
            (0..=MAX_TASKS as u32).map(|n| start(n, 0, 1)).collect(),
            MergeError::TooManyTasks,
        ),
        (
            vec![
                start(1, 0, 1),
                AgentEvent::Maps {
                    process: 1,
                    text: vec![0; 2 << 20],
                },
            ],
            MergeError::TooManyMappings,
        ),
    ] {
        let (mut merge, mut given) = (Merge::new(1 << 20), Given::default());
        let mut results = inputs.into_iter().map(|i| merge.push(i, &mut given));
        assert_eq!(results.find_map(Result::err), Some(Failed(error)));
    }
}

#[test]
fn a_task_that_is_never_drained_does_not_keep_the_others_for_ever() {
    let (mut merge, mut given) = (Merge::new(10_000), Given::default());
    merge.push(start(1, 0, 0), &mut given).unwrap();
    merge.push(start(2, 1, 1), &mut given).unwrap();
    for time in 0..10_000 {
        merge
            .push(segment(2, time * 2 + 2, time * 2 + 3), &mut given)
            .unwrap();
        assert!(merge.bytes <= 10_000);
    }
    assert!(given.branches.len() > 9_900);
    assert!(!merge.is_unordered());
    merge.push(segment(1, 50, 51), &mut given).unwrap();
    merge.finish(&mut given).unwrap();
    assert!(merge.is_unordered());
    assert_eq!(given.branches.len(), 10_001);
}

/// The messages of a task with a segment for each of `parts`: pauses, lengths, and whether a
/// message begins with it.
fn stream(task: u32, parts: &[(u64, u64, bool)]) -> Vec<AgentEvent> {
    let mut time = 10 * u64::from(task);
    let mut inputs = vec![start(task, 0, time)];
    let mut batch: Vec<[u64; 3]> = Vec::new();
    for &(pause, len, begins) in parts {
        if begins && !batch.is_empty() {
            let records = records(&std::mem::take(&mut batch));
            inputs.push(AgentEvent::Records { task, records });
            inputs.push(AgentEvent::Drained { task, time });
        }
        time += pause;
        batch.extend([[2, time, 0], [1, time, 0], [1, time, 0]]);
        time += len;
        batch.push([3, time, 0]);
    }
    let records = records(&batch);
    inputs.push(AgentEvent::Records { task, records });
    inputs.push(end(task, time));
    inputs
}

/// What the merge is to give out: the same rule, for items that are not grouped, without an index.
#[derive(Debug, Default)]
struct Model(Vec<ModelStream>);

#[derive(Debug)]
struct ModelStream {
    task: u32,
    /// No item is older.
    time: u64,
    /// The time of each item, and whether it is a segment.
    items: VecDeque<(u64, bool)>,
    ended: bool,
}

impl ModelStream {
    fn key(&self) -> (u64, u32) {
        let first = self.items.front().map_or(0, |(time, _)| *time);
        (self.time.max(first), self.task)
    }
}

impl Model {
    fn push(&mut self, input: &AgentEvent) {
        let stream = match input {
            AgentEvent::Start { task, time, .. } => {
                self.0.push(ModelStream {
                    task: *task,
                    time: *time,
                    items: VecDeque::from([(*time, false)]),
                    ended: false,
                });
                return;
            }
            AgentEvent::Records { task, .. }
            | AgentEvent::Drained { task, .. }
            | AgentEvent::Event { task, .. } => {
                self.0.iter_mut().find(|stream| stream.task == *task)
            }
            _ => None,
        };
        let Some(stream) = stream else { return };
        match input {
            AgentEvent::Records { records, .. } => {
                for event in contents(records).into_iter().filter_map(Result::err) {
                    match event {
                        Event::Arrive { time } => stream.items.push_back((time, true)),
                        Event::Depart { time } => stream.items.push_back((time, false)),
                        _ => {}
                    }
                }
            }
            AgentEvent::Drained { time, .. } => stream.items.push_back((*time, false)),
            AgentEvent::Event {
                event: Event::End { time, .. },
                ..
            } => {
                stream.items.push_back((*time, false));
                stream.ended = true;
            }
            _ => {}
        }
    }

    /// Gives out segments, whose branches have their times as addresses.
    fn give(&mut self, branches: &mut Vec<(u32, u64)>) {
        let can_go_on = |stream: &&mut ModelStream| !(stream.items.is_empty() && stream.ended);
        while let Some(first) = self.0.iter_mut().filter(can_go_on).min_by_key(|s| s.key())
            && let Some((time, is_segment)) = first.items.pop_front()
        {
            first.time = first.time.max(time);
            if is_segment {
                branches.push((first.task, time));
            }
        }
    }
}

/// The messages of a task that sends a segment alone, or says how far it is complete, after each of
/// `parts`: pauses, lengths, and which of both.
fn swept_stream(task: u32, parts: &[(u64, u64, bool)]) -> Vec<AgentEvent> {
    let mut time = 10 * u64::from(task);
    let mut inputs = vec![start(task, 0, time)];
    for &(pause, len, runs) in parts {
        time += pause;
        if runs {
            inputs.push(segment(task, time, time + len));
            time += len;
        } else {
            inputs.push(AgentEvent::Drained { task, time });
        }
    }
    inputs.push(end(task, time));
    inputs
}

proptest! {
    #[test]
    fn nothing_waits_longer_than_it_must(
        tasks in prop::collection::vec(
            prop::collection::vec((0u64..20, 1u64..20, any::<bool>()), 0..12), 1..8),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
    ) {
        let (mut merge, mut given) = (Merge::new(1 << 30), Given::default());
        let (mut model, mut expected) = (Model::default(), Vec::new());
        let mut streams: Vec<_> = tasks
            .iter()
            .zip(1..)
            .map(|(parts, task)| swept_stream(task, parts).into_iter())
            .collect();
        let starts: Vec<AgentEvent> = streams.iter_mut().filter_map(Iterator::next).collect();
        let in_turn = turns.iter().filter_map(|turn| {
            let at = turn.index(streams.len());
            streams[at].next()
        });
        for input in starts.into_iter().chain(in_turn) {
            model.push(&input);
            model.give(&mut expected);
            merge.push(input, &mut given).unwrap();
            prop_assert_eq!(&given.branches, &expected);
        }
    }

    #[test]
    fn any_interleaving_gives_the_order_of_time(
        tasks in prop::collection::vec(
            prop::collection::vec((0u64..20, 1u64..20, any::<bool>()), 0..12), 1..8),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
    ) {
        let mut expected = Vec::new();
        let mut streams = Vec::new();
        for (n, parts) in tasks.iter().enumerate() {
            let task = n as u32 + 1;
            let inputs = stream(task, parts);
            for input in &inputs {
                if let AgentEvent::Records { records, .. } = input {
                    let branches = contents(records).into_iter().flatten();
                    expected.extend(branches.map(|branch| (branch.from, task)));
                }
            }
            streams.push(inputs.into_iter());
        }
        expected.sort();
        let (mut merge, mut given) = (Merge::new(1 << 30), Given::default());
        // All tasks have started before the first one drains: a task is not known earlier.
        for stream in &mut streams {
            merge.push(stream.next().unwrap(), &mut given).unwrap();
        }
        for turn in turns {
            let at = turn.index(streams.len());
            if let Some(input) = streams[at].next() {
                merge.push(input, &mut given).unwrap();
            }
        }
        for input in streams.into_iter().flatten() {
            merge.push(input, &mut given).unwrap();
        }
        prop_assert!(!merge.is_unordered());
        prop_assert_eq!(merge.bytes, 0);
        let branches: Vec<(u64, u32)> = given.branches.iter().map(|(task, n)| (*n, *task)).collect();
        prop_assert_eq!(branches, expected);
    }

    #[test]
    fn a_hostile_agent_neither_panics_nor_fills_memory(
        messages in prop::collection::vec(
            (0u8..10, 0u32..5, 0u32..5, any::<u64>(), prop::collection::vec((0u64..5, 0u64..40), 0..8)),
            0..200),
    ) {
        const LIMIT: usize = 2000;
        let (mut merge, mut given) = (Merge::new(LIMIT), Given::default());
        for (kind, task, other, time, content) in messages {
            let content: Vec<[u64; 3]> = content.iter().map(|(kind, n)| [*kind, *n, 0]).collect();
            let records = records(&content);
            let bytes = vec![0; 24 * content.len()];
            let input = match kind {
                0 | 1 => start(task, other, time % 40),
                2 => {
                    let (time, name) = (time % 40, bytes);
                    let event = Event::Exec { id: task, former: other, time, name };
                    AgentEvent::Event { task: other, event }
                }
                3 => end(task, time % 40),
                4 => AgentEvent::Maps { process: task, text: bytes },
                5 => AgentEvent::Drained { task, time },
                6 => AgentEvent::Event { task, event: Event::Lost(time) },
                7 => {
                    let event = Event::Untraced {
                        id: task,
                        parent: other,
                        time,
                        name: bytes,
                        reason: Vec::new(),
                    };
                    AgentEvent::Untraced { task, event }
                }
                _ => AgentEvent::Records { task, records },
            };
            let _ = merge.push(input, &mut given);
            prop_assert!(merge.bytes <= LIMIT, "{}", merge.bytes);
        }
        merge.finish(&mut given).unwrap();
        let pending = merge.processes.values().filter_map(|process| process.pending.as_ref());
        prop_assert_eq!(merge.bytes, pending.map(Vec::len).sum::<usize>());
        prop_assert_eq!(merge.ready.len(), 0);
        prop_assert_eq!(merge.waiting.len(), merge.live.len());
    }
}

#[test]
fn tasks_that_are_not_traced_wait_within_the_limit() {
    const LIMIT: usize = 1 << 20;
    let (mut merge, mut given) = (Merge::new(LIMIT), Given::default());
    // Records of this one may be older than everything that follows.
    merge.push(start(1, 0, 0), &mut given).unwrap();
    let mut waiting = 0;
    while given.events.len() == 1 {
        waiting += 1;
        let task = waiting + 1;
        let event = Event::Untraced {
            id: task,
            parent: 1,
            time: u64::MAX,
            name: Vec::new(),
            reason: Vec::new(),
        };
        let untraced = AgentEvent::Untraced { task, event };
        merge.push(untraced, &mut given).unwrap();
    }
    assert!(waiting as usize * size_of::<Stream>() <= LIMIT, "{waiting}");
}
