//! Round trips, streams that are split at every byte, and bytes from a hostile peer.

use proptest::prelude::*;
use vbts_protocol::{
    Bytes, CodeSource, Crash, Decoder, Error, ErrorKind, ExitStatus, Extent, Extents, FileAccess,
    Follow, HEADER_SIZE, Job, Leads, Limit, MAX_INSTRUCTION, MAX_PAYLOAD, MAX_RECORDS, MAX_TEXT,
    Names, RECORD_SIZE, Recorder, Resource, Scope, Share, Stream, StreamKind, Terminal, ToGuest,
    ToHost, Trace, VERSION, WindowSize,
};

fn frame(bytes: &[u8]) -> &[u8] {
    &bytes[HEADER_SIZE..]
}

fn streams() -> Vec<Stream> {
    let kinds = [
        StreamKind::Input,
        StreamKind::Output,
        StreamKind::Terminal,
        StreamKind::File {
            access: FileAccess::Both,
            append: true,
            offset: u64::MAX,
        },
        StreamKind::Device {
            path: "/dev/null".into(),
            access: FileAccess::Read,
        },
        StreamKind::Same { fd: 1 },
    ];
    let stream = |(fd, kind)| Stream { fd, kind };
    (0..).zip(kinds).map(stream).collect()
}

fn job() -> Job {
    Job {
        argv: vec![
            "/bin/echo".into(),
            Bytes(vec![0x00, b'a', 0x7f, 0x80, 0xff]),
        ],
        envp: vec!["PATH=/bin".into()],
        cwd: "/tmp".into(),
        uid: Some(1000),
        gid: None,
        groups: vec![4, 1000],
        umask: Some(0o27),
        limits: vec![Limit {
            resource: Resource::Stack,
            soft: Some(8 << 20),
            hard: None,
        }],
        streams: streams(),
        leads: Leads::Group,
        terminal: Some(Terminal {
            size: WindowSize {
                rows: 24,
                columns: 80,
                ..WindowSize::default()
            },
            input_modes: 1,
            output_modes: 2,
            control_modes: u32::MAX,
            local_modes: 3,
            special_codes: vec![3, 0x1c, 0xff],
        }),
        trace: Some(Trace {
            buffer_size: 1 << 20,
            sched: true,
            scope: Scope::User,
            follow: Follow::Threads,
            reported_signal: Some(10),
            recorder: Recorder::Kernel,
        }),
        shares: vec![Share {
            tag: "share0".into(),
            path: "/srv".into(),
        }],
        hostname: Some("guest".into()),
        epoch: Some(-1),
        wait_all: true,
        ends_at_deadlock: true,
        ignored_signals: 1 << 63,
    }
}

/// Two extents with two records.
const EXTENTS: [u8; 32] = {
    let mut bytes = [0; 32];
    (bytes[1], bytes[8], bytes[16], bytes[24]) = (0x10, 40, 1, 8);
    bytes
};

/// Two names.
const NAMES: [u8; 11] = *b"\x02\0\0\0/a\x01\0\0\0b";

fn every_to_host() -> Result<Vec<ToHost<'static>>, Error> {
    Ok(vec![
        ToHost::Ready(VERSION),
        ToHost::Started { pid: 0x0102_0304 },
        ToHost::Output {
            fd: 1,
            bytes: b"out",
        },
        ToHost::Output { fd: 2, bytes: b"" },
        ToHost::Position {
            fd: 7,
            offset: u64::MAX,
        },
        ToHost::InputWant {
            fd: 0,
            bytes: u32::MAX,
            canonical: true,
        },
        ToHost::Records {
            task: 7,
            extents: Extents::new(&EXTENTS)?,
        },
        ToHost::RecordsValid,
        ToHost::Mapped {
            task: 7,
            extents: Extents::new(&EXTENTS)?,
        },
        ToHost::Reuse {
            messages: 0x0102_0304_0506_0708,
        },
        ToHost::Maps {
            process: 7,
            text: b"00400000-00401000 r-xp\n",
        },
        ToHost::Code {
            process: 7,
            source: CodeSource::JitDump,
            at: 1 << 40,
            bytes: b"DTiJ",
        },
        ToHost::BuildId {
            id: b"\0\xff",
            name: b"/bin/true",
        },
        ToHost::Lost {
            task: 7,
            records: 0x0102_0304_0506_0708,
        },
        ToHost::TaskStart {
            task: 8,
            parent: 7,
            process: 8,
            records: 1 << 17,
            time: u64::MAX - 1,
        },
        ToHost::TaskExec {
            task: 8,
            former: 9,
            time: 1 << 32,
            name: b"/bin/\xff",
        },
        ToHost::TaskName {
            task: 8,
            name: b"a \xff",
        },
        ToHost::TaskUntraced {
            task: 10,
            parent: 8,
            time: 1,
            name: b"gdb",
            reason: "traced by task 8",
        },
        ToHost::Drained { task: 7, time: 5 },
        ToHost::Crash(Box::new(Crash {
            task: 8,
            signal: 11,
            code: -6,
            address: 0xdead_beef,
            registers: std::array::from_fn(|i| u64::MAX - i as u64),
            instruction: vec![0x0f, 0x0b],
        })),
        ToHost::TaskSignal {
            task: 7,
            time: 6,
            signal: 10,
        },
        ToHost::Standing {
            task: 7,
            syscall: "running",
            name: b"a b",
        },
        ToHost::TaskEnd {
            task: 8,
            time: 2,
            status: ExitStatus::Signal(11),
        },
        ToHost::Outlived {
            ended: true,
            count: 3,
            names: Names::new(&NAMES)?,
        },
        ToHost::Discarded {
            count: 1 << 16,
            more: true,
            names: Names::new(&[])?,
        },
        ToHost::Ended,
        ToHost::Stopped,
        ToHost::Deadlock,
        ToHost::Exit(ExitStatus::Code(255)),
        ToHost::Exit(ExitStatus::Signal(9)),
        ToHost::Error {
            kind: ErrorKind::NotFound,
            errno: 2,
            text: "no such program",
        },
    ])
}

