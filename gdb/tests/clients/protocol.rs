//! Packets that GDB does not send, or sends seldom.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use vbts_gdb::serve;

use crate::execution::execution;
use crate::recorded_target::RecordedTarget;

/// Sends packets one after the other, and returns the replies. `None`: no execution was recorded.
fn converse(packets: &[&str]) -> Option<Vec<String>> {
    let mut target = RecordedTarget::new(execution().ok()?);
    let (mut client, server) = UnixStream::pair().unwrap();
    let replies = thread::scope(|scope| {
        scope.spawn(move || serve(server, &mut target));
        // Without acknowledgements no checksum is compared.
        client.write_all(b"$QStartNoAckMode#b0").unwrap();
        assert_eq!(receive(&mut client), "OK");
        let replies = packets.iter().map(|packet| {
            client
                .write_all(format!("${packet}#00").as_bytes())
                .unwrap();
            loop {
                let reply = receive(&mut client);
                if reply != CONTINUING {
                    return reply;
                }
            }
        });
        let replies = replies.collect();
        drop(client);
        replies
    });
    Some(replies)
}

/// The target's output: "[continuing]".
const CONTINUING: &str = "O5b636f6e74696e75696e675d0a";

fn receive(client: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    loop {
        client.read_exact(&mut byte).unwrap();
        match byte[0] {
            b'+' | b'$' if text.is_empty() => {}
            b'#' => break,
            byte => text.push(byte),
        }
    }
    client.read_exact(&mut [0; 2]).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[track_caller]
fn answers(exchanges: &[(&str, &str)]) {
    let packets: Vec<&str> = exchanges.iter().map(|(packet, _)| *packet).collect();
    let Some(replies) = converse(&packets) else {
        return;
    };
    for ((packet, expected), reply) in exchanges.iter().zip(replies) {
        assert_eq!(reply, *expected, "{packet}");
    }
}

#[test]
fn unknown_packets_have_an_empty_reply() {
    answers(&[
        ("vMustReplyEmpty", ""),
        ("qTStatus", ""),
        ("QNonStop:1", ""),
        ("Z9,0,0", ""),
        ("qXfer:memory-map:read::0,10", ""),
        ("qXfer:siginfo:write::0:0", ""),
        ("vFile:move:00", ""),
        ("", ""),
    ]);
}

#[test]
fn malformed_packets_are_refused() {
    for packet in [
        "m",
        "m10",
        "m10,",
        "mzz,1",
        "M10,2:00",
        "M10,2:0000zz",
        "X10,2:a",
        "p",
        "pffff",
        "Pff=00",
        "P0=00",
        "G00",
        "Z2,10,0",
        "Z2,ffffffffffffffff,2",
        "Z0,10",
        "Hx1",
        "Hg",
        "T",
        "vCont;q",
        "vCont;r10",
        "vCont;r10,20:",
        "vKill;",
        "D;",
        "qRcmd,0",
        "qThreadExtraInfo,",
        "QCatchSyscalls:2",
        "QCatchSyscalls:1;x",
        "QPassSignals:;;x",
        "qXfer:auxv:read::0",
        "qXfer:auxv:read::10000,1",
        "qCRC:10",
        "qSearch:memory:0;10;",
        "vFile:open:2f",
        "vFile:pread:0",
        "qGetTLSAddr:p1.1,0",
        "qXfer:features:read:x:0,10",
    ] {
        let Some(replies) = converse(&[packet, "?"]) else {
            return;
        };
        assert!(
            replies[0].starts_with('E') || replies[0].starts_with("F-1"),
            "{packet} {replies:?}"
        );
        // The session goes on.
        assert!(
            replies[1].starts_with("T05thread:28;"),
            "{packet} {replies:?}"
        );
    }
}

#[test]
fn what_does_not_exist_is_refused() {
    answers(&[
        ("qSupported:multiprocess+", &supported()),
        ("Hgp28.2a", "E03"),
        ("Hgp29.-1", "E03"),
        ("Tp28.28", "OK"),
        ("Tp1.28", "E03"),
        ("m40000,4", "E0e"),
        ("m3fffe,4", "0000"),
        ("vFile:open:2f6e6f6e65,0,0", "F-1,2"),
        ("vFile:open:2f67756573742f746f7572,1,1ff", "F-1,1e"),
        ("vFile:unlink:2f67756573742f746f7572", "F-1,1e"),
        ("vFile:pread:0,10,0", "F-1,9"),
        ("vFile:close:ffffffff", "F-1,9"),
        ("qXfer:btrace:read:all:0,100", "E.Btrace not enabled."),
        ("Qbtrace:off", "E.Btrace not enabled."),
        ("Qbtrace:pt", "E.only bts and off are supported"),
    ]);
}

fn supported() -> String {
    converse(&["qSupported"]).map_or_else(String::new, |replies| replies[0].clone())
}

#[test]
fn threads_have_no_process_for_a_client_that_knows_none() {
    answers(&[
        ("qfThreadInfo", "m28,29"),
        ("qsThreadInfo", "l"),
        ("qC", "QC28"),
        ("Hg29", "OK"),
        ("qC", "QC29"),
        ("qThreadExtraInfo,29", "3c263e3a2077616974696e67"),
        ("Hg0", "OK"),
        ("qC", "QC28"),
        ("qAttached", "1"),
    ]);
}

#[test]
fn an_interruption_stops_a_run() {
    let Ok(execution) = execution() else { return };
    let mut target = RecordedTarget::new(execution);
    let (mut client, server) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || serve(server, &mut target));
        client.write_all(b"$QStartNoAckMode#b0").unwrap();
        assert_eq!(receive(&mut client), "OK");
        // It arrives with the packet, so that the first slice ends with it.
        client.write_all(b"$vCont;c#00\x03").unwrap();
        assert_eq!(receive(&mut client), CONTINUING);
        let reply = receive(&mut client);
        assert!(reply.starts_with("T02thread:28;"), "{reply}");
        // Without a run it has no effect.
        client.write_all(b"\x03$qC#00").unwrap();
        assert_eq!(receive(&mut client), "QC28");
        drop(client);
    });
}

