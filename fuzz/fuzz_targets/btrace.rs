//! Any file as a kept trace: as it is, or chunks with the headers and checksums that belong to
//! them. It is read from its beginning and from other branches on.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_trace::{Batch, Event, Item, Part, Reader};

/// Bits of the first byte: the input has chunks.
const CHUNKS: u8 = 1;
/// The file has an end, which names the last chunk as the index.
const HAS_END: u8 = 2;
/// Branches and events that are read at once. A file of 8 KiB can have billions of branches.
const MAX_BRANCHES: u64 = 1 << 24;
const MAX_EVENTS: u64 = 5000;
/// Batches that are read. Each has 65,536 branches at most.
const MAX_BATCHES: usize = 300;

/// A file with the chunks of `input`: for each its kind, whether it claims to be compressed, its
/// size before the compression if so, the number of its bytes, and these.
fn chunks(input: &mut Input<'_>, has_end: bool) -> Vec<u8> {
    let mut file = b"\x93BTRC\r\n\0\x03\0\0\0".to_vec();
    let mut last = file.len();
    while !input.is_empty() {
        let (kind, compression) = (input.u8(), input.u8() & 1);
        let plain = if compression == 1 { input.u32() } else { 0 };
        let len = usize::from(input.u16());
        let stored = input.bytes(len);
        let plain = if compression == 1 {
            plain
        } else {
            stored.len() as u32
        };
        let mut header = vec![kind, compression, 0, 0];
        header.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        header.extend_from_slice(&plain.to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header);
        checksum.update(stored);
        header.extend_from_slice(&checksum.finalize().to_le_bytes());
        last = file.len();
        file.extend_from_slice(&header);
        file.extend_from_slice(stored);
    }
    if has_end {
        file.extend_from_slice(&(last as u64).to_le_bytes());
        file.extend_from_slice(b"BTRCend\n");
    }
    file
}

/// Reads on. Returns the number of branches.
fn read(reader: &mut Reader<Cursor<&[u8]>>) -> u64 {
    let (mut count, mut events) = (0, 0);
    while count < MAX_BRANCHES && events < MAX_EVENTS {
        match reader.next_item() {
            Ok(Some(Item::Branches { branches, .. })) => {
                assert!(!branches.is_empty());
                count += branches.len() as u64;
            }
            Ok(Some(Item::Event { .. })) => events += 1,
            Ok(None) | Err(_) => break,
        }
    }
    count
}

/// Reads the blocks by themselves. A batch has as many branches as its parts say, and each is in
/// the list of its block.
fn read_blocks(reader: &mut Reader<Cursor<&[u8]>>) {
    let (mut batch, mut left) = (Batch::default(), MAX_BATCHES);
    for number in 0..reader.blocks() {
        let mut listed = 0;
        let mut goes_on = reader.seek_block(number).is_ok();
        while goes_on && left > 0 {
            left -= 1;
            // If the input is damaged, the batch has what is before.
            goes_on = reader
                .next_batch(&mut batch, listed, |_| true)
                .unwrap_or(false);
            listed += batch.new.len();
            let counts = batch.parts.iter().map(|part| match part {
                Part::Branches(_, count) => *count,
                Part::Event(..) => 0,
            });
            assert_eq!(counts.sum::<usize>(), batch.numbers.len());
            assert!(batch.numbers.iter().all(|n| (*n as usize) < listed));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let (record, time) = (input.u64(), input.u64());
    let built;
    let file = if flags & CHUNKS == 0 {
        input.rest()
    } else {
        built = chunks(&mut input, flags & HAS_END != 0);
        &built
    };
    let Ok(mut reader) = Reader::new(Cursor::new(file)) else {
        return;
    };
    // The index is believed until a block contradicts it.
    let is_sure = reader.summary().is_none();
    let count = read(&mut reader);
    assert!(!is_sure || count <= reader.records());
    read_blocks(&mut reader);
    for at in [record, record % 64, reader.records(), reader.records() / 2] {
        // To get to a branch, those before it in its block are decoded.
        if at <= MAX_BRANCHES && reader.seek(at).is_ok() {
            read(&mut reader);
        }
        let mut events = 0;
        let _ = reader.events_before(at, |_, event: Event| {
            events += event.time().is_some() as u32
        });
        let _ = reader.record_at(time);
    }
});
