use proptest::prelude::*;

use super::*;
use crate::{Request, Writer};

fn header() -> Header {
    Header {
        writer: "vbts 0".into(),
        command: vec!["vbts".into(), "record".into()],
        ..Header::default()
    }
}

fn items() -> Vec<Item<'static>> {
    vec![
        Item::Reply {
            server: 1,
            time: 7,
            request: Request::new(b"request"),
            reply: vec![5; 300_000].into(),
        },
        Item::Wait { time: 8, until: 9 },
        Item::Input {
            time: 9,
            exit: 1,
            is_event: true,
            bytes: b"input".to_vec().into(),
        },
        Item::Random {
            wanted: 4,
            bytes: vec![1, 2, 3, 4].into(),
        },
        Item::Mark {
            time: 10,
            instructions: 11,
            registers: 12,
            output: 13,
        },
        Item::End {
            time: 14,
            instructions: 15,
            output: 16,
            status: 130,
            host: Some("interrupted".into()),
        },
    ]
}

/// A recording whose blocks have one item each.
fn recording() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header(), u64::MAX).unwrap();
    writer.file(0, &vec![1; 600_000]).unwrap();
    writer.file(1, b"agent").unwrap();
    writer.item(&Item::Boot).unwrap();
    for item in items() {
        writer.flush().unwrap();
        writer.item(&item).unwrap();
    }
    writer.flush().unwrap();
    let written = writer.written();
    let file = writer.into_inner();
    assert_eq!(written, file.len() as u64);
    file
}

/// All items after the files, and the error after them.
fn read(file: &[u8]) -> Result<(Vec<Item<'static>>, Option<Error>), Error> {
    let (_, mut reader) = Reader::new(file)?;
    reader.files(2)?;
    let mut items = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => return Ok((items, None)),
            Err(error) => return Ok((items, Some(error))),
        }
    }
}

#[test]
fn what_was_written_is_read() {
    let file = recording();
    assert!(file.len() < 10_000, "{}", file.len());
    let (header_read, mut reader) = Reader::new(file.as_slice()).unwrap();
    assert_eq!(header_read, header());
    let files = reader.files(2).unwrap();
    assert_eq!(files, [vec![1; 600_000], b"agent".to_vec()]);
    let (found, error) = read(&file).unwrap();
    assert_eq!(found, items());
    assert!(error.is_none());
}

#[test]
fn a_content_that_recurs_is_stored_once() {
    // Bytes that zstd cannot compress.
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let content: Vec<u8> = (0..500_000).map(|_| noise()).collect();
    let mut writer = Writer::new(Vec::new(), &header(), u64::MAX).unwrap();
    for time in 0..20 {
        let other: Vec<u8> = (0..100_000).map(|_| noise()).collect();
        for reply in [&content, &other] {
            let item = Item::Reply {
                server: 0,
                time,
                request: Request::new(b""),
                reply: reply.into(),
            };
            writer.item(&item).unwrap();
        }
    }
    writer.flush().unwrap();
    let size = writer.written();
    assert!(size < 500_000 + 20 * 100_000 + 100_000, "{size}");
}

#[test]
fn a_file_that_was_cut_off_has_what_came_before() {
    let file = recording();
    let mut most = 0;
    for len in 0..file.len() {
        match read(&file[..len]) {
            Ok((found, error)) => {
                assert!(error.is_none(), "{len}: {error:?}");
                assert!(items().starts_with(&found) && found.len() >= most);
                most = found.len();
            }
            Err(_) => assert_eq!(most, 0, "{len}"),
        }
    }
    assert_eq!(most, items().len() - 1, "the last block has the last item");
}

#[test]
fn a_recording_ends_at_its_maximum_size() {
    let size = recording().len() as u64;
    let mut writer = Writer::new(Vec::new(), &header(), size - 1).unwrap();
    let wait = Item::Wait { time: 0, until: 0 };
    let error = loop {
        if let Err(error) = writer.item(&wait).and_then(|()| writer.flush()) {
            break error;
        }
    };
    assert!(matches!(error, Error::Full(max) if max == size - 1));
    let file = writer.into_inner();
    assert!(file.len() as u64 <= size);
    let (_, mut reader) = Reader::new(file.as_slice()).unwrap();
    assert_eq!(reader.next().unwrap(), Some(wait));
}

#[test]
fn other_files_are_no_recordings() {
    for (file, message) in [
        (&b""[..], "no recording"),
        (b"vbts-rec", "no recording"),
        (b"vbts-bad\x01\0\0\0", "no recording"),
        (b"vbts-rec\x09\0\0\0", "version 9"),
        (b"vbts-rec\x01\0\0\0", "damaged"),
    ] {
        let error = Reader::new(file).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let other = Header {
        replay_version: REPLAY_VERSION + 1,
        ..header()
    };
    let writer = Writer::new(Vec::new(), &other, u64::MAX).unwrap();
    let error = Reader::new(writer.into_inner().as_slice()).unwrap_err();
    assert!(error.to_string().contains("install vbts 0"), "{error}");
}

proptest! {
    #[test]
    fn damage_is_found(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut file = recording();
        let at = at.index(file.len());
        file[at] ^= 1 << bit;
        // A length that is too large looks like the end of the file.
        if let Ok((found, _)) = read(&file) {
            prop_assert!(found.len() < items().len());
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut compressor = crate::block::Compressor::new().unwrap();
        let mut file = [&MAGIC[..], &FORMAT_VERSION.to_le_bytes()].concat();
        let header = serde_json::to_vec(&header()).unwrap();
        compressor.block(&header, &mut file).unwrap();
        compressor.block(&bytes, &mut file).unwrap();
        let (_, mut reader) = Reader::new(file.as_slice()).unwrap();
        while let Ok(Some(_)) = reader.next() {}
    }
}

/// Reads what is left.
fn rest(reader: &mut Reader<&[u8]>) -> Vec<Item<'static>> {
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

#[test]
fn a_reader_goes_back() {
    let file = recording();
    let whole = |len: usize| {
        let (_, mut reader) = Reader::new(&file[..len]).unwrap();
        reader.files(2).unwrap();
        reader
    };
    let mut reader = whole(file.len());
    assert!(reader.seek(Position { block: 0, at: 0 }).is_err());
    reader.keep().unwrap();
    let mut positions = vec![reader.position().unwrap()];
    while reader.next().unwrap().is_some() {
        positions.push(reader.position().unwrap());
    }
    let at = positions.iter().enumerate();
    for (n, position) in at.clone().rev().chain(at) {
        reader.seek(*position).unwrap();
        assert_eq!(reader.position().unwrap(), *position);
        assert_eq!(rest(&mut reader), items()[n..]);
    }
    // Also to what has not been read yet, and to no other place.
    let mut reader = whole(file.len());
    reader.keep().unwrap();
    reader.seek(positions[4]).unwrap();
    assert_eq!(rest(&mut reader), items()[4..]);
    let last = positions[positions.len() - 1];
    for (block, at) in [
        (last.block + 1, 0),
        (u64::MAX, 0),
        (last.block, last.at + 1),
        (0, 0),
    ] {
        assert!(reader.seek(Position { block, at }).is_err());
    }
    reader.seek(positions[2]).unwrap();
    assert_eq!(rest(&mut reader), items()[2..]);
    // The end of a file that was cut off is the same each time.
    let mut reader = whole(file.len() - 1);
    reader.keep().unwrap();
    for _ in 0..2 {
        assert_eq!(rest(&mut reader), items()[..items().len() - 1]);
        reader.seek(positions[0]).unwrap();
    }
}
