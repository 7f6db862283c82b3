//! Packets on a connection: `$`, the text, `#` and a checksum of two digits.
//!
//! Each side acknowledges a packet by `+`, or asks for it again by `-`, until the client switches
//! this off. A byte 3 outside of a packet interrupts the target.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum size of the text of a packet in bytes, in both directions.
pub(crate) const MAX_PACKET: usize = 0x2_0000;
/// Size of a read from the connection.
const READ_SIZE: usize = 0x4000;
/// Bytes that are kept while the target runs. A client that sends more than this is not one that
/// waits for a stop.
const MAX_PENDING: usize = MAX_PACKET + READ_SIZE;

const INTERRUPT: u8 = 3;

/// A connection to a client: a stream that tells whether a read would block.
pub trait Connection: Read + Write {
    /// Returns whether a read would return at once, with data or with the end of the stream.
    fn is_readable(&mut self) -> io::Result<bool>;
}

macro_rules! connection {
    ($($stream:ty),*) => {$(
        impl Connection for $stream {
            fn is_readable(&mut self) -> io::Result<bool> {
                let mut descriptors = [PollFd::new(self, PollFlags::IN)];
                loop {
                    match poll(&mut descriptors, Some(&Timespec::default())) {
                        Err(rustix::io::Errno::INTR) => {}
                        result => return Ok(result? > 0),
                    }
                }
            }
        }
    )*};
}

connection!(UnixStream, TcpStream);

/// The packets of a connection.
#[derive(Debug)]
pub(super) struct Packets<C> {
    connection: C,
    /// Bytes that were received and not yet used: those from `used` on.
    received: Vec<u8>,
    used: usize,
    acknowledge: bool,
    /// The packet that was sent last, for a client that asks for it again.
    last_sent: Vec<u8>,
}

/// Whether an interruption was received while the target runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    None,
    Interrupt,
    Closed,
}

impl<C: Connection> Packets<C> {
    pub(super) fn new(connection: C) -> Self {
        let received = Vec::new();
        Self {
            connection,
            received,
            used: 0,
            acknowledge: true,
            last_sent: Vec::new(),
        }
    }

    /// Ends the acknowledgements, beginning with the next packet.
    pub(super) fn stop_acknowledging(&mut self) {
        self.acknowledge = false;
    }

    /// Waits for a packet and returns its text, or `None` at the end of the connection.
    /// An interruption has no effect here, as the target does not run.
    pub(super) fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.next_byte()? {
                None => return Ok(None),
                Some(b'$') => match self.receive_text()? {
                    None => return Ok(None),
                    Some(Ok(text)) => {
                        self.answer(b"+")?;
                        return Ok(Some(text));
                    }
                    Some(Err(WrongChecksum)) => self.answer(b"-")?,
                },
                Some(b'-') if self.acknowledge => {
                    self.connection.write_all(&self.last_sent)?;
                    self.connection.flush()?;
                }
                Some(_) => {}
            }
        }
    }

    /// Reads the rest of a packet. `None` is the end of the connection.
    fn receive_text(&mut self) -> io::Result<Option<Result<Vec<u8>, WrongChecksum>>> {
        let mut text = Vec::new();
        loop {
            match self.next_byte()? {
                None => return Ok(None),
                Some(b'#') => break,
                // The client has given up the packet and begins another one.
                Some(b'$') => text.clear(),
                Some(byte) if text.len() < MAX_PACKET => text.push(byte),
                Some(_) => {
                    let why = "a packet of the debugger is longer than the server accepts";
                    return Err(io::Error::new(ErrorKind::InvalidData, why));
                }
            }
        }
        let (Some(high), Some(low)) = (self.next_byte()?, self.next_byte()?) else {
            return Ok(None);
        };
        let is_right = !self.acknowledge || [high, low] == checksum(&text);
        Ok(Some(if is_right {
            Ok(text)
        } else {
            Err(WrongChecksum)
        }))
    }

    /// Sends a packet. `text` must be escaped where it is binary.
    pub(super) fn send(&mut self, text: &[u8]) -> io::Result<()> {
        self.last_sent.clear();
        self.last_sent.push(b'$');
        self.last_sent.extend(text);
        self.last_sent.push(b'#');
        self.last_sent.extend(checksum(text));
        self.connection.write_all(&self.last_sent)?;
        self.connection.flush()
    }

    /// Looks for an interruption without waiting. Packets that arrive stay for later.
    pub(super) fn attention(&mut self) -> io::Result<Attention> {
        if self.received.len() - self.used < MAX_PENDING
            && self.connection.is_readable()?
            && !self.fill()?
        {
            return Ok(Attention::Closed);
        }
        while let Some(&byte) = self.received.get(self.used) {
            match byte {
                INTERRUPT => {
                    self.used += 1;
                    return Ok(Attention::Interrupt);
                }
                b'+' => self.used += 1,
                _ => break,
            }
        }
        Ok(Attention::None)
    }

    fn answer(&mut self, acknowledgement: &[u8]) -> io::Result<()> {
        if self.acknowledge {
            self.connection.write_all(acknowledgement)?;
            self.connection.flush()?;
        }
        Ok(())
    }

    fn next_byte(&mut self) -> io::Result<Option<u8>> {
        if self.used == self.received.len() && !self.fill()? {
            return Ok(None);
        }
        let byte = self.received[self.used];
        self.used += 1;
        Ok(Some(byte))
    }

    /// Reads more bytes, waiting for one, and returns whether there are any.
    fn fill(&mut self) -> io::Result<bool> {
        self.received.drain(..self.used);
        self.used = 0;
        let old = self.received.len();
        self.received.resize(old + READ_SIZE, 0);
        let count = loop {
            match self.connection.read(&mut self.received[old..]) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A client that is killed leaves data of ours unread.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break 0,
                Err(error) => {
                    self.received.truncate(old);
                    return Err(error);
                }
            }
        };
        self.received.truncate(old + count);
        Ok(count > 0)
    }
}

