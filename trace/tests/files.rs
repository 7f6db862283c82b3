//! Whole files: round trips, positions, cuts and damage.

#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::io::Cursor;

use proptest::prelude::*;
use vbts_trace::{
    Batch, Branch, Crash, Error, Event, Item, Part, Passed, Reader, Run, Status, Summary, Writer,
};

/// One thing of a trace.
#[derive(Debug, Clone, PartialEq)]
enum Thing {
    Branch(u64, Branch),
    Event(u64, Event),
    Flush,
}

fn branch(n: u64) -> Branch {
    let from = 0x40_0000 + n * 0x123;
    let to = if n.is_multiple_of(5) { !from } else { from / 2 };
    Branch { from, to }
}

fn event() -> impl Strategy<Value = Event> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        any::<(u32, u32, u32, u64)>().prop_map(|(id, parent, process, time)| Event::Start {
            id,
            parent,
            process,
            time
        }),
        (any::<(u32, u32, u64)>(), bytes()).prop_map(|((id, former, time), name)| Event::Exec {
            id,
            former,
            time,
            name
        }),
        bytes().prop_map(Event::Name),
        bytes().prop_map(Event::ThreadName),
        any::<(u64, u8)>().prop_map(|(time, n)| Event::End {
            time,
            status: match n % 2 {
                0 => Status::Exited(n),
                _ => Status::Killed(n),
            }
        }),
        any::<u64>().prop_map(Event::Lost),
        any::<u64>().prop_map(Event::Filtered),
        any::<(u64, u32)>().prop_map(|(time, signal)| Event::Signal { time, signal }),
        Just(Event::Invalid),
        any::<u64>().prop_map(|time| Event::Arrive { time }),
        any::<u64>().prop_map(|time| Event::Depart { time }),
        (
            any::<(u32, i32, u64)>(),
            prop::collection::vec(any::<u64>(), 0..30),
            bytes()
        )
            .prop_map(|((signal, code, address), registers, instruction)| {
                Event::Crash(Box::new(Crash {
                    signal,
                    code,
                    address,
                    registers,
                    instruction,
                }))
            }),
        (bytes(), bytes()).prop_map(|(syscall, name)| Event::Standing { syscall, name }),
        (any::<(u32, u32, u64)>(), bytes(), bytes()).prop_map(
            |((id, parent, time), name, reason)| Event::Untraced {
                id,
                parent,
                time,
                name,
                reason
            }
        ),
        (any::<u32>(), bytes()).prop_map(|(process, text)| Event::Maps { process, text }),
        any::<u32>().prop_map(|process| Event::ProcessEnd { process }),
        (any::<u64>(), bytes()).prop_map(|(address, bytes)| Event::KernelCode { address, bytes }),
        (any::<u64>(), bytes()).prop_map(|(at, bytes)| Event::KernelFile { at, bytes }),
        (any::<(u32, u64)>(), 0..4_usize, bytes()).prop_map(|((process, at), source, bytes)| {
            use vbts_trace::CodeSource::{JitDump, Memory, PerfMap, Vdso};
            let source = [Memory, Vdso, PerfMap, JitDump][source];
            Event::Code {
                process,
                source,
                at,
                bytes,
            }
        }),
        (bytes(), bytes()).prop_map(|(id, name)| Event::BuildId { id, name }),
        any::<(u64, u64)>().prop_map(|(cr3, time)| Event::AddressSpace { cr3, time }),
        (any::<(u32, u32, u64)>(), bytes()).prop_map(|((id, process, time), name)| {
            Event::Switch {
                id,
                process,
                time,
                name,
            }
        }),
        any::<(u64, u64)>().prop_map(|(duration, time)| Event::Gap { duration, time }),
    ]
}

fn things() -> impl Strategy<Value = Vec<Thing>> {
    let thing = prop_oneof![
        20 => (0..3_u64, 0..30_u64).prop_map(|(task, n)| Thing::Branch(task, branch(n))),
        3 => (0..3_u64, event()).prop_map(|(task, event)| Thing::Event(task, event)),
        1 => Just(Thing::Flush),
    ];
    prop::collection::vec(thing, 0..300)
}