#[test]
fn a_frame_has_the_documented_layout() {
    let mut bytes = Vec::new();
    ToHost::Started { pid: 0x0102_0304 }
        .encode(&mut bytes)
        .unwrap();
    // The number of the message, and the process ID in groups of seven bits.
    assert_eq!(bytes, [0, 0, 0, 0, 5, 0, 0, 0, 1, 0x84, 0x86, 0x88, 0x08]);
}

#[test]
fn messages_of_the_guest_survive_a_split_at_every_byte() {
    let mut stream = Vec::new();
    for message in every_to_host().unwrap() {
        message.encode(&mut stream).unwrap();
    }
    for cut in 0..=stream.len() {
        let mut decoder = Decoder::new();
        let mut expected = every_to_host().unwrap().into_iter();
        for part in [&stream[..cut], &stream[cut..]] {
            decoder.push(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                assert_eq!(ToHost::parse(frame).unwrap(), expected.next().unwrap());
            }
        }
        assert_eq!(expected.next(), None);
        assert!(decoder.is_at_boundary());
    }
}

#[test]
fn extents_have_whole_records_up_to_a_limit() {
    let parse = |lens: &[u64]| {
        let mut bytes = Vec::new();
        for &len in lens {
            let address = 0x1000;
            Extents::push(&mut bytes, Extent { address, len });
        }
        Extents::new(&bytes).map(|extents| extents.iter().map(|e| e.len).sum::<u64>())
    };
    let max = MAX_RECORDS as u64;
    assert_eq!(parse(&[]).unwrap(), 0);
    assert_eq!(parse(&[20, 4]).unwrap(), RECORD_SIZE as u64);
    assert_eq!(parse(&[max - 24, 24]).unwrap(), max);
    for wrong in [&[23][..], &[max, 24], &[u64::MAX, 1], &[1 << 63, 1 << 63]] {
        parse(wrong).unwrap_err();
    }
    Extents::new(&EXTENTS[1..]).unwrap_err();
}

#[test]
fn messages_of_the_host_survive_a_round_trip() {
    let messages = [
        ToGuest::Job(Box::new(job())),
        ToGuest::Input {
            fd: 63,
            bytes: &[0, 1, 2],
        },
        ToGuest::InputEnd { fd: 0 },
        ToGuest::OutputClosed { fd: 1 },
        ToGuest::WindowSize(WindowSize {
            rows: 24,
            columns: u16::MAX,
            x_pixels: 0,
            y_pixels: 1,
        }),
        ToGuest::Signal(15),
        ToGuest::End,
    ];
    for message in messages {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        assert_eq!(ToGuest::parse(frame(&bytes)).unwrap(), message);
    }
}

