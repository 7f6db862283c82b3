//! The files that requests of 9P2000.L concern.

use std::collections::HashMap;

use crate::item::{LEN_OF_HEADER, kind};

/// Maximum length of a path in bytes. A file with a longer one has no name here.
pub(crate) const MAX_PATH: usize = 4096;
/// Maximum number of files that have names at the same time.
pub(crate) const MAX_FIDS: usize = 1 << 20;

/// What a request has got of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Contents of a file, or an extended attribute.
    Contents,
    /// Names in a directory.
    Names,
    /// The target of a symbolic link.
    Link,
}

/// A successful request that has got something of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got<'a> {
    /// The path from the root of the server, without a slash at its start; `None` if it is not
    /// known.
    pub path: Option<&'a [u8]>,
    /// The kind.
    pub access: Access,
    /// Number of bytes.
    pub bytes: u64,
}

/// The paths of the files that the guest has of one server.
#[derive(Debug, Default)]
pub struct Paths(HashMap<u32, Vec<u8>>);

impl Paths {
    /// Follows a request, of which `request` has the start, and its reply. Returns what the guest
    /// has got of a file, if it has.
    pub fn follow(&mut self, request: &[u8], reply: &[u8]) -> Option<Got<'_>> {
        let (message, body) = answered(request, reply)?;
        let fid = number(body, 0)?;
        let got = |access, bytes| Some((access, u64::from(bytes)));
        let (access, bytes) = match message {
            kind::ATTACH => return self.set(fid, Vec::new()),
            kind::WALK => return self.walk(fid, body, reply),
            kind::XATTRWALK => {
                let path = self.0.get(&fid)?.clone();
                return self.set(number(body, 4)?, path);
            }
            kind::LCREATE => {
                let mut path = self.0.get(&fid)?.clone();
                let (name, _) = string(body.get(4..)?)?;
                append(&mut path, name)?;
                return self.set(fid, path);
            }
            kind::CLUNK | kind::REMOVE => {
                self.0.remove(&fid);
                return None;
            }
            kind::READ => got(Access::Contents, number(reply, LEN_OF_HEADER)?),
            kind::READDIR => got(Access::Names, number(reply, LEN_OF_HEADER)?),
            kind::READLINK => {
                let (target, _) = string(reply.get(LEN_OF_HEADER..)?)?;
                got(Access::Link, target.len() as u32)
            }
            _ => None,
        }?;
        Some(Got {
            path: self.path(fid),
            access,
            bytes,
        })
    }

    /// The path of a file that the guest has, from the root of the server.
    pub(crate) fn path(&self, fid: u32) -> Option<&[u8]> {
        self.0.get(&fid).map(Vec::as_slice)
    }

    /// A walk from the file of `fid` to a new one, if it has got to its end.
    fn walk(&mut self, fid: u32, body: &[u8], reply: &[u8]) -> Option<Got<'_>> {
        let (new_fid, names) = (number(body, 4)?, short(body, 8)?);
        if short(reply, LEN_OF_HEADER)? != names {
            return None;
        }
        let mut path = self.0.get(&fid)?.clone();
        self.0.remove(&new_fid);
        let mut rest = body.get(10..)?;
        for _ in 0..names {
            let (name, after) = string(rest)?;
            append(&mut path, name)?;
            rest = after;
        }
        self.set(new_fid, path)
    }

    fn set(&mut self, fid: u32, path: Vec<u8>) -> Option<Got<'_>> {
        if self.0.len() < MAX_FIDS {
            self.0.insert(fid, path);
        }
        None
    }
}

/// The type and the body of a request that `reply` answers. `None`: the reply is an error.
pub(crate) fn answered<'a>(request: &'a [u8], reply: &[u8]) -> Option<(u8, &'a [u8])> {
    let message = *request.get(LEN_OF_HEADER - 3)?;
    let body = request.get(LEN_OF_HEADER..)?;
    // An error has another type.
    let is_answer = *reply.get(LEN_OF_HEADER - 3)? == message.wrapping_add(1);
    is_answer.then_some((message, body))
}

