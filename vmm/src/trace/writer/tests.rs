//! Tests of the thread that writes the trace.

use std::fs::File;
use std::os::fd::AsRawFd;

use vbts_protocol::{ExitStatus, Scope};

use super::*;
use crate::trace::destination::{Destination, StdoutUse, TraceTo};
use crate::trace::format::Raw;
use crate::trace::format::tests::{records, symbols};
use crate::trace::merge::Input;

fn writer(trace: &impl AsRawFd, limit: Option<Duration>) -> Writer {
    let path = format!("/proc/self/fd/{}", trace.as_raw_fd());
    let trace = TraceTo::File(path.as_ref());
    let alarm = Arc::new(Alarm::new(Arc::default(), limit).unwrap());
    alarm.start_timer().unwrap();
    let options = Options {
        filters: crate::trace::Filters::default(),
        scope: Scope::User,
        is_32_bit: false,
        reports: true,
        format: Box::new(Raw),
        symbols: symbols(),
        destination: Destination::new(trace, StdoutUse::Program).unwrap(),
        merge_limit: 1 << 20,
    };
    let writer = Writer::start(options, alarm).unwrap();
    let start = Input::Start {
        task: 1,
        parent: 0,
        process: 1,
        capacity: 0,
        time: 0,
    };
    writer.put(Work::Task(start)).unwrap();
    writer
}

const EXITED: RunEnd = RunEnd::Program(ExitStatus::Code(7));

fn branches(n: usize) -> Work {
    let records = records(&vec![[1, 2, 3]; n]);
    Work::Task(Input::Records { task: 1, records })
}

/// A pipe that is not read, and the end for reading.
fn stuck(limit: Option<Duration>) -> (std::io::PipeReader, Writer) {
    let (reader, pipe) = io::pipe().unwrap();
    (reader, writer(&pipe, limit))
}

#[test]
fn a_reader_that_does_not_read_blocks_the_guest_until_the_time_limit() {
    let (_reader, writer) = stuck(Some(Duration::from_millis(200)));
    let error = (0..)
        .find_map(|_| writer.put(branches(1 << 16)).err())
        .unwrap();
    assert!(matches!(error, WriterError::Interrupted), "{error}");
    let error = writer.finish(EXITED, true, false).unwrap_err();
    assert!(matches!(error, WriterError::Interrupted), "{error}");
}

#[test]
fn a_reader_that_does_not_read_does_not_block_an_interrupted_run() {
    let (_reader, writer) = stuck(None);
    writer.put(branches(1 << 16)).unwrap();
    let error = writer.finish(EXITED, true, true).unwrap_err();
    assert!(matches!(error, WriterError::Interrupted), "{error}");
}

#[test]
fn a_trace_that_the_time_limit_ends_has_whole_records() {
    let (reader, writer) = stuck(Some(Duration::from_millis(200)));
    let slow = slow(reader, Duration::from_millis(70));
    writer.put(branches(1 << 16)).unwrap();
    let error = writer.finish(EXITED, true, false).unwrap_err();
    let interrupted = matches!(error, WriterError::Output(OutputError::Interrupted(_)));
    assert!(interrupted, "{error}");
    let written = slow.join().unwrap();
    assert!(written > 0 && written < 24 << 16, "{written}");
    assert_eq!(written % 24, 0, "{written}");
}

#[test]
fn the_queue_is_bounded_for_work_without_data() {
    let (_reader, writer) = stuck(Some(Duration::from_millis(500)));
    writer.put(branches(1 << 16)).unwrap();
    let most = 2 * LIMIT / size_of::<Work>();
    let refused = (0..=most).find(|_| writer.put(Work::FlushLine).is_err());
    assert!(refused.is_some());
}

/// A reader that takes 64 KiB after each `delay`. Returns the number of bytes in the end.
fn slow(mut reader: std::io::PipeReader, delay: Duration) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut all, mut bytes) = (0, vec![0; 1 << 16]);
        loop {
            std::thread::sleep(delay);
            match io::Read::read(&mut reader, &mut bytes).unwrap() {
                0 => return all,
                n => all += n,
            }
        }
    })
}

#[test]
fn a_slow_reader_gets_everything() {
    // The interrupted run takes longer than a reader that does not read may delay it.
    for (interrupted, delay) in [(false, 1), (true, 16)] {
        let (reader, writer) = stuck(None);
        let slow = slow(reader, Duration::from_millis(delay));
        for _ in 0..10 {
            writer.put(branches(1 << 16)).unwrap();
        }
        let summary = writer.finish(EXITED, true, interrupted).unwrap();
        assert_eq!((summary.records, summary.end), (10 << 16, EXITED));
        drop(writer);
        assert_eq!(slow.join().unwrap(), 24 * (10 << 16));
    }
}

#[test]
fn a_full_disk_is_reported_once() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let writer = writer(&full, None);
    let error = (0..).find_map(|_| writer.put(branches(1)).err()).unwrap();
    assert!(
        matches!(error, WriterError::Output(OutputError::Write { .. })),
        "{error}"
    );
    assert!(writer.take_closed().is_ok());
    writer.put(branches(1)).unwrap();
}
