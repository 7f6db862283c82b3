//! Tests of the thread that writes the trace.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use vbts_protocol::{ExitStatus, Scope};
use vbts_trace::{Branch, Event};

use super::*;
use crate::format::Btrace;
use crate::format::tests::symbols;
use crate::format::{Format, Raw};
use crate::output::{Destination, StdoutUse, TraceTo};
use crate::records::tests::records;
use vbts_host::Unit;
use vbts_symbols::Symbolizer;
use vbts_testkit::files::BROKEN;

fn writer(trace: &impl AsRawFd, limit: Option<Duration>) -> Writer {
    writer_of(Box::new(Raw), trace, limit)
}

fn writer_of(format: Box<dyn Format>, trace: &impl AsRawFd, limit: Option<Duration>) -> Writer {
    let path = format!("/proc/self/fd/{}", trace.as_raw_fd());
    let trace = TraceTo::File(path.into());
    let alarm = Arc::new(Alarm::new(Arc::default(), limit).unwrap());
    alarm.start_timer().unwrap();
    let options = Options {
        filters: crate::Filters::default(),
        scope: Scope::User,
        is_32_bit: false,
        reports: true,
        format,
        symbols: symbols(),
        destination: Destination::new(&trace, StdoutUse::Program).unwrap(),
        merge_limit: 1 << 20,
    };
    let writer = Writer::start(options, alarm).unwrap();
    let start = AgentEvent::Start {
        task: 1,
        parent: 0,
        process: 1,
        capacity: 0,
        time: 0,
    };
    writer.put(Work::Agent(start)).unwrap();
    writer
}

const EXITED: RunEnd = RunEnd::Program(ExitStatus::Code(7));

fn branches(n: usize) -> Work {
    let records = records(&vec![[1, 2, 3]; n]);
    Work::Agent(AgentEvent::Records { task: 1, records })
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
    let error = writer.finish(EXITED, true, false).1.unwrap();
    assert!(matches!(error, WriterError::Interrupted), "{error}");
}

#[test]
fn a_reader_that_does_not_read_does_not_block_an_interrupted_run() {
    let (_reader, writer) = stuck(None);
    writer.put(branches(1 << 16)).unwrap();
    let error = writer.finish(EXITED, true, true).1.unwrap();
    assert!(matches!(error, WriterError::Interrupted), "{error}");
}

#[test]
fn a_trace_that_the_time_limit_ends_has_whole_records() {
    let (reader, writer) = stuck(Some(Duration::from_millis(200)));
    let slow = slow(reader, Duration::from_millis(70));
    writer.put(branches(1 << 16)).unwrap();
    let error = writer.finish(EXITED, true, false).1.unwrap();
    let interrupted = matches!(error, WriterError::Output(OutputError::Interrupted(_)));
    assert!(interrupted, "{error}");
    let written = writer.written();
    drop(writer);
    let read = slow.join().unwrap();
    assert!(read > 0 && read < 24 << 16, "{read}");
    assert_eq!(read % 24, 0, "{read}");
    assert_eq!(written.bytes, read as u64);
    let most = written.bytes / 24;
    assert!(
        written.records <= most && written.records + 4096 > most,
        "{written}"
    );
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
        let (summary, error) = writer.finish(EXITED, true, interrupted);
        assert!(error.is_none(), "{error:?}");
        let summary = summary.unwrap();
        assert_eq!((summary.records, summary.end), (10 << 16, EXITED));
        drop(writer);
        assert_eq!(slow.join().unwrap(), 24 * (10 << 16));
    }
}

/// Formats in the btrace format, and calls a function at each event.
struct Slow(Btrace, Box<dyn FnMut() + Send>);

impl Format for Slow {
    fn unit(&self) -> Unit {
        self.0.unit()
    }

    fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize {
        self.0.branches(task, branches, symbols, out)
    }

    fn event(&mut self, task: &Task, event: &Event, out: &mut Vec<u8>) {
        self.1();
        self.0.event(task, event, out);
    }

    fn kept(&self) -> u64 {
        self.0.kept()
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        self.0.flush(out);
    }

    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>) {
        self.0.summary(summary, out);
    }
}

fn btrace(at_event: impl FnMut() + Send + 'static) -> Box<dyn Format> {
    let btrace = Btrace::new(&vbts_trace::Run::default()).unwrap();
    Box::new(Slow(btrace, Box::new(at_event)))
}

fn event() -> Work {
    let event = Event::Lost(1);
    Work::Agent(AgentEvent::Event { task: 1, event })
}

