//! 9P messages, for a read-only share and for a writable one.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vbts_devices::ninep::{Access, MAX_MSIZE, Server};
use vbts_fuzz::input::Input;
use vbts_fuzz::tree::{Tree, assert_no_canary};

const HEADER: usize = 7;
const RLERROR: u8 = 7;
const MESSAGES: usize = 100;

/// Tversion for 8 KiB, and Tattach of fid 0.
const OPENING: [&[u8]; 2] = [
    b"\x15\0\0\0\x64\xFF\xFF\0\x20\0\0\x08\09P2000.L",
    b"\x17\0\0\0\x68\0\0\0\0\0\0\xFF\xFF\xFF\xFF\0\0\0\0\0\0\0\0",
];

static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);

fn exchange(server: &mut Server, request: &[u8], reply: &mut Vec<u8>) {
    server.handle(request, reply);
    assert!((HEADER..=MAX_MSIZE as usize).contains(&reply.len()));
    let size = u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]]);
    assert_eq!(size as usize, reply.len());
    if let Some(kind) = request.get(4)
        && reply[4] != RLERROR
    {
        assert_eq!(reply[4], kind.wrapping_add(1));
    }
    assert_no_canary(reply);
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let writable = flags & 1 != 0;
    let (root, access) = if writable {
        (TREE.empty(), Access::ReadWrite)
    } else {
        (TREE.share(), Access::ReadOnly)
    };
    // With few descriptors the server closes files and opens them again.
    let descriptors = if flags & 4 != 0 { 8 } else { 1000 };
    let server = Server::with_descriptors(&root, access, descriptors);
    let mut server = server.expect("the share is there");
    let mut reply = Vec::new();
    if flags & 2 == 0 {
        for request in OPENING {
            exchange(&mut server, request, &mut reply);
            assert_ne!(reply[4], RLERROR, "{reply:?}");
        }
    }
    for _ in 0..MESSAGES {
        if input.is_empty() {
            break;
        }
        // A length, a type and a body; or, for type 0, the message as it is.
        let len = usize::from(input.u8());
        let kind = input.u8();
        let body = input.bytes(len);
        if kind == 0 {
            exchange(&mut server, body, &mut reply);
        } else {
            let mut request = ((HEADER + body.len()) as u32).to_le_bytes().to_vec();
            request.extend([kind, 0x34, 0x12]);
            request.extend(body);
            exchange(&mut server, &request, &mut reply);
        }
    }
    drop(server);
    if writable {
        TREE.clean();
    }
    TREE.assert_unchanged();
});
