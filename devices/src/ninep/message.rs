//! Requests and replies as messages: their headers, their sizes, and errors.

use rustix::io::Errno;

use super::wire::{Encode, HEADER_LEN, RLERROR, Reader};

/// Largest message in either direction. Linux's virtio transport cannot send more than 500 KiB.
pub const MAX_MSIZE: u32 = 512 * 1024;
pub(super) const MIN_MSIZE: u32 = 4096;

/// Serves one request with `dispatch`, which gets its type and its body.
pub(super) fn serve(
    request: &[u8],
    reply: &mut Vec<u8>,
    dispatch: impl FnOnce(u8, &[u8], &mut Vec<u8>) -> Result<(), Errno>,
) {
    let (kind, tag, body) = match split(request) {
        Ok(parts) => parts,
        Err(tag) => return seal_error(reply, tag, Errno::INVAL),
    };
    start(reply, kind.wrapping_add(1), tag);
    match dispatch(kind, body, reply) {
        Ok(()) => seal(reply),
        Err(errno) => seal_error(reply, tag, errno),
    }
}

/// Answers Tversion. Returns the largest message of the session in bytes.
pub(super) fn negotiate(r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<u32, Errno> {
    let (msize, version) = (r.u32()?, r.string()?);
    if msize < MIN_MSIZE {
        return Err(Errno::INVAL);
    }
    let msize = msize.min(MAX_MSIZE);
    reply.put_u32(msize);
    reply.put_string(if version == b"9P2000.L" {
        version
    } else {
        b"unknown"
    });
    Ok(msize)
}

/// Type, tag and body of a request. The error is the tag (or NOTAG), if the request is too short or
/// its size is wrong.
fn split(request: &[u8]) -> Result<(u8, u16, &[u8]), u16> {
    let mut r = Reader::new(request);
    let (Ok(size), Ok(kind), Ok(tag)) = (r.u32(), r.u8(), r.u16()) else {
        return Err(u16::MAX);
    };
    let body = request.get(HEADER_LEN..size as usize).ok_or(tag)?;
    Ok((kind, tag, body))
}

fn start(reply: &mut Vec<u8>, kind: u8, tag: u16) {
    reply.clear();
    reply.put_u32(0);
    reply.put_u8(kind);
    reply.put_u16(tag);
}

fn seal(reply: &mut [u8]) {
    let len = reply.len();
    set_u32(reply, 0, len);
}

fn seal_error(reply: &mut Vec<u8>, tag: u16, errno: Errno) {
    start(reply, RLERROR, tag);
    reply.put_u32(errno.raw_os_error() as u32);
    seal(reply);
}

pub(super) fn set_u32(message: &mut [u8], at: usize, value: usize) {
    message[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}