/// The branches that a reader finds in the first `bytes` of a btrace file, and how it ends.
fn read_back(file: &File, bytes: u64) -> (u64, Option<String>) {
    let mut all = vec![0; usize::try_from(bytes).unwrap()];
    file.read_exact_at(&mut all, 0).unwrap();
    let mut reader = vbts_trace::Reader::new(io::Cursor::new(all)).unwrap();
    let mut count = 0;
    while let Some(item) = reader.next_item().unwrap() {
        if let vbts_trace::Item::Branches { branches, .. } = item {
            count += branches.len() as u64;
        }
    }
    let end = reader.summary().map(|summary| summary.end.clone());
    (count, end)
}

#[test]
fn an_interrupted_thread_that_works_for_long_is_not_stuck() {
    let file = tempfile::tempfile().unwrap();
    let work = || std::thread::sleep(Duration::from_millis(250));
    let writer = writer_of(btrace(work), &file, None);
    writer.put(branches(1000)).unwrap();
    for _ in 0..8 {
        writer.put(event()).unwrap();
    }
    let (summary, error) = writer.finish(RunEnd::Timeout, true, true);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(summary.unwrap().records, 1000);
    let read = read_back(&file, file.metadata().unwrap().len());
    assert_eq!(read, (1000, Some("timeout".into())));
}

#[test]
fn a_trace_that_a_signal_ends_has_what_was_encoded() {
    let file = tempfile::tempfile().unwrap();
    let queue: Arc<OnceLock<Arc<Queue>>> = Arc::default();
    let (stopped, mut events) = (queue.clone(), 0);
    // The event after the branches takes until the signal.
    let work = move || {
        events += 1;
        let is_stopped = || stopped.get().is_some_and(|queue| queue.writes.is_stopped());
        while events > 1 && !is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let writer = writer_of(btrace(work), &file, Some(Duration::from_millis(1)));
    queue.set(writer.queue.clone()).unwrap();
    for work in [branches(1000), event(), branches(1)] {
        writer.put(work).unwrap();
    }
    while writer.records() < 1000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (summary, error) = writer.finish(EXITED, true, false);
    assert!(matches!(error, Some(WriterError::Interrupted)), "{error:?}");
    assert!(summary.is_none());
    let written = writer.written();
    assert!(written.all && written.bytes == file.metadata().unwrap().len());
    assert_eq!(read_back(&file, written.bytes), (written.records, None));
    assert_eq!(written.records, 1000);
}

#[test]
fn a_trace_that_the_agent_ends_is_complete_up_to_there() {
    let file = tempfile::tempfile().unwrap();
    let writer = writer_of(btrace(|| {}), &file, None);
    writer.put(branches(1000)).unwrap();
    let task = 9;
    writer
        .put(Work::Agent(AgentEvent::Drained { task, time: 1 }))
        .unwrap();
    writer.put(branches(1)).unwrap();
    let (summary, error) = writer.finish(EXITED, true, false);
    assert!(matches!(error, Some(WriterError::Agent(_))), "{error:?}");
    assert_eq!(summary.unwrap().end, RunEnd::Error);
    let read = read_back(&file, file.metadata().unwrap().len());
    assert_eq!(read, (1000, Some("error".into())));
}

#[test]
fn a_full_disk_has_the_blocks_that_the_message_counts() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    // Branches that no encoding makes small: a block has about 8 MiB.
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        seed >> 17
    };
    let mut all: Vec<Work> = (0..24)
        .map(|_| {
            let words: Vec<[u64; 3]> = (0..1 << 16).map(|_| [1, random(), random()]).collect();
            let records = records(&words);
            Work::Agent(AgentEvent::Records { task: 1, records })
        })
        .collect();
    for (mebibytes, has_blocks) in [(1, false), (10, true)] {
        let memory = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap());
        memory.set_len(mebibytes << 20).unwrap();
        fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
        let writer = writer_of(btrace(|| {}), &memory, None);
        let work = std::mem::take(&mut all);
        for work in work {
            if let Work::Agent(AgentEvent::Records { task, records }) = &work {
                let (task, records) = (*task, records.clone());
                all.push(Work::Agent(AgentEvent::Records { task, records }));
            }
            let _ = writer.put(work);
        }
        let (summary, _) = writer.finish(EXITED, true, false);
        assert!(summary.is_none());
        let written = writer.written();
        assert_eq!(written.bytes, mebibytes << 20);
        assert_eq!(read_back(&memory, written.bytes), (written.records, None));
        assert_eq!(written.records > 0, has_blocks, "{written}");
    }
}

#[test]
fn a_full_or_broken_disk_is_reported_once() {
    for (path, _) in BROKEN {
        let broken = File::options().write(true).open(path).unwrap();
        let writer = writer(&broken, None);
        let error = (0..).find_map(|_| writer.put(branches(1)).err()).unwrap();
        assert!(
            matches!(error, WriterError::Output(OutputError::Write { .. })),
            "{path}: {error}"
        );
        assert!(writer.take_closed().is_ok());
        writer.put(branches(1)).unwrap();
    }
}
