use std::io::{Seek as _, Write as _};

use vbts_devices::ninep::{ServerState, Service};
use vbts_recording::Header;

use super::*;

/// A server that answers with the request in upper case.
#[derive(Debug)]
struct UpperCase;

impl Service for UpperCase {
    fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        *reply = request.to_ascii_uppercase();
    }
    fn reset(&mut self) {}
    fn state(&self) -> Result<ServerState, String> {
        Err("none".into())
    }
    fn restore(&mut self, _state: &ServerState) -> Result<(), String> {
        Err("none".into())
    }
}

fn progress(time: u64) -> Progress {
    Progress {
        time,
        instructions: time / 2,
        registers: 7,
    }
}

/// Asks server 1 at `time`.
fn ask(inputs: &Inputs, host: bool, time: u64, request: &[u8]) -> Vec<u8> {
    let server = host.then(|| Box::new(UpperCase) as Box<dyn Service>);
    let mut service = LoggedService::new(inputs.clone(), 1, server);
    service.advance_to(time);
    let mut reply = Vec::new();
    service.handle(request, &mut reply);
    reply
}

/// The file of a recorded run, cut off after `len` bytes.
fn recorded(len: Option<usize>) -> (Inputs, File) {
    let mut file = tempfile::tempfile().unwrap();
    let writer = Writer::new(file.try_clone().unwrap(), &Header::default(), u64::MAX).unwrap();
    let inputs = Inputs::recorded(writer, Exclusions::default());
    assert_eq!(ask(&inputs, true, 10, b"abc"), b"ABC");
    inputs.record_wait(20, 30);
    inputs.exit(30, || panic!("no mark is due"));
    inputs.exit(30, || panic!("no mark is due"));
    inputs.record_input(b"typed");
    inputs.exit(40, || panic!("no mark is due"));
    inputs.set_event(true);
    inputs.record_input(b"signal");
    inputs.set_event(false);
    inputs.exit(50, || panic!("no mark is due"));
    inputs.set_event(true);
    inputs.set_event(false);
    inputs.note_output(b"output");
    inputs.exit(MARK_INTERVAL + 5, || progress(MARK_INTERVAL + 5));
    let end = progress(2 * MARK_INTERVAL);
    inputs.record_end(end, 130, Some("interrupted")).unwrap();
    inputs.check().unwrap();
    if let Some(len) = len {
        let all = std::fs::read(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&file)
        ));
        let all = all.unwrap();
        file = tempfile::tempfile().unwrap();
        file.write_all(&all[..len]).unwrap();
    }
    file.rewind().unwrap();
    let reader = BufReader::new(file.try_clone().unwrap());
    let (_, reader) = Reader::new(reader).unwrap();
    (Inputs::replayed(reader), file)
}

/// A replay that has come to the mark.
fn replayed_to_the_mark() -> Inputs {
    let (inputs, _) = recorded(None);
    assert!(inputs.is_replay());
    assert_eq!(inputs.next_stop(), None);
    assert_eq!(ask(&inputs, false, 10, b"abc"), b"ABC");
    assert_eq!(inputs.take_wait(19), None);
    assert_eq!(inputs.take_wait(20), Some(30));
    let exit = |time| inputs.exit(time, || panic!("no mark is due"));
    exit(30);
    assert_eq!(
        inputs.take_input(),
        None,
        "the input comes at the second exit"
    );
    exit(30);
    assert_eq!(inputs.take_input(), Some(b"typed".to_vec()));
    assert_eq!(inputs.next_stop(), Some(40));
    exit(40);
    assert_eq!(inputs.take_input(), Some(b"signal".to_vec()));
    assert_eq!(inputs.next_stop(), Some(50), "an event without an input");
    exit(50);
    assert_eq!(inputs.take_input(), Some(Vec::new()));
    inputs.check().unwrap();
    inputs
}

#[test]
fn a_replay_has_the_inputs_of_the_recorded_run() {
    let inputs = replayed_to_the_mark();
    inputs.note_output(b"output");
    inputs.exit(MARK_INTERVAL, || panic!("no mark is due"));
    inputs.exit(MARK_INTERVAL + 5, || progress(MARK_INTERVAL + 5));
    assert!(!inputs.are_over());
    assert_eq!(inputs.next_stop(), Some(2 * MARK_INTERVAL));
    inputs.exit(2 * MARK_INTERVAL, || panic!("no mark is due"));
    assert!(inputs.are_over());
    let end = inputs.compare_end(progress(2 * MARK_INTERVAL)).unwrap();
    assert_eq!(end.status, Some(130));
    assert_eq!(end.reason.as_deref(), Some("interrupted"));
    inputs.check().unwrap();
}

#[test]
fn a_difference_is_found_where_it_is() {
    let error = |inputs: &Inputs| inputs.check().unwrap_err().to_string();
    for (time, request) in [(10, &b"abd"[..]), (11, b"abc"), (10, b"ab")] {
        let (inputs, _) = recorded(None);
        ask(&inputs, false, time, request);
        let error = error(&inputs);
        assert!(error.contains(&format!("at {time} ns")), "{error}");
        assert!(error.contains("server 1 of files gets"), "{error}");
    }
    let (inputs, _) = recorded(None);
    ask(&inputs, false, 10, b"abc");
    inputs.take_wait(20);
    inputs.exit(31, Progress::default);
    assert_eq!(inputs.take_input(), None);
    assert!(error(&inputs).contains("an input comes at 30 ns"));

    let inputs = replayed_to_the_mark();
    inputs.exit(MARK_INTERVAL + 5, || progress(MARK_INTERVAL + 5));
    let message = error(&inputs);
    assert!(
        message.contains("a mark at 50000005 ns"),
        "another output: {message}"
    );

    let inputs = replayed_to_the_mark();
    let end = inputs.compare_end(progress(2 * MARK_INTERVAL));
    assert!(end.is_err(), "the mark was not reached");
}

#[test]
fn a_recording_that_was_cut_off_ends_with_its_last_input() {
    let (_, whole) = recorded(None);
    let len = usize::try_from(whole.metadata().unwrap().len()).unwrap();
    // The end has a block of its own.
    let (inputs, _) = recorded(Some(len - 1));
    ask(&inputs, false, 10, b"abc");
    inputs.take_wait(20);
    for time in [30, 30, 40, 50] {
        inputs.exit(time, Progress::default);
        inputs.take_input();
    }
    inputs.note_output(b"output");
    assert!(!inputs.are_over());
    inputs.exit(MARK_INTERVAL + 5, || progress(MARK_INTERVAL + 5));
    assert_eq!(inputs.next_stop(), Some(MARK_INTERVAL + 5));
    assert!(inputs.are_over());
    let end = inputs.compare_end(progress(MARK_INTERVAL + 5)).unwrap();
    assert_eq!(end.status, None);
    // What follows has no reply.
    assert_eq!(ask(&inputs, false, MARK_INTERVAL + 6, b"abc"), b"");
    inputs.check().unwrap();
}

#[test]
fn inputs_of_the_host_alone_are_neither_recorded_nor_replayed() {
    let inputs = Inputs::default();
    assert!(!inputs.is_replay() && !inputs.is_logged() && !inputs.are_over());
    inputs.record_input(b"x");
    inputs.exit(MARK_INTERVAL, || panic!("no mark is due"));
    assert_eq!((inputs.take_input(), inputs.take_wait(0)), (None, None));
    assert_eq!(inputs.next_stop(), None);
    assert_eq!(ask(&inputs, true, 0, b"abc"), b"ABC");
    inputs.check().unwrap();
}
