//! Edits of a file with snapshots of a replay, which goes to each of them and runs on.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::edit::edit;
use vbts_fuzz::input::Input;
use vbts_fuzz::machine::{Quiet, machine};
use vbts_vmm::machine::{History, SnapshotKey};

const KEY: SnapshotKey = [7; 32];
/// Limit in bytes of a file, and of a history.
const LIMIT: usize = 16 << 20;
/// Size in bytes of the magic, the format and the key, which precede the stream.
const HEADER: usize = 8 + 4 + KEY.len();
/// Size in bytes of the checksum at the end.
const CHECKSUM: usize = 4;
/// Virtual times in ns, so far apart that a history takes a snapshot on the way to each.
const TIMES: [u64; 3] = [1_200_000, 2_400_000, 3_600_000];
/// Virtual time that a machine runs from a snapshot on, in ns.
const RUN: u64 = 5_000;
/// Limit in the time of the host for a guest that does not reach the pause before.
const TIME_LIMIT: Duration = Duration::from_millis(50);

/// A file without its stream's compression, and the number of bytes before the contents of pages.
struct Good {
    header: Vec<u8>,
    stream: Vec<u8>,
    metadata: usize,
}

static GOOD: LazyLock<Good> = LazyLock::new(|| {
    let (mut machine, mut history) = (machine(None), History::new(LIMIT));
    for time in TIMES {
        let outcome = history.seek(&mut machine, time, &mut Quiet);
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    assert_eq!(history.times().len(), 1 + TIMES.len());
    let mut file = Vec::new();
    let written = history.write(&mut file, &KEY, Vec::new(), &TIMES, LIMIT);
    assert!(written.is_ok(), "{written:?}");
    let stream = &file[HEADER..file.len() - CHECKSUM];
    let stream = zstd::stream::decode_all(stream).expect("the stream that was written");
    let len = stream.first_chunk().expect("the size of the metadata");
    let metadata = size_of::<u64>() + u64::from_le_bytes(*len) as usize;
    let header = file[..HEADER].to_vec();
    Good {
        header,
        stream,
        metadata,
    }
});

/// A file with this stream.
fn file(stream: &[u8]) -> Vec<u8> {
    let stream = zstd::stream::encode_all(stream, 1).expect("memory for the stream");
    let mut file = [&GOOD.header, &stream[..]].concat();
    let checksum = crc32fast::hash(&file);
    file.extend_from_slice(&checksum.to_le_bytes());
    file
}

fuzz_target!(|data: &[u8]| {
    let good = &*GOOD;
    // The size of the metadata follows the edits, except those of its own bytes.
    let mut metadata = good.stream[size_of::<u64>()..good.metadata].to_vec();
    let mut input = Input::new(data);
    let claimed = input.u8();
    let limit = metadata.len();
    edit(&mut metadata, limit, &mut input);
    let len = metadata.len() as u64 ^ u64::from(claimed).saturating_sub(0xF0) << 20;
    let stream = [
        &len.to_le_bytes(),
        &metadata[..],
        &good.stream[good.metadata..],
    ]
    .concat();
    let file = file(&stream);

    let (mut machine, mut history) = (machine(Some(TIME_LIMIT)), History::new(LIMIT));
    let read = history.read(&mut machine, &mut Quiet, &mut &*file, &KEY, LIMIT);
    if let Err(error) = read {
        assert!(!error.to_string().is_empty());
        assert!(history.times().len() <= 1);
        return;
    }
    let times: Vec<u64> = history.times().collect();
    for time in times {
        let there = history.seek(&mut machine, time, &mut Quiet);
        let ran = there.and_then(|()| {
            let until = machine.now().saturating_add(RUN);
            history.run_until(&mut machine, until, &mut Quiet).map(drop)
        });
        if let Err(error) = ran {
            assert!(!error.to_string().is_empty());
        }
    }
    // The first snapshot is the machine's own.
    let forgotten = history.forget(&mut machine, &mut Quiet);
    assert!(forgotten.is_ok() && machine.now() == 0, "{forgotten:?}");
});