/// The checksum of a packet differs from that of its text.
#[derive(Debug)]
struct WrongChecksum;

/// Returns the two digits after `#`.
fn checksum(text: &[u8]) -> [u8; 2] {
    let sum = text.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
    [sum >> 4, sum & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A connection with all that the client sends.
    struct Script {
        sent: Cursor<Vec<u8>>,
        answers: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.sent.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.answers.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Connection for Script {
        fn is_readable(&mut self) -> io::Result<bool> {
            Ok(true)
        }
    }

    fn packets(sent: &[u8]) -> Packets<Script> {
        Packets::new(Script {
            sent: Cursor::new(sent.to_vec()),
            answers: Vec::new(),
        })
    }

    #[test]
    fn packets_are_acknowledged_until_the_client_ends_that() {
        let mut packets = packets(b"+$g#67\x03++$m0,1#00$m0,1#fa$p0#ff");
        assert_eq!(packets.receive().unwrap().as_deref(), Some(&b"g"[..]));
        assert_eq!(packets.receive().unwrap().as_deref(), Some(&b"m0,1"[..]));
        assert_eq!(packets.connection.answers, b"+-+");
        packets.stop_acknowledging();
        assert_eq!(packets.receive().unwrap().as_deref(), Some(&b"p0"[..]));
        assert_eq!(packets.receive().unwrap(), None);
        assert_eq!(packets.connection.answers, b"+-+");
    }

    #[test]
    fn a_packet_is_sent_again_if_the_client_asks_for_it() {
        let mut packets = packets(b"-$g#67");
        packets.send(b"OK").unwrap();
        packets.receive().unwrap();
        assert_eq!(packets.connection.answers, b"$OK#9a$OK#9a+");
    }

    #[test]
    fn an_endless_packet_ends_the_connection() {
        let mut sent = vec![b'$'];
        sent.resize(MAX_PACKET + 2, b'0');
        assert_eq!(
            packets(&sent).receive().unwrap_err().kind(),
            ErrorKind::InvalidData
        );
    }

    #[test]
    fn an_interruption_is_found_before_a_packet_only() {
        let mut packets = packets(b"+\x03$g\x03#6a");
        assert_eq!(packets.attention().unwrap(), Attention::Interrupt);
        // What was received stays for later. The connection has ended, which is noticed first.
        assert_eq!(packets.attention().unwrap(), Attention::Closed);
        assert_eq!(packets.receive().unwrap().as_deref(), Some(&b"g\x03"[..]));
    }
}
