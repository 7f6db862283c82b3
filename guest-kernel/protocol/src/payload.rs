//! Reads the parts of a frame's payload. `name` is that of the message, for errors.

use crate::Error;

/// The error that a frame of the message `name` is malformed.
pub fn malformed(name: &'static str, why: impl std::fmt::Display) -> Error {
    Error::Malformed {
        name,
        why: why.to_string(),
    }
}

/// A payload that is UTF-8.
pub fn text<'a>(name: &'static str, payload: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(payload).map_err(|error| malformed(name, error))
}

/// The `u32` at the start of a payload, and the rest.
pub fn word<'a>(name: &'static str, payload: &'a [u8]) -> Result<(u32, &'a [u8]), Error> {
    let (word, rest) = payload
        .split_first_chunk::<4>()
        .ok_or_else(|| malformed(name, format_args!("{} bytes are too few", payload.len())))?;
    Ok((u32::from_le_bytes(*word), rest))
}

/// A `u32` that is 0 or 1.
pub fn flag(name: &'static str, word: u32) -> Result<bool, Error> {
    match word {
        0 | 1 => Ok(word == 1),
        _ => Err(malformed(name, format_args!("flag {word}"))),
    }
}

/// The `u64` at the start of a payload, and the rest.
pub fn long<'a>(name: &'static str, payload: &'a [u8]) -> Result<(u64, &'a [u8]), Error> {
    let ([low, high], rest) = some_words(name, payload)?;
    Ok((u64::from(high) << 32 | u64::from(low), rest))
}

/// The `u64` at the end of a payload.
pub fn last_long(name: &'static str, payload: &[u8]) -> Result<u64, Error> {
    let (value, rest) = long(name, payload)?;
    let [] = words(name, rest)?;
    Ok(value)
}

/// A byte string with its length as `u32` before it, and the rest.
pub fn prefixed<'a>(name: &'static str, payload: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Error> {
    let (len, rest) = word(name, payload)?;
    rest.split_at_checked(len as usize)
        .ok_or_else(|| malformed(name, format_args!("{} bytes instead of {len}", rest.len())))
}

/// The first `N` `u32` of a payload, and the rest.
pub fn some_words<'a, const N: usize>(
    name: &'static str,
    payload: &'a [u8],
) -> Result<([u32; N], &'a [u8]), Error> {
    let mut rest = payload;
    let mut words = [0; N];
    for value in &mut words {
        (*value, rest) = word(name, rest)?;
    }
    Ok((words, rest))
}

/// A payload of exactly `N` `u32`.
pub fn words<const N: usize>(name: &'static str, payload: &[u8]) -> Result<[u32; N], Error> {
    let (words, rest) = some_words(name, payload)?;
    if rest.is_empty() {
        Ok(words)
    } else {
        Err(malformed(
            name,
            format_args!("{} bytes instead of {}", payload.len(), N * 4),
        ))
    }
}
