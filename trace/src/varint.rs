//! Numbers of variable length: seven bits a byte, the lowest first, bit 7 set in all except the
//! last one (LEB128). A signed number is mapped to an unsigned one whose bit 0 is the sign.

use crate::Error;

/// Appends `value`, in 1 to 10 bytes.
#[inline]
pub fn push(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number.
#[inline]
pub(crate) fn push_signed(out: &mut Vec<u8>, value: i64) {
    push(out, (value << 1 ^ value >> 63).cast_unsigned());
}

/// Appends the length of `bytes`, and the bytes.
pub(crate) fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads numbers and bytes from the front of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(
    /// The bytes that are left.
    pub &'a [u8],
);

impl<'a> Cursor<'a> {
    /// Reads a number.
    ///
    /// # Errors
    /// The bytes end, or the number has more than 64 bits.
    #[inline]
    pub fn number(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Error::Damaged)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::Damaged)
    }

    /// Reads a signed number.
    ///
    /// # Errors
    /// As [`Cursor::number`].
    #[inline]
    pub(crate) fn signed(&mut self) -> Result<i64, Error> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Reads a number of 32 bits.
    ///
    /// # Errors
    /// As [`Cursor::number`], or it has more bits.
    pub(crate) fn word(&mut self) -> Result<u32, Error> {
        u32::try_from(self.number()?).map_err(|_| Error::Damaged)
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub(crate) fn take(&mut self, count: u64) -> Result<&'a [u8], Error> {
        let count = usize::try_from(count).map_err(|_| Error::Damaged)?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Error::Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads bytes after their length.
    ///
    /// # Errors
    /// There are fewer.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let count = self.number()?;
        self.take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_make_a_round_trip(value: u64, signed: i64) {
            let mut out = Vec::new();
            push(&mut out, value);
            push_signed(&mut out, signed);
            let mut cursor = Cursor(&out);
            prop_assert_eq!(cursor.number().unwrap(), value);
            prop_assert_eq!(cursor.signed().unwrap(), signed);
            prop_assert!(cursor.0.is_empty());
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let max = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
        assert_eq!(Cursor(&max).number().unwrap(), u64::MAX);
        let mut more = max;
        more[9] = 2;
        for bytes in [&[][..], &[0x80], &max[..9], &more, &[0x80; 20]] {
            assert!(Cursor(bytes).number().is_err(), "{bytes:x?}");
        }
        assert!(Cursor(&[5, 1, 2]).bytes().is_err());
    }
}