fn run() -> Run {
    Run {
        writer: "test".into(),
        command: vec!["a".into(), "b c".into()],
        ..Run::default()
    }
}

fn summary(records: u64) -> Summary {
    Summary {
        records,
        end: "exited".into(),
        exit: Some(3),
        ..Summary::default()
    }
}

fn write(things: &[Thing], finish: bool) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &run()).unwrap();
    for thing in things {
        match thing {
            Thing::Branch(task, branch) => writer.branches(*task, &[*branch]).unwrap(),
            Thing::Event(task, event) => writer.event(*task, event).unwrap(),
            Thing::Flush => writer.flush().unwrap(),
        }
    }
    if finish {
        let records = writer.records();
        writer.finish(&summary(records)).unwrap();
    }
    std::mem::take(writer.output())
}

fn reader(file: &[u8]) -> Reader<Cursor<&[u8]>> {
    Reader::new(Cursor::new(file)).unwrap()
}

/// What is left.
fn rest(reader: &mut Reader<Cursor<&[u8]>>) -> Result<Vec<Thing>, Error> {
    let mut things = Vec::new();
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Branches { task, branches } => {
                things.extend(branches.iter().map(|branch| Thing::Branch(task, *branch)));
            }
            Item::Event { task, event } => things.push(Thing::Event(task, event)),
        }
    }
    Ok(things)
}

/// What a block has, by its batches.
fn block(reader: &mut Reader<Cursor<&[u8]>>) -> Result<Vec<Thing>, Error> {
    let (mut things, mut list, mut batch) = (Vec::new(), Vec::new(), Batch::default());
    let mut goes_on = true;
    while goes_on {
        goes_on = reader.next_batch(&mut batch, list.len(), |_| true)?;
        list.append(&mut batch.new);
        let mut numbers = batch.numbers.iter();
        for part in batch.parts.drain(..) {
            match part {
                Part::Branches(task, count) => {
                    let these = numbers.by_ref().take(count);
                    things.extend(these.map(|n| Thing::Branch(task, list[*n as usize])));
                }
                Part::Event(task, event) => things.push(Thing::Event(task, event)),
            }
        }
        assert_eq!(numbers.next(), None);
    }
    Ok(things)
}

fn without_flushes(things: &[Thing]) -> Vec<Thing> {
    let kept = things.iter().filter(|thing| **thing != Thing::Flush);
    kept.cloned().collect()
}

