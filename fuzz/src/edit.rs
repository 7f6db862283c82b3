//! Edits of an encoded state.
//!
//! A state from the fuzzer's bytes alone is almost never decoded. Edits of a good state are, and
//! each reaches another check.

use crate::input::Input;

/// Applies the edits of `input` to the first `limit` bytes of a state in the encoding of postcard.
///
/// Each edit is an offset of two bytes, a kind, and its operands. One kind replaces bytes by
/// others. The others replace an integer of variable length, so that the fields behind it keep
/// their values.
pub fn edit(state: &mut Vec<u8>, limit: usize, input: &mut Input<'_>) {
    while !input.is_empty() {
        let limit = limit.min(state.len());
        if limit == 0 {
            break;
        }
        let at = usize::from(input.u16()) % limit;
        let kind = input.u8();
        let (removed, inserted) = match kind % 4 {
            0 => {
                let removed = usize::from(kind >> 2 & 7);
                (removed, input.bytes(usize::from(kind >> 5)).to_vec())
            }
            width => {
                let value = match width {
                    1 => input.u8().into(),
                    2 => input.u32().into(),
                    _ => input.u64(),
                };
                // Shifted to the left, or with ones above it.
                let value = value << (kind >> 3 & 31);
                let value = if kind & 4 == 0 { value } else { !value };
                (varint_length(&state[at..]), varint(value))
            }
        };
        let end = state.len().min(at + removed);
        state.splice(at..end, inserted);
    }
}

/// Length of the integer at the front of `bytes`.
fn varint_length(bytes: &[u8]) -> usize {
    let continued = bytes.iter().take_while(|byte| **byte & 0x80 != 0);
    continued.count() + 1
}

/// Encodes an integer: seven bits in each byte, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
