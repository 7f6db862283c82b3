//! Tests of the receiving half of the connection.

use super::*;
use crate::format::Json;
use crate::format::tests::symbols;
use crate::output::{Destination, StdoutUse, TraceTo};
use vbts_devices::ByteSink as _;
use vbts_protocol::{ErrorKind, Extent, Extents, RECORD_SIZE, Scope, ToHost, VERSION};
use vm_memory::{Bytes, GuestAddress};

fn memory() -> GuestRam {
    GuestRam::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
}

fn session(memory: GuestRam, file: &std::path::Path) -> Session {
    let alarm = Arc::new(Alarm::new(Default::default(), None).unwrap());
    let options = Options {
        filters: crate::Filters::default(),
        scope: Scope::User,
        is_32_bit: false,
        reports: true,
        format: Box::new(Json::new(vbts_vmm::accel::Accel::Soft, false)),
        symbols: symbols(),
        destination: Destination::new(&TraceTo::File(file.into()), StdoutUse::Program).unwrap(),
        merge_limit: 1 << 20,
    };
    Session::start(memory, options, Positions::default(), &alarm).unwrap()
}

const START: ToHost<'_> = ToHost::TaskStart {
    task: 5,
    parent: 0,
    process: 5,
    records: 100,
    time: 1,
};

fn want(fd: u32, bytes: u32) -> ToHost<'static> {
    let canonical = true;
    ToHost::InputWant {
        fd,
        bytes,
        canonical,
    }
}

fn lines(file: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(String::from).collect()
}

/// Stores records in two extents; the second one is at the end of the memory.
fn stored(memory: &GuestRam, records: &[u8]) -> Vec<u8> {
    let (first, second) = records.split_at(20);
    let mut extents = Vec::new();
    for (bytes, address) in [(first, 0x1000), (second, (1 << 20) - second.len() as u64)] {
        memory.write_slice(bytes, GuestAddress(address)).unwrap();
        let len = bytes.len() as u64;
        Extents::push(&mut extents, Extent { address, len });
    }
    extents
}

fn frames(messages: &[ToHost<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|m| m.encode(&mut bytes).unwrap());
    bytes
}

/// The summary of a session without errors.
fn finished(session: &mut Session, end: RunEnd) -> Summary {
    let (summary, error) = session.finish(end, false);
    assert!(error.is_none(), "{error:?}");
    summary.unwrap()
}

/// Records as the kernel writes them.
fn drained(words: &[[u64; 3]]) -> Vec<u8> {
    let words = words.as_flattened().iter();
    words.flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn messages_become_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let memory = memory();
    let mut session = session(memory.clone(), &file);
    let records = drained(&[[1, 0x1000, 0x2000], [0, 0, 0], [1, 0x3000, 0x4000]]);
    let extents = stored(&memory, &records);
    let bytes = frames(&[
        ToHost::Ready(VERSION),
        START,
        ToHost::Maps {
            process: 5,
            text: b"",
        },
        ToHost::TaskUntraced {
            task: 6,
            parent: 5,
            time: 2,
            name: b"",
            reason: "",
        },
        want(0, 10),
        want(0, 20),
        want(5, 1),
        // A page was moved meanwhile, so the agent repeats the message.
        ToHost::Records {
            task: 5,
            extents: Extents::new(&extents[..0]).unwrap(),
        },
        ToHost::Records {
            task: 5,
            extents: Extents::new(&extents).unwrap(),
        },
        ToHost::RecordsValid,
        ToHost::RecordsValid,
        ToHost::Lost {
            task: 5,
            records: 2,
        },
        ToHost::Exit(ExitStatus::Signal(11)),
    ]);
    for piece in bytes.chunks(7) {
        assert_eq!(session.put(piece), piece.len());
    }
    assert!(session.error.is_none() && session.ready && session.started);
    let wanted = [(0, 20), (5, 1)].map(|(fd, bytes)| {
        let canonical = true;
        (fd, InputWanted { bytes, canonical })
    });
    assert_eq!(session.take_wanted_input(), wanted.into());
    let killed = ExitStatus::Signal(11);
    assert_eq!(session.ending(), Some(killed));
    let summary = finished(&mut session, RunEnd::Error);
    assert_eq!((summary.records, summary.lost, summary.untraced), (2, 3, 1));
    assert_eq!(
        (summary.end, summary.undrained),
        (RunEnd::Program(killed), 0)
    );
    let lines = lines(&file);
    assert_eq!(lines.len(), 6);
    assert_eq!(
        lines[5],
        "{\"kind\":\"summary\",\"records\":2,\"lost\":3,\"lost_at_least\":true,\
         \"untraced\":1,\"tasks\":1,\"end\":\"signal\",\"exit\":139,\"signal\":11,\
         \"accel\":\"soft\"}"
    );
}

