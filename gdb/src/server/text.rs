//! The text of packets: numbers, hexadecimal and escaped bytes, thread ids.

use crate::target::{Result, TargetError, ThreadId};

/// The error for a packet that does not have the format of its kind: EINVAL.
pub(super) const MALFORMED: TargetError = TargetError::Errno(22);

/// Which threads a packet is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadSelector {
    /// Each thread of each process.
    All,
    /// Any thread.
    Any,
    /// Each thread, or any, of this process.
    Process(u32),
    /// A thread of this process, or of any if the client knows no processes.
    Thread(Option<u32>, u32),
}

impl ThreadSelector {
    pub(super) fn matches(self, id: ThreadId) -> bool {
        match self {
            Self::All | Self::Any => true,
            Self::Process(process) => process == id.process,
            Self::Thread(process, thread) => {
                process.is_none_or(|process| process == id.process) && thread == id.thread
            }
        }
    }
}

/// Reads the arguments of a packet from left to right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arguments<'a>(pub &'a [u8]);

impl<'a> Arguments<'a> {
    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Skips `text` if it comes next, and returns whether it does.
    pub(super) fn skip(&mut self, text: &str) -> bool {
        match self.0.strip_prefix(text.as_bytes()) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<()> {
        if self.skip(text) {
            Ok(())
        } else {
            Err(MALFORMED)
        }
    }

    pub(super) fn end(self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(MALFORMED)
        }
    }

    /// Reads a hexadecimal number of 1 to 16 digits.
    pub(super) fn number(&mut self) -> Result<u64> {
        let digits = self
            .0
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        let (number, rest) = self.0.split_at(digits);
        let number = std::str::from_utf8(number).map_err(|_| MALFORMED)?;
        self.0 = rest;
        u64::from_str_radix(number, 16).map_err(|_| MALFORMED)
    }

    pub(super) fn number32(&mut self) -> Result<u32> {
        self.number()?.try_into().map_err(|_| MALFORMED)
    }

    /// Returns what comes before `separator`, or before the end, and skips the separator.
    pub(super) fn until(&mut self, separator: u8) -> &'a [u8] {
        let (item, rest) = match self.0.iter().position(|&byte| byte == separator) {
            Some(place) => (&self.0[..place], &self.0[place + 1..]),
            None => (self.0, &self.0[..0]),
        };
        self.0 = rest;
        item
    }

    /// Reads a thread id: `pPROCESS.THREAD`, `pPROCESS` or `THREAD`, each of which is a number,
    /// 0 for any or -1 for all.
    pub(super) fn threads(&mut self) -> Result<ThreadSelector> {
        if !self.skip("p") {
            return Ok(match self.number_or_all()? {
                None => ThreadSelector::All,
                Some(0) => ThreadSelector::Any,
                Some(thread) => ThreadSelector::Thread(None, thread),
            });
        }
        let process = self.number_or_all()?;
        let thread = if self.skip(".") {
            self.number_or_all()?
        } else {
            None
        };
        Ok(match (process, thread) {
            (None, _) => ThreadSelector::All,
            (Some(0), _) => ThreadSelector::Any,
            (Some(process), None | Some(0)) => ThreadSelector::Process(process),
            (Some(process), Some(thread)) => ThreadSelector::Thread(Some(process), thread),
        })
    }

    fn number_or_all(&mut self) -> Result<Option<u32>> {
        if self.skip("-1") {
            Ok(None)
        } else {
            self.number32().map(Some)
        }
    }
}

/// Decodes pairs of hexadecimal digits.
pub(super) fn from_hex(text: &[u8]) -> Result<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return Err(MALFORMED);
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(MALFORMED);
    text.chunks_exact(2)
        // Two digits are less than 256.
        .map(|pair| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect()
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends bytes as pairs of hexadecimal digits.
pub(super) fn push_hex(reply: &mut Vec<u8>, bytes: &[u8]) {
    reply.reserve(2 * bytes.len());
    for byte in bytes {
        reply.push(DIGITS[usize::from(byte >> 4)]);
        reply.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Appends bytes in the binary form of packets, as many as fit if the reply has at most `limit`
/// bytes, and returns how many those are.
pub(super) fn push_binary(reply: &mut Vec<u8>, bytes: &[u8], limit: usize) -> usize {
    for (done, &byte) in bytes.iter().enumerate() {
        let is_special = matches!(byte, b'#' | b'$' | b'}' | b'*');
        if reply.len() + 1 + usize::from(is_special) > limit {
            return done;
        }
        if is_special {
            reply.extend([b'}', byte ^ 0x20]);
        } else {
            reply.push(byte);
        }
    }
    bytes.len()
}

/// Decodes the binary form of packets.
pub(super) fn from_binary(text: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'}' => rest.next().ok_or(MALFORMED)? ^ 0x20,
            byte => byte,
        });
    }
    Ok(bytes)
}

/// Returns `text` with the characters replaced that XML gives a meaning, and without the control
/// characters that it does not allow.
pub(super) fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            character if character.is_control() || character > '\u{ffef}' => escaped.push('?'),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_ids_have_all_their_forms() {
        for (text, selector) in [
            ("0", ThreadSelector::Any),
            ("-1", ThreadSelector::All),
            ("1f", ThreadSelector::Thread(None, 31)),
            ("p1.2", ThreadSelector::Thread(Some(1), 2)),
            ("p1.-1", ThreadSelector::Process(1)),
            ("p1.0", ThreadSelector::Process(1)),
            ("p1", ThreadSelector::Process(1)),
            ("p0.0", ThreadSelector::Any),
            ("p-1.-1", ThreadSelector::All),
        ] {
            let mut arguments = Arguments(text.as_bytes());
            assert_eq!(arguments.threads().ok(), Some(selector), "{text}");
            assert!(arguments.is_empty(), "{text}");
        }
        for text in ["", "p", "x", "p1.", "-2", "100000000", "p1.-"] {
            assert!(Arguments(text.as_bytes()).threads().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_bounded() {
        assert_eq!(
            Arguments(b"ffffffffffffffff,1").number().ok(),
            Some(u64::MAX)
        );
        assert!(Arguments(b"10000000000000000").number().is_err());
        assert!(Arguments(b"+1").number().is_err());
        assert!(Arguments(b"").number().is_err());
        assert!(Arguments(b"100000000").number32().is_err());
    }

    #[test]
    fn binary_data_is_escaped_and_cut_before_the_limit() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut text = Vec::new();
        assert_eq!(push_binary(&mut text, &bytes, 1000), 256);
        assert_eq!(text.len(), 256 + 4);
        assert_eq!(from_binary(&text).ok(), Some(bytes));

        let mut text = b"F2;".to_vec();
        assert_eq!(push_binary(&mut text, b"a$b", 5), 1);
        assert_eq!(text, b"F2;a");
        assert!(from_binary(b"a}").is_err());
    }

    #[test]
    fn hexadecimal_text_has_whole_bytes() {
        let mut text = Vec::new();
        push_hex(&mut text, &[0, 0x5a, 0xff]);
        assert_eq!(text, b"005aff");
        assert_eq!(from_hex(b"005aFF").ok(), Some(vec![0, 0x5a, 0xff]));
        assert!(from_hex(b"0").is_err());
        assert!(from_hex(b"0g").is_err());
    }

    #[test]
    fn names_of_threads_make_no_markup() {
        assert_eq!(xml("a<b\"&'\u{1}\n"), "a&lt;b&quot;&amp;&apos;??");
    }
}
