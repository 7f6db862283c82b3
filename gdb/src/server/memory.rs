//! Memory: reads, writes, searches and checksums.

use super::packet::MAX_PACKET;
use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED, from_binary, from_hex, push_binary, push_hex};
use crate::target::{Result, TargetError};

/// Bytes that a search or a checksum reads at once.
const CHUNK: usize = 0x1_0000;
/// Bytes of one search or checksum. The client cannot interrupt either.
const MAX_SCAN: u64 = 1 << 30;

/// Reads `ADDRESS,LENGTH`.
fn range(arguments: &mut Arguments<'_>) -> Result<(u64, usize)> {
    let address = arguments.number()?;
    arguments.expect(",")?;
    let length = usize::try_from(arguments.number()?).map_err(|_| MALFORMED)?;
    Ok((address, length))
}

/// Reads at most `length` bytes: fewer if later ones are unmapped.
fn read_some(session: &mut Session<'_>, address: u64, length: usize) -> Result<Vec<u8>> {
    let thread = session.thread()?;
    let mut bytes = vec![0; length];
    let count = session.target.read_memory(thread, address, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// GDB takes the text of an error for data here, so that an error must be a number: EFAULT if it is
/// not one.
fn number_of(error: TargetError) -> TargetError {
    match error {
        TargetError::Refused(_) | TargetError::Unsupported => TargetError::Errno(14),
        error => error,
    }
}

/// `m`: a read, in hexadecimal.
pub(super) fn read(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let (address, length) = range(&mut arguments)?;
    arguments.end()?;
    let bytes = read_some(session, address, length.min(MAX_PACKET / 2)).map_err(number_of)?;
    let mut reply = Vec::new();
    push_hex(&mut reply, &bytes);
    Ok(Outcome::Reply(reply))
}

/// `x`: a read, in binary.
pub(super) fn read_binary(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> Result<Outcome> {
    let (address, length) = range(&mut arguments)?;
    arguments.end()?;
    let bytes = read_some(session, address, length.min(MAX_PACKET)).map_err(number_of)?;
    let mut reply = vec![b'b'];
    push_binary(&mut reply, &bytes, MAX_PACKET);
    Ok(Outcome::Reply(reply))
}

/// `M`: a write, in hexadecimal.
pub(super) fn write(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    write_decoded(session, arguments, from_hex)
}

/// `X`: a write, in binary. One of no bytes is how GDB asks whether there is this packet.
pub(super) fn write_binary(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    write_decoded(session, arguments, from_binary)
}

fn write_decoded(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
    decode: fn(&[u8]) -> Result<Vec<u8>>,
) -> Result<Outcome> {
    let (address, length) = range(&mut arguments)?;
    arguments.expect(":")?;
    let bytes = decode(arguments.0)?;
    if bytes.len() != length {
        return Err(MALFORMED);
    }
    if length > 0 {
        let thread = session.thread()?;
        session.target.write_memory(thread, address, &bytes)?;
    }
    Outcome::ok()
}

/// `qSearch:memory:ADDRESS;LENGTH;PATTERN`: the first place at which the pattern is.
pub(super) fn search(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let mut address = arguments.number()?;
    arguments.expect(";")?;
    let mut left = arguments.number()?;
    arguments.expect(";")?;
    let pattern = from_binary(arguments.0)?;
    if pattern.is_empty() || pattern.len() > CHUNK || left > MAX_SCAN {
        return Err(MALFORMED);
    }
    // Each read has the end of the one before, in which the pattern may begin.
    let step = CHUNK - (pattern.len() - 1);
    while left >= pattern.len() as u64 {
        let length = left.min(CHUNK as u64) as usize;
        let bytes = read_some(session, address, length).map_err(number_of)?;
        if let Some(place) = bytes
            .windows(pattern.len())
            .position(|window| window == pattern)
        {
            return Ok(format!("1,{:x}", address.wrapping_add(place as u64)).into());
        }
        if bytes.len() < length {
            return Err(TargetError::Errno(14));
        }
        address = address.wrapping_add(step as u64);
        left = left.saturating_sub(step as u64);
    }
    Ok(Outcome::Reply(b"0".to_vec()))
}

/// `qCRC:ADDRESS,LENGTH`, for `compare-sections`.
pub(super) fn checksum(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let (mut address, mut left) = range(&mut arguments)?;
    arguments.end()?;
    if left as u64 > MAX_SCAN {
        return Err(MALFORMED);
    }
    let mut crc = !0;
    while left > 0 {
        let length = left.min(CHUNK);
        let bytes = read_some(session, address, length).map_err(number_of)?;
        if bytes.len() < length {
            return Err(TargetError::Errno(14));
        }
        crc = bytes.iter().fold(crc, |crc, &byte| crc32(crc, byte));
        address = address.wrapping_add(length as u64);
        left -= length;
    }
    Ok(format!("C{crc:x}").into())
}

/// Advances GDB's checksum, which is CRC-32 with the highest bit first, by a byte.
fn crc32(crc: u32, byte: u8) -> u32 {
    (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
        if crc >> 31 == 1 {
            crc << 1 ^ 0x04c1_1db7
        } else {
            crc << 1
        }
    })
}