#[test]
fn mapped_records_are_read_before_their_memory_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let memory = memory();
    let mut session = session(memory.clone(), &file);
    session.put(&frames(&[START]));
    // Few records are copied at once, many by the thread or with Reuse.
    let count = 5000;
    for (n, count) in [count, 1, count, count].into_iter().enumerate() {
        let mut records = vec![0; count * RECORD_SIZE];
        for (i, record) in records
            .as_chunks_mut::<RECORD_SIZE>()
            .0
            .iter_mut()
            .enumerate()
        {
            let (from, to) = ((n << 16 | i) as u64, 1u64);
            record[..8].copy_from_slice(&from.to_le_bytes());
            record[8..16].copy_from_slice(&to.to_le_bytes());
        }
        let (address, len) = (0x1000, records.len() as u64);
        memory.write_slice(&records, GuestAddress(address)).unwrap();
        let mut extents = Vec::new();
        Extents::push(&mut extents, Extent { address, len });
        let extents = Extents::new(&extents).unwrap();
        let messages = n as u64 + 1;
        session.put(&frames(&[
            ToHost::Mapped { task: 5, extents },
            ToHost::Reuse { messages },
        ]));
    }
    // An arrival, as the kernel stores it.
    let arrival = [7u64, 1 << 63, 1 << 63 | 2].map(u64::to_le_bytes);
    memory
        .write_slice(arrival.as_flattened(), GuestAddress(0))
        .unwrap();
    let mut extents = Vec::new();
    let (address, len) = (0, RECORD_SIZE as u64);
    Extents::push(&mut extents, Extent { address, len });
    let extents = Extents::new(&extents).unwrap();
    session.put(&frames(&[ToHost::Mapped { task: 5, extents }]));
    let summary = finished(&mut session, RunEnd::Error);
    assert_eq!(summary.records, 15_001);
    let expected: Vec<String> = [5000, 1, 5000, 5000]
        .into_iter()
        .enumerate()
        .flat_map(|(n, count)| (0..count).map(move |i| format!("\"from\":\"{:#x}\"", n << 16 | i)))
        .collect();
    let lines = lines(&file);
    let branches: Vec<&String> = (lines.iter())
        .filter(|line| line.contains("\"branch\""))
        .collect();
    assert_eq!(branches.len(), expected.len());
    for (line, from) in branches.into_iter().zip(expected) {
        assert!(line.contains(&from), "{line} has no {from}");
    }
}

#[test]
fn a_run_that_ends_early_says_whether_the_buffers_were_drained() {
    for (drained, expected) in [(true, ""), (false, ",\"undrained_at_most\":100")] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("trace");
        let mut session = session(memory(), &file);
        session.put(&frames(&[
            START,
            ToHost::Standing {
                task: 5,
                syscall: "running",
                name: b"a",
            },
        ]));
        if drained {
            session.put(&frames(&[ToHost::Ended]));
        }
        finished(&mut session, RunEnd::Timeout);
        let last = lines(&file).pop();
        assert_eq!(
            last.unwrap(),
            format!(
                "{{\"kind\":\"summary\",\"records\":0,\"lost\":0{expected},\"tasks\":1,\
                 \"end\":\"timeout\",\"accel\":\"soft\"}}"
            )
        );
    }
}

#[test]
fn a_hostile_agent_ends_the_session() {
    let mut outside = Vec::new();
    let (address, len) = ((1 << 20) - 16, 24);
    Extents::push(&mut outside, Extent { address, len });
    for (bytes, message) in [
        (
            frames(&[ToHost::Records {
                task: 1,
                extents: Extents::new(&outside).unwrap(),
            }]),
            "outside of the guest's memory",
        ),
        (
            frames(&[ToHost::Mapped {
                task: 1,
                extents: Extents::new(&outside).unwrap(),
            }]),
            "outside of the guest's memory",
        ),
        (
            frames(&[ToHost::Drained { task: 9, time: 0 }]),
            "task 9, which is not traced",
        ),
        (
            frames(&[ToHost::Ready("another 9")]),
            "build the guest again",
        ),
        (vec![0xFF; 8], "does not follow the protocol"),
        (
            frames(&[ToHost::Error {
                kind: ErrorKind::NotFound,
                errno: 2,
                text: "no such thing",
            }]),
            "no such thing",
        ),
    ] {
        let mut session = session(memory(), "/dev/null".as_ref());
        session.put(&bytes);
        if session.error.is_some() {
            session.put(&[1; 100_000]);
        }
        let error = match session.take_closed() {
            Err(error) => error,
            Ok(_) => session.finish(RunEnd::Error, false).1.unwrap(),
        };
        let error = error.to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_full_disk_ends_the_session() {
    let memory = memory();
    let mut session = session(memory.clone(), "/dev/full".as_ref());
    let extents = stored(&memory, &drained(&[[1, 2, 3]]));
    let extents = Extents::new(&extents).unwrap();
    session.put(&frames(&[
        START,
        ToHost::Records { task: 5, extents },
        ToHost::RecordsValid,
    ]));
    let failure = session
        .finish(RunEnd::Error, false)
        .1
        .unwrap()
        .into_failure();
    assert_eq!(failure.status(), 125);
    assert!(failure.to_string().contains("No space left"), "{failure}");
}
