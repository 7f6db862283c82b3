use super::super::tests::{Counter, busy, picture};
use super::*;
use crate::machine::tests::{assembled, machine};

const KEY: SnapshotKey = [7; 32];
const LIMIT: usize = 64 << 20;
const FACTS: &[u8] = b"facts";

/// A machine that has run `busy` with some snapshots, and its history.
fn run(code: &[u8]) -> (Machine, Counter, History) {
    let (mut machine, mut observer) = (machine(code, None), Counter::default());
    let mut history = History::new(1 << 30);
    for time in [0, 3000, 9000, 12000, u64::MAX] {
        history
            .run_until(&mut machine, time, &mut observer)
            .unwrap();
        history.take(&mut machine, &mut observer).unwrap();
    }
    (machine, observer, history)
}

fn write(history: &History, needed: &[u64], limit: usize) -> Result<Vec<u8>, SnapshotFileError> {
    let mut file = Vec::new();
    history.write(&mut file, &KEY, FACTS.to_vec(), needed, limit)?;
    Ok(file)
}

fn read(code: &[u8], mut file: &[u8], key: &SnapshotKey) -> Result<History, SnapshotFileError> {
    let (mut machine, mut observer) = (machine(code, None), Counter::default());
    let mut history = History::new(1 << 30);
    let facts = history.read(&mut machine, &mut observer, &mut file, key, LIMIT);
    let read = facts.map(|facts| assert_eq!(facts, FACTS));
    if read.is_err() {
        assert!(history.times().len() <= 1 && history.end().is_none());
    }
    read.map(|()| history)
}

#[test]
fn another_machine_continues_from_a_file() {
    let code = assembled(busy);
    let (mut first, mut first_observer, mut history) = run(&code);
    let end = history.end().unwrap();
    let file = write(&history, &[9500], LIMIT).unwrap();
    let times: Vec<u64> = history.times().collect();

    let (mut second, mut observer) = (machine(&code, None), Counter::default());
    let mut read = History::new(1 << 30);
    let facts = read
        .read(&mut second, &mut observer, &mut &*file, &KEY, LIMIT)
        .unwrap();
    assert_eq!((facts, read.end()), (FACTS.to_vec(), Some(end)));
    assert_eq!(read.times().collect::<Vec<_>>(), times);
    assert_eq!(read.size() > 0, history.size() > 0);
    // In any order, and beside a snapshot.
    for time in [9000, end.0, 9007, 2000, 12000, 3001, end.0] {
        history.seek(&mut first, time, &mut first_observer).unwrap();
        let before = read.executed();
        read.seek(&mut second, time, &mut observer).unwrap();
        assert!(
            picture(&first, &first_observer) == picture(&second, &observer),
            "{time}"
        );
        assert!(read.executed() - before < 4000, "{time}");
    }
    // The machine runs from a snapshot to the same end.
    read.seek(&mut second, 3000, &mut observer).unwrap();
    let ended = read
        .run_until(&mut second, u64::MAX, &mut observer)
        .unwrap();
    assert_eq!((second.now(), ended), (end.0, Some(end.1)));
    assert!(picture(&first, &first_observer) == picture(&second, &observer));
    // All of it can be dropped again.
    read.forget(&mut second, &mut observer).unwrap();
    let (untouched, unused) = (machine(&code, None), Counter::default());
    assert!(picture(&second, &observer) == picture(&untouched, &unused));
    assert_eq!((read.times().len(), read.end()), (1, None));
    // What was written again is the same.
    let rewritten = write(&history, &[9500], LIMIT).unwrap();
    assert!(rewritten.len() >= file.len());
}

#[test]
fn a_small_limit_leaves_the_necessary_snapshots() {
    let code = assembled(busy);
    let (.., history) = run(&code);
    let all = history.versions_of(&[1, 2, 3, 4]).1.len() * size_of::<Page>();
    let file = write(&history, &[3000], (all - 1) * PREFERRED).unwrap();
    let read = read(&code, &file, &KEY).unwrap();
    let times: Vec<u64> = history.times().collect();
    let left: Vec<u64> = read.times().collect();
    assert!(left.len() < times.len(), "{left:?}");
    assert!(
        left.contains(&times[1]) && left.contains(&times[4]),
        "{left:?}"
    );
    // The smallest selection may have all of the limit.
    let least = history.versions_of(&[1, 4]).1.len() * size_of::<Page>();
    assert!(write(&history, &[3000], least).is_ok());
    let larger = write(&history, &[3000], least - 1);
    assert!(matches!(larger, Err(TooLarge)), "{larger:?}");
}

#[test]
fn a_damaged_file_is_refused() {
    let code = assembled(busy);
    let (.., history) = run(&code);
    let file = write(&history, &[], LIMIT).unwrap();
    assert!(matches!(read(&code, &file, &[8; 32]), Err(Foreign)));
    let step = (file.len() / 200).max(1);
    for at in (0..file.len()).step_by(step).chain(0..HEADER + 32) {
        assert!(read(&code, &file[..at], &KEY).is_err(), "cut at {at}");
        let mut changed = file.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(read(&code, &changed, &KEY).is_err(), "changed at {at}");
    }
    let longer = [&file[..], b"x"].concat();
    assert!(read(&code, &longer, &KEY).is_err());
    // A machine with less memory.
    let limited = History::new(0).read(
        &mut machine(&code, None),
        &mut Counter::default(),
        &mut &*file,
        &KEY,
        4096,
    );
    assert!(matches!(limited, Err(Damaged(_))), "{limited:?}");
}

/// A program that knows the format can write any states with the right checksum.
#[test]
fn a_hostile_file_harms_nothing() {
    let code = assembled(busy);
    let (.., history) = run(&code);
    let file = write(&history, &[], LIMIT).unwrap();
    let stream = &file[HEADER..file.len() - CHECKSUM];
    let contents = zstd::stream::decode_all(stream).unwrap();
    let forged = |contents: &[u8]| {
        let stream = zstd::stream::encode_all(contents, 1).unwrap();
        let mut file = [&file[..HEADER], &stream].concat();
        let checksum = crc32fast::hash(&file);
        file.extend_from_slice(&checksum.to_le_bytes());
        file
    };
    assert!(read(&code, &forged(&contents), &KEY).is_ok());
    let len = u64::from_le_bytes(*contents.first_chunk().unwrap()) as usize;
    let (mut refused, mut restored) = (0, 0);
    let step = (len / 500).max(1);
    for at in (0..8)
        .chain((8..len).step_by(step))
        .chain(len - 400..len + 8)
    {
        let mut changed = contents.clone();
        changed[at] ^= 0x80 >> (at % 8);
        let (mut machine, mut observer) = (machine(&code, None), Counter::default());
        let mut history = History::new(1 << 30);
        let changed = forged(&changed);
        let read = history.read(&mut machine, &mut observer, &mut &*changed, &KEY, LIMIT);
        if read.is_err() {
            refused += 1;
            continue;
        }
        // States that a device or a processor never has are refused by it.
        let last = history.times().next_back().unwrap();
        match history.seek(&mut machine, last, &mut observer) {
            Ok(()) => restored += 1,
            Err(_) => refused += 1,
        }
        history.forget(&mut machine, &mut observer).unwrap();
        assert_eq!(machine.now(), 0);
    }
    assert!(refused > 50 && restored > 50, "{refused} {restored}");
}
