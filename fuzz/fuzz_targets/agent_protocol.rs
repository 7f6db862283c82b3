//! The messages from the agent in the guest: their frames, their contents, and a trace session that
//! receives them, in each format. The executable whose symbols the text format looks up is part of
//! the input as well.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};
use vbts_capture::format::{Format, Json, Raw, Text};
use vbts_capture::output::{StdoutUse, TraceTo};
use vbts_capture::program::Positions;
use vbts_capture::{Destination, Filters, Options, RunEnd, Session};
use vbts_devices::{ByteSink, GuestRam};
use vbts_fuzz::input::Input;
use vbts_fuzz::tree::Tree;
use vbts_host::Alarm;
use vbts_host::root::Root;
use vbts_protocol::{Decoder, HEADER_SIZE, Scope, ToGuest, ToHost, VERSION};
use vbts_symbols::Symbolizer;
use vm_memory::{Bytes, GuestAddress};

static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);
static ALARM: LazyLock<Arc<Alarm>> =
    LazyLock::new(|| Arc::new(Alarm::new(Arc::default(), None).expect("descriptors")));

/// Instead of the number of a message: bytes that are no frame follow.
const RAW: u8 = 255;

/// Bytes of the guest's memory, in which records may be.
const MEMORY: usize = 4096;

/// A destination that keeps nothing: the descriptors are taken while all of them lead to /dev/null.
fn destination(stdout_use: StdoutUse) -> Destination {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null");
    let null = null.expect("/dev/null");
    let (out, err) = (rustix::io::dup(stdout()), rustix::io::dup(stderr()));
    let (out, err) = (out.expect("a descriptor"), err.expect("a descriptor"));
    dup2_stdout(&null).expect("standard output");
    dup2_stderr(&null).expect("standard error");
    let destination = Destination::new(&TraceTo::Stdout, stdout_use);
    dup2_stdout(&out).expect("standard output");
    dup2_stderr(&err).expect("standard error");
    destination.expect("/dev/null")
}

/// What is read from a frame, written and read again is the same message.
fn check_messages(stream: &[u8]) {
    let mut decoder = Decoder::new();
    decoder.push(stream);
    while let Ok(Some(frame)) = decoder.next_frame() {
        let _ = ToGuest::parse(frame);
        if let Ok(message) = ToHost::parse(frame) {
            let mut again = Vec::new();
            message.encode(&mut again).expect("it was no longer before");
            assert_eq!(ToHost::parse(&again[HEADER_SIZE..]), Ok(message));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let program = input.u16();
    let program = input.bytes(program.into());
    let sched = flags & 32 != 0;
    let format: Box<dyn Format> = match flags & 3 {
        0 => Box::new(Raw),
        1 => Box::new(Json::new(vbts_vmm::accel::Accel::Soft, sched)),
        _ => Box::new(Text::new(sched)),
    };
    std::fs::write(TREE.empty().join("prog"), program).expect("a file can be written");
    let root = Root::open(&TREE.empty()).expect("a directory");
    let stdout_use = match flags & 4 {
        0 => StdoutUse::Trace,
        _ => StdoutUse::Both,
    };
    let scope = if flags & 16 == 0 {
        Scope::User
    } else {
        Scope::All
    };
    let memory = GuestRam::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("a page");
    let contents = data.get(..MEMORY).unwrap_or(data);
    memory
        .write_slice(contents, GuestAddress(0))
        .expect("it is in memory");
    let options = Options {
        scope,
        is_32_bit: data.len() % 2 == 1,
        format,
        symbols: Symbolizer::new(root, Path::new("/")),
        destination: destination(stdout_use),
        filters: Filters::default(),
        merge_limit: 1 << 16,
        reports: false,
    };
    let mut session =
        Session::start(memory, options, Positions::default(), &ALARM).expect("a thread");

    let mut stream = Vec::new();
    if flags & 8 == 0 {
        ToHost::Ready(VERSION)
            .encode(&mut stream)
            .expect("a short message");
    }
    while !input.is_empty() {
        let kind = input.u8();
        let len = input.u16();
        let payload = input.bytes(len.into());
        if kind == RAW {
            stream.extend(payload);
        } else {
            stream.extend([0; 4]);
            stream.extend((payload.len() as u32 + 1).to_le_bytes());
            stream.push(kind);
            stream.extend(payload);
        }
    }
    check_messages(&stream);
    let piece = usize::from(flags >> 4) * 16 + 1;
    for piece in stream.chunks(piece) {
        assert_eq!(session.put(piece), piece.len());
    }
    // The agent may have reported what cannot be true.
    let _ = session.finish(RunEnd::Timeout, false);
});