fn branches_of(things: &[Thing]) -> u64 {
    let branches = things
        .iter()
        .filter(|thing| matches!(thing, Thing::Branch(..)));
    branches.count() as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_file_gives_back_what_was_written(things in things()) {
        let file = write(&things, true);
        let things = without_flushes(&things);
        let mut reader = reader(&file);
        prop_assert_eq!(reader.run(), &run());
        prop_assert_eq!(reader.records(), branches_of(&things));
        prop_assert_eq!(reader.summary(), Some(&summary(reader.records())));
        prop_assert_eq!(rest(&mut reader).unwrap(), things);
    }

    #[test]
    fn reading_begins_at_any_branch(things in things(), at in 0..300_u64) {
        let file = write(&things, true);
        let things = without_flushes(&things);
        let mut reader = reader(&file);
        let mut before = Vec::new();
        reader.events_before(at, |task, event| before.push(Thing::Event(task, event))).unwrap();
        let mut passed = [0; 3];
        reader.pass(at, |task, it| {
            if let Passed::Branches(count) = it {
                passed[task as usize] += count;
            }
        }).unwrap();
        reader.seek(at).unwrap();
        let rest = rest(&mut reader).unwrap();
        let branches = branches_of(&things);
        for (task, count) in (0..).zip(passed) {
            let of_task = |thing: &&Thing| matches!(thing, Thing::Branch(of, _) if *of == task);
            let all = things.iter().filter(of_task).count();
            let left = rest.iter().filter(of_task).count();
            prop_assert_eq!(all - left, count as usize);
        }
        prop_assert_eq!(branches_of(&rest), branches - at.min(branches));
        // The end of what there is.
        prop_assert_eq!(&rest[..], &things[things.len() - rest.len()..]);
        let skipped = things[..things.len() - rest.len()].iter();
        let events = skipped.filter(|thing| matches!(thing, Thing::Event(..)));
        prop_assert_eq!(before, events.cloned().collect::<Vec<_>>());
    }

    #[test]
    fn blocks_are_read_in_any_order(things in things()) {
        let file = write(&things, true);
        let first = reader(&file);
        let mut blocks: Vec<Vec<Thing>> = Vec::new();
        let mut other = first.with_input(Cursor::new(&file[..]));
        for number in (0..first.blocks()).rev() {
            other.seek_block(number).unwrap();
            let block = block(&mut other).unwrap();
            let count = first.first_of_block(number + 1) - first.first_of_block(number);
            prop_assert_eq!(branches_of(&block), count);
            blocks.push(block);
        }
        blocks.reverse();
        prop_assert_eq!(blocks.concat(), without_flushes(&things));
    }

    #[test]
    fn a_cut_file_has_its_complete_blocks(things in things(), cut in 0.0..1.0_f64) {
        let whole = write(&things, true);
        let file = &whole[..(whole.len() as f64 * cut) as usize];
        match Reader::new(Cursor::new(file)) {
            Ok(mut reader) => {
                prop_assert!(reader.summary().is_none());
                let things = without_flushes(&things);
                let rest = rest(&mut reader).unwrap();
                prop_assert_eq!(branches_of(&rest), reader.records());
                prop_assert_eq!(&rest[..], &things[..rest.len()]);
            }
            Err(error) => prop_assert!(matches!(error, Error::NotATrace | Error::Io(_) | Error::Damaged)),
        }
    }

    #[test]
    fn damage_is_found(
        things in things(),
        changes in prop::collection::vec((0.0..1.0_f64, 1..=255_u8), 1..4),
    ) {
        let whole = write(&things, true);
        let mut file = whole.clone();
        for (at, change) in changes {
            let at = (file.len() as f64 * at) as usize;
            file[at] ^= change;
        }
        prop_assume!(file != whole);
        let things = without_flushes(&things);
        if let Ok(mut reader) = Reader::new(Cursor::new(&file[..])) {
            let mut got = Vec::new();
            while let Ok(Some(item)) = reader.next_item() {
                match item {
                    Item::Branches { task, branches } => {
                        got.extend(branches.iter().map(|branch| Thing::Branch(task, *branch)));
                    }
                    Item::Event { task, event } => got.push(Thing::Event(task, event)),
                }
            }
            // What is given out is right.
            prop_assert_eq!(&got[..], &things[..got.len()]);
        }
    }

    #[test]
    fn other_files_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Reader::new(Cursor::new(&bytes[..])).is_err());
        let head = &write(&[], true)[..12];
        bytes.splice(..0, head.iter().copied());
        prop_assert!(Reader::new(Cursor::new(&bytes[..])).is_err());
    }
}

#[test]
fn a_file_that_is_still_written_has_what_was_flushed() {
    let things: Vec<Thing> = (0..100)
        .flat_map(|n| [Thing::Branch(0, branch(n)), Thing::Flush])
        .collect();
    let file = write(&things, false);
    let mut reader = reader(&file);
    assert_eq!((reader.records(), reader.summary()), (100, None));
    assert_eq!(rest(&mut reader).unwrap(), without_flushes(&things));
}

