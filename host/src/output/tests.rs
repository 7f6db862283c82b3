//! Writes that fail, are cut or end early.

use super::*;
use std::io::{Read, Seek};
use std::time::Duration;
use vbts_cpu::Signals;
use vbts_testkit::files::BROKEN;

#[test]
fn a_full_or_broken_disk_is_an_error() {
    for (path, message) in BROKEN {
        let file = File::options().write(true).open(path).unwrap();
        let mut broken = Output::new(file, path);
        let error = broken.write(b"x").unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        let expected = format!("Cannot write to {path}: {message}");
        assert!(error.starts_with(&expected), "{error}");
        assert!(
            matches!(broken.write(b"x"), Err(OutputError::Closed(_))),
            "a later write fails at once"
        );
    }
}

#[test]
fn a_file_that_cannot_grow_ends_with_a_whole_line() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let line = b"a line of 20 bytes.\n";
    for (unit, earlier, expected) in [
        (Unit::Line, 0, 8180),
        (Unit::Line, 500, 8180),
        (Unit::Bytes(24), 240, 8184),
        (Unit::BYTE, 0, 8192),
    ] {
        let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        let mut file = File::from(memory);
        file.set_len(8192).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        let mut out = Output::new(file.try_clone().unwrap(), "memory");
        let lines = line.repeat(500);
        out.write_units(&lines[..earlier], unit).unwrap();
        let error = out.write_units(&lines[earlier..], unit).unwrap_err();
        assert!(matches!(error, OutputError::Write { .. }), "{error}");
        assert_eq!(file.metadata().unwrap().len(), expected);
        assert_eq!(file.stream_position().unwrap(), expected);
        // Bytes of others stay.
        file.write_all(b"x").unwrap_or_default();
        out.remove(1);
    }
    let error = Output::new(tempfile::tempfile().unwrap(), "f");
    let error = error.error(Errno::FBIG.into()).to_string();
    assert!(error.contains("file size limit"), "{error}");
}

#[test]
fn a_large_file_is_written_whole_with_and_without_the_page_cache() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let to_cache = 4 << 20;
    let spared = Output {
        to_cache,
        ..Output::create(&path).unwrap()
    };
    let whole = File::open(&path).unwrap();
    let in_memory = File::from(memory);
    let cached = Output {
        to_cache,
        ..Output::new(in_memory.try_clone().unwrap(), "memory")
    };
    for (mut out, mut file) in [(spared, whole), (cached, in_memory)] {
        let mut expected = Vec::new();
        for n in 0..=2 * to_cache / (1 << 20) {
            // The pieces differ, and their length is not a multiple of the page size.
            let piece = vec![n as u8; (1 << 20) + 24];
            out.write(&piece).unwrap();
            expected.extend_from_slice(&piece);
        }
        let mut written = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut written).unwrap();
        assert!(written == expected, "{out:?}");
    }
}

#[test]
fn a_regular_file_has_one_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    let mut first = Output::open(&path).unwrap();
    first.write(b"first").unwrap();
    let error = Output::open(&path).unwrap_err();
    assert!(matches!(error, OutputError::InUse(_)), "{error}");
    assert_eq!(error.into_failure().status(), 125);
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    drop(first);
    let again = Output::open(&path).unwrap();
    again.truncate().unwrap();
    // Others have no contents that two could mix up, or are meant for several.
    let fifo = directory.path().join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    let _reader = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fifo)
        .unwrap();
    for path in [Path::new("/dev/null"), &fifo] {
        let _first = Output::open(path).unwrap();
        Output::open(path).unwrap();
    }
}

#[test]
fn a_closed_reader_has_its_own_error() {
    let (reader, writer) = io::pipe().unwrap();
    let mut out = Output::new(File::from(OwnedFd::from(writer)), "pipe");
    drop(reader);
    assert!(matches!(out.write(b"x"), Err(OutputError::Closed(_))));
    let error = Output::create(Path::new("/nonexistent/x")).unwrap_err();
    assert!(matches!(error, OutputError::Create { .. }));
}

#[test]
fn the_time_limit_ends_a_write_to_a_reader_that_does_not_read() {
    let (_reader, writer) = io::pipe().unwrap();
    let limit = Some(Duration::from_millis(20));
    let alarm = Arc::new(Alarm::new(Arc::new(Signals::default()), limit).unwrap());
    let mut out =
        Output::new(File::from(OwnedFd::from(writer)), "pipe").interruptible(alarm.clone());
    alarm.start_timer().unwrap();
    let error = out.write(&vec![0; 1 << 20]).unwrap_err();
    assert!(matches!(error, OutputError::Interrupted(_)), "{error}");
}