#[test]
fn a_client_that_leaves_stops_a_run() {
    let Ok(execution) = execution() else { return };
    let mut target = RecordedTarget::new(execution);
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(b"$QStartNoAckMode#b0$vCont;c#00").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let end = serve(server, &mut target).unwrap();
    assert_eq!(end, vbts_gdb::SessionEnd::Disconnected);
    // It ended after the first slice.
    assert_eq!(
        vbts_gdb::Target::current_stop(&mut target).unwrap().reason,
        vbts_gdb::StopReason::Signal(2)
    );
}

#[test]
fn a_program_starts_again() {
    answers(&[
        ("qSupported:multiprocess+", &supported()),
        ("s", &stop_at(1)),
        ("vRun;;35", &stop_at(5)),
        ("vRun;", &stop_at(0)),
    ]);
}

/// Returns the report of a stop by SIGTRAP at a step.
fn stop_at(step: usize) -> String {
    let Ok(execution) = execution() else {
        return String::new();
    };
    let registers = &execution.states[step];
    let hex = |value: u64| format!("{:016x}", value.swap_bytes());
    let (rbp, rsp, rip) = (registers.general[5], registers.general[4], registers.rip);
    format!(
        "T05thread:p28.28;6:{};7:{};10:{};",
        hex(rbp),
        hex(rsp),
        hex(rip)
    )
}

#[test]
fn binary_memory_has_the_same_bytes_as_hexadecimal() {
    let Ok(execution) = execution() else { return };
    let text = execution.symbol("text");
    answers(&[
        (&format!("X{text:x},4:a}}]b}}\n"), "OK"),
        (&format!("m{text:x},4"), "617d622a"),
        (&format!("x{text:x},4"), "ba}]b}\n"),
        (
            &format!("qSearch:memory:{text:x};20;}}]b"),
            &format!("1,{:x}", text + 1),
        ),
    ]);
}

#[test]
fn a_file_is_read_in_parts() {
    let Ok(execution) = execution() else { return };
    let size = std::fs::metadata(&execution.file).unwrap().len();
    let Some(replies) = converse(&[
        "vFile:setfs:28",
        "vFile:open:2f67756573742f746f7572,0,0",
        "vFile:pread:0,4,0",
        "vFile:pread:0,4,fffffffffffffff",
        "vFile:fstat:0",
        "vFile:readlink:2f70726f632f34302f657865",
        "vFile:close:0",
        "vFile:pread:0,4,0",
    ]) else {
        return;
    };
    assert_eq!(replies[..4], ["F0", "F0", "F4;\u{7f}ELF", "F0;"]);
    assert!(replies[4].starts_with("F40;"), "{replies:?}");
    assert!(size > 0);
    assert_eq!(replies[5..], ["Fb;/guest/tour", "F0", "F-1,9"]);
}
