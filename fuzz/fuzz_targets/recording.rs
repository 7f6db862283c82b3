//! Any file as a recording of a run: as it is, or blocks with the compression, the sizes and the
//! checksums that belong to them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_recording::{Contents, Header, Item, MAX_FILE, Paths, Reader, Writer};
use zstd::stream::raw::{Encoder, InBuffer, Operation as _, OutBuffer};

/// Bit of the first byte: the input has blocks.
const BLOCKS: u8 = 1;

/// Appends a block with `contents`, which claims to have `size` bytes.
fn block(encoder: &mut Encoder<'static>, contents: &[u8], size: u32, file: &mut Vec<u8>) {
    let mut stored = Vec::new();
    let mut piece = [0; 1024];
    let mut input = InBuffer::around(contents);
    loop {
        let mut output = OutBuffer::around(&mut piece[..]);
        let left = match input.pos() < contents.len() {
            true => encoder.run(&mut input, &mut output),
            false => encoder.flush(&mut output),
        };
        let left = left.expect("memory for zstd");
        stored.extend_from_slice(output.as_slice());
        if input.pos() == contents.len() && left == 0 {
            break;
        }
    }
    let sizes = [stored.len() as u32, size];
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(sizes.map(u32::to_le_bytes).as_flattened());
    checksum.update(&stored);
    file.extend_from_slice(sizes.map(u32::to_le_bytes).as_flattened());
    file.extend_from_slice(&checksum.finalize().to_le_bytes());
    file.extend_from_slice(&stored);
}

/// A recording whose items are the blocks of `input`: for each the number of its bytes, whether it
/// claims to have others, and these.
fn blocks(input: &mut Input<'_>) -> Vec<u8> {
    let start = Writer::new(Vec::new(), &Header::default(), u64::MAX).expect("memory for zstd");
    let mut file = start.into_inner();
    file.truncate(12);
    let mut encoder = Encoder::new(1).expect("memory for zstd");
    let header = format!(
        r#"{{"replay_version":{},"writer":"","command":[],"directory":"","machine":null,"guest":null}}"#,
        vbts_recording::REPLAY_VERSION
    );
    block(
        &mut encoder,
        header.as_bytes(),
        header.len() as u32,
        &mut file,
    );
    while !input.is_empty() {
        let (len, other) = (usize::from(input.u16()), input.u8());
        let contents = input.bytes(len);
        let size = match other {
            0..0xF0 => contents.len() as u32,
            _ => input.u32(),
        };
        block(&mut encoder, contents, size, &mut file);
    }
    file
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let file = match input.u8() & BLOCKS {
        0 => data.get(1..).unwrap_or_default().to_vec(),
        _ => blocks(&mut input),
    };
    let Ok((_, mut reader)) = Reader::new(file.as_slice()) else {
        return;
    };
    if let Ok(files) = reader.files(2) {
        assert!(files.iter().all(|file| file.len() <= MAX_FILE));
    }
    let (mut items, mut paths) = (0, Paths::default());
    let mut contents = Contents::default();
    while let Ok(Some(item)) = reader.next() {
        let _ = item.time();
        if let Item::Reply { request, reply, .. } = &item
            && let Some(got) = paths.follow(&request.start, reply)
        {
            assert!(got.path.is_none_or(|path| path.len() <= 4096));
        }
        if let Item::Reply { request, reply, .. } = &item {
            contents.follow(&request.start, reply);
        }
        items += 1;
        // A block of a few bytes can have millions of items.
        if items > 1 << 20 {
            break;
        }
    }
    for (path, file) in contents.files() {
        let _ = contents.resolve(path);
        let mut end = 0;
        for (at, part) in file.parts() {
            assert!(at >= end && file.at(at).is_some());
            end = at + part.len() as u64;
        }
        assert!(end <= file.size());
    }
});