#[test]
fn a_position_is_found_by_time() {
    let things: Vec<Thing> = (0..100)
        .flat_map(|n| {
            [
                Thing::Event(n % 3, Event::Arrive { time: n * 10 }),
                Thing::Branch(n % 3, branch(n)),
                Thing::Flush,
            ]
        })
        .collect();
    let file = write(&things, true);
    let mut reader = reader(&file);
    for (time, record) in [
        (0, 0),
        (1, 1),
        (10, 1),
        (500, 50),
        (991, 100),
        (u64::MAX, 100),
    ] {
        assert_eq!(reader.record_at(time).unwrap(), record, "{time}");
    }
}

#[test]
fn long_traces_have_blocks_and_little_memory() {
    let mut writer = Writer::new(Vec::new(), &run()).unwrap();
    let piece: Vec<Branch> = (0..100_000).map(|n| branch(n * n % 1000)).collect();
    for _ in 0..100 {
        writer.branches(0, &piece).unwrap();
    }
    writer.finish(&summary(10_000_000)).unwrap();
    let file = std::mem::take(writer.output());
    let mut reader = reader(&file);
    assert_eq!(reader.records(), 10_000_000);
    reader.seek(9_999_990).unwrap();
    let expected: Vec<Thing> = piece[99_990..]
        .iter()
        .map(|branch| Thing::Branch(0, *branch))
        .collect();
    assert_eq!(rest(&mut reader).unwrap(), expected);
}

#[test]
fn another_version_is_named() {
    let mut file = write(&[], true);
    file[8] = 9;
    let error = Reader::new(Cursor::new(&file[..])).unwrap_err();
    assert!(matches!(error, Error::Version(9, 4)), "{error}");
}

#[test]
fn an_event_that_is_too_large_is_refused() {
    let mut writer = Writer::new(Vec::new(), &run()).unwrap();
    let text = vec![0; 33 << 20];
    let error = writer
        .event(0, &Event::Maps { process: 1, text })
        .unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)), "{error}");
}

/// An index whose first block does not begin with branch 0 is not believed: the blocks are.
#[test]
fn an_index_that_contradicts_itself_is_not_used() {
    let things: Vec<Thing> = (0..100).map(|n| Thing::Branch(0, branch(n))).collect();
    let mut file = write(&things, true);
    let trailer = file.split_off(file.len() - 16);
    let index = u64::from_le_bytes(trailer[..8].try_into().unwrap()) as usize;
    let old = file.split_off(index);
    assert_eq!(old[1], 0, "not compressed");
    // The position of the summary is as before. Then come 100 branches, and a block at 12 after 5
    // branches.
    let position = old[16..].iter().position(|byte| byte & 0x80 == 0).unwrap();
    let contents = [&old[16..=16 + position], &[100, 24, 10, 0]].concat();
    let mut header = vec![5, 0, 0, 0];
    for size in [contents.len(); 2] {
        header.extend_from_slice(&(size as u32).to_le_bytes());
    }
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&header);
    checksum.update(&contents);
    header.extend_from_slice(&checksum.finalize().to_le_bytes());
    file.extend([&header[..], &contents, &trailer].concat());

    let mut reader = reader(&file);
    assert_eq!((reader.records(), reader.summary()), (100, None));
    reader.seek(3).unwrap();
    assert_eq!(rest(&mut reader).unwrap(), things[3..]);
}

/// The longest run of right predictions ends in the block in which it began.
#[test]
fn a_run_is_not_longer_than_a_symbol_can_say() {
    let mut branches = vec![branch(1); 4_198_000];
    branches.push(branch(2));
    let mut writer = Writer::new(Vec::new(), &run()).unwrap();
    let (first, rest) = branches.split_at(4095);
    writer.branches(0, first).unwrap();
    writer.branches(0, rest).unwrap();
    writer.finish(&Summary::default()).unwrap();
    let file = std::mem::take(writer.output());
    let mut reader = reader(&file);
    let mut left = &branches[..];
    while let Some(item) = reader.next_item().unwrap() {
        if let Item::Branches { branches, .. } = item {
            left = left.strip_prefix(branches).unwrap();
        }
    }
    assert_eq!(left, []);
}
