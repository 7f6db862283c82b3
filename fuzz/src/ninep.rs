//! A session of a guest with the 9P server.

use std::path::Path;

use vbts_devices::ninep::{Access, MAX_MSIZE, Server};

use crate::canary;
use crate::input::Input;

const HEADER: usize = 7;
const RLERROR: u8 = 7;

/// Tversion for 8 KiB, and Tattach of fid 0.
const OPENING: [&[u8]; 2] = [
    b"\x15\0\0\0\x64\xFF\xFF\0\x20\0\0\x08\09P2000.L",
    b"\x17\0\0\0\x68\0\0\0\0\0\0\xFF\xFF\xFF\xFF\0\0\0\0\0\0\0\0",
];

/// A server, and its last reply.
#[derive(Debug)]
pub struct Session {
    server: Server,
    reply: Vec<u8>,
}

impl Session {
    /// A server of `root` that keeps up to `descriptors` files open.
    ///
    /// # Panics
    /// There is no such directory.
    pub fn new(root: &Path, access: Access, descriptors: usize) -> Self {
        let server = Server::with_descriptors(root, access, descriptors);
        Self {
            server: server.expect("the share is there"),
            reply: Vec::new(),
        }
    }

    /// Attaches the root as fid 0.
    ///
    /// # Panics
    /// The server refuses that.
    pub fn attach(&mut self) {
        for request in OPENING {
            self.exchange(request);
            assert_ne!(self.reply[4], RLERROR, "{:?}", self.reply);
        }
    }

    /// Sends up to `limit` messages of the input: each is a length, a type and a body; or, for type
    /// 0, the message as it is.
    ///
    /// # Panics
    /// A reply is malformed, or shows a file outside the share.
    pub fn exchange_all(&mut self, input: &mut Input, limit: usize) {
        for _ in 0..limit {
            if input.is_empty() {
                break;
            }
            let len = usize::from(input.u8());
            let kind = input.u8();
            let body = input.bytes(len);
            if kind == 0 {
                self.exchange(body);
            } else {
                let mut request = ((HEADER + body.len()) as u32).to_le_bytes().to_vec();
                request.extend([kind, 0x34, 0x12]);
                request.extend(body);
                self.exchange(&request);
            }
        }
    }

    fn exchange(&mut self, request: &[u8]) {
        let reply = &mut self.reply;
        self.server.handle(request, reply);
        assert!((HEADER..=MAX_MSIZE as usize).contains(&reply.len()));
        let size = u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]]);
        assert_eq!(size as usize, reply.len());
        if let Some(kind) = request.get(4)
            && reply[4] != RLERROR
        {
            assert_eq!(reply[4], kind.wrapping_add(1));
        }
        canary::assert_hidden(reply);
    }
}