/// Appends a name to a path. Returns `None` if the path is too long.
pub(crate) fn append(path: &mut Vec<u8>, name: &[u8]) -> Option<()> {
    match name {
        b".." => {
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            path.truncate(end);
        }
        b"." => {}
        name => {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
    }
    (path.len() <= MAX_PATH).then_some(())
}

pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

pub(crate) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

/// A string at the start of `bytes`, and what follows it.
pub(crate) fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = short(bytes, 0)?;
    bytes.get(2..)?.split_at_checked(len.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with a type, a tag and a body.
    fn message(kind: u8, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let len = (LEN_OF_HEADER + body.len()) as u32;
        [&len.to_le_bytes()[..], &[kind, 1, 0], &body].concat()
    }

    fn fid(n: u32) -> [u8; 4] {
        n.to_le_bytes()
    }

    /// Walks from a file to a new one, by names of which the server finds `found`.
    fn walk(paths: &mut Paths, from: u32, to: u32, names: &[&str], found: u16) {
        let mut request: Vec<u8> = [fid(from), fid(to)].concat();
        request.extend((names.len() as u16).to_le_bytes());
        for name in names {
            request.extend((name.len() as u16).to_le_bytes());
            request.extend(name.as_bytes());
        }
        let request = message(kind::WALK, &[&request]);
        let reply = message(kind::WALK + 1, &[&found.to_le_bytes()]);
        assert_eq!(paths.follow(&request, &reply), None);
    }

    /// The path of which 5 bytes are read.
    fn read(paths: &mut Paths, n: u32) -> Option<String> {
        let request = message(kind::READ, &[&fid(n), &[0; 12]]);
        let reply = message(kind::READ + 1, &[&5_u32.to_le_bytes(), b"hello"]);
        let got = paths.follow(&request, &reply).unwrap();
        assert_eq!((got.access, got.bytes), (Access::Contents, 5));
        got.path
            .map(|path| String::from_utf8(path.to_vec()).unwrap())
    }

    fn attached() -> Paths {
        let mut paths = Paths::default();
        let request = message(kind::ATTACH, &[&fid(0), &[0; 12]]);
        paths.follow(&request, &message(kind::ATTACH + 1, &[&[0; 13]]));
        paths
    }

    #[test]
    fn walks_give_files_their_paths() {
        let mut paths = attached();
        walk(&mut paths, 0, 1, &["usr", "lib"], 2);
        assert_eq!(read(&mut paths, 1).as_deref(), Some("usr/lib"));
        walk(&mut paths, 1, 2, &["..", "bin", "ls"], 3);
        assert_eq!(read(&mut paths, 2).as_deref(), Some("usr/bin/ls"));
        walk(&mut paths, 2, 3, &[], 0);
        assert_eq!(read(&mut paths, 3).as_deref(), Some("usr/bin/ls"));
        // The guest uses the fid for another file.
        walk(&mut paths, 0, 3, &["etc"], 1);
        assert_eq!(read(&mut paths, 3).as_deref(), Some("etc"));
        // The name at the end is missing on the server.
        walk(&mut paths, 0, 4, &["usr", "x"], 1);
        assert_eq!(read(&mut paths, 4), None);
        paths.follow(
            &message(kind::CLUNK, &[&fid(3)]),
            &message(kind::CLUNK + 1, &[]),
        );
        assert_eq!(read(&mut paths, 3), None);
    }

    #[test]
    fn errors_and_short_messages_are_no_reads() {
        let mut paths = attached();
        walk(&mut paths, 0, 1, &["file"], 1);
        let request = message(kind::READ, &[&fid(1), &[0; 12]]);
        let error = message(7, &[&5_u32.to_le_bytes()]);
        assert_eq!(paths.follow(&request, &error), None);
        let reply = message(kind::READ + 1, &[&5_u32.to_le_bytes(), b"hello"]);
        for len in 0..LEN_OF_HEADER + 4 {
            assert_eq!(paths.follow(&request[..len], &reply), None, "{len}");
            assert_eq!(paths.follow(&request, &reply[..len]), None, "{len}");
        }
    }

    #[test]
    fn a_path_that_is_too_long_has_no_name() {
        let mut paths = attached();
        let name = "n".repeat(255);
        walk(&mut paths, 0, 1, &[&name], 1);
        for n in 1..16 {
            walk(&mut paths, n, n + 1, &[&name], 1);
        }
        assert_eq!(
            read(&mut paths, 16).map(|path| path.len()),
            Some(16 * 256 - 1)
        );
        walk(&mut paths, 16, 17, &[&name], 1);
        assert_eq!(read(&mut paths, 17), None);
    }
}