#[test]
fn a_frame_that_is_too_long_is_refused_on_both_sides() {
    let output = |len: usize| {
        let (fd, bytes) = (u32::MAX, &vec![0; len][..]);
        let mut out = b"before".to_vec();
        let encoded = ToHost::Output { fd, bytes }.encode(&mut out);
        encoded.map(|()| out.len()).map_err(|error| (error, out))
    };
    assert!(output(MAX_TEXT).is_ok());
    let (error, out) = output(MAX_PAYLOAD).unwrap_err();
    assert_eq!(error, Error::TooLong(MAX_PAYLOAD + 10));
    assert_eq!(out, b"before", "nothing of the frame is left");

    let mut decoder = Decoder::new();
    decoder.push(&[0; 4]);
    decoder.push(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
    let expected = Error::TooLong(MAX_PAYLOAD + 1);
    assert_eq!(decoder.next_frame(), Err(expected.clone()));
    // The start of the next frame is unknown, so no later bytes may be taken for a frame.
    decoder.push(&[0; 8]);
    assert_eq!(decoder.next_frame(), Err(expected));
    assert!(!decoder.is_at_boundary());
}

#[test]
fn malformed_frames_are_errors() {
    let mut decoder = Decoder::new();
    decoder.push(&[0x83, 0, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(decoder.next_frame(), Err(Error::Reserved(_))));

    // Each message, without its last byte and with one more.
    for message in every_to_host().unwrap() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        ToHost::parse(frame(&bytes[..bytes.len() - 1])).unwrap_err();
        bytes.push(0);
        ToHost::parse(frame(&bytes)).unwrap_err();
    }
    let encoded = |message: &ToHost<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        frame(&bytes).to_vec()
    };
    let changed = |message: &ToHost<'_>, from: &[u8], to: &[u8]| {
        let bytes = encoded(message);
        let at = bytes.windows(from.len()).position(|part| part == from);
        let at = at.unwrap();
        [&bytes[..at], to, &bytes[at + from.len()..]].concat()
    };
    let standing = ToHost::Standing {
        task: 7,
        syscall: "running",
        name: b"a",
    };
    let discarded = ToHost::Discarded {
        count: 2,
        more: true,
        names: Names::new(&NAMES).unwrap(),
    };
    let mapped = ToHost::Mapped {
        task: 7,
        extents: Extents::new(&EXTENTS).unwrap(),
    };
    let crash = ToHost::Crash(Box::new(Crash {
        task: 1,
        signal: 11,
        code: 1,
        address: 0,
        registers: [0; 19],
        instruction: vec![0x90; MAX_INSTRUCTION],
    }));
    let mut long_instruction = encoded(&crash);
    let at = long_instruction.len() - MAX_INSTRUCTION - 1;
    long_instruction[at] += 1;
    long_instruction.push(0x90);
    for bytes in [
        changed(&standing, b"running", b"runn\xffng"),
        changed(&discarded, b"\x02\0\0\0/a", b"\x0c\0\0\0/a"),
        changed(&mapped, &[40], &[41]),
        changed(&ToHost::Exit(ExitStatus::Signal(9)), &[9], &[128]),
        changed(&ToHost::Exit(ExitStatus::Signal(9)), &[1, 9], &[2, 9]),
        long_instruction,
        vec![0xff, 0x7f],
        Vec::new(),
    ] {
        ToHost::parse(&bytes).unwrap_err();
    }
    for bytes in [&b""[..], b"\0", b"\x07", b"\x06\0"] {
        ToGuest::parse(bytes).unwrap_err();
    }
}

proptest! {
    #[test]
    fn any_job_survives(
        argv in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        cwd in prop::collection::vec(any::<u8>(), 0..40),
        uid in any::<Option<u32>>(),
        buffer_size in any::<u64>(),
        sched in any::<bool>(),
    ) {
        let job = Job {
            argv: argv.into_iter().map(Bytes).collect(),
            cwd: Bytes(cwd),
            uid,
            trace: Some(Trace {
                buffer_size,
                sched,
                scope: Scope::All,
                follow: Follow::None,
                reported_signal: None,
                recorder: Recorder::Kernel,
            }),
            ..Job::default()
        };
        let mut bytes = Vec::new();
        ToGuest::Job(Box::new(job.clone())).encode(&mut bytes).unwrap();
        prop_assert_eq!(ToGuest::parse(frame(&bytes)).unwrap(), ToGuest::Job(Box::new(job)));
    }

    #[test]
    fn output_survives_any_chunking(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..10),
        read in 1usize..64,
    ) {
        let mut stream = Vec::new();
        for chunk in &chunks {
            ToHost::Output {
                fd: 1,
                bytes: chunk,
            }
            .encode(&mut stream).unwrap();
        }
        let mut decoder = Decoder::new();
        let mut seen = Vec::new();
        for part in stream.chunks(read) {
            decoder.push(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                match ToHost::parse(frame).unwrap() {
                    ToHost::Output { fd: 1, bytes } => seen.push(bytes.to_vec()),
                    other => panic!("{other:?}"),
                }
            }
        }
        prop_assert_eq!(seen, chunks);
    }

    #[test]
    fn hostile_bytes_never_panic(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16),
    ) {
        let mut decoder = Decoder::new();
        for chunk in chunks {
            decoder.push(&chunk);
            while let Ok(Some(frame)) = decoder.next_frame() {
                let _ = ToHost::parse(frame);
                let _ = ToGuest::parse(frame);
            }
        }
    }

    #[test]
    fn hostile_payloads_never_panic(
        kind in 0..32u8,
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let payload = [&[kind], &payload[..]].concat();
        if let Ok(message) = ToHost::parse(&payload) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes).unwrap();
            prop_assert_eq!(ToHost::parse(frame(&bytes)).unwrap(), message);
        }
        let _ = ToGuest::parse(&payload);
    }
}
