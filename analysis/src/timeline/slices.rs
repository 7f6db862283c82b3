//! Writes the packets of a timeline. Those of slices are most of them, and are made without
//! [`prost`].
//!
//! As those of Perfetto's own client library, each task has a sequence of its own. It begins with
//! defaults for its packets: their track, and a clock that counts from one packet to the next.

use std::io;

use prost::Message as _;

use super::packet::{
    Clock, ClockSnapshot, Defaults, EventDefaults, EventName, Interned, Packet, SequenceFlags,
};
use crate::Out;

/// Bytes that are written at once, and room for the packet of a slice behind them.
const CHUNK: usize = 1 << 16;
const MAX_SLICE: usize = 64;

/// `BUILTIN_CLOCK_BOOTTIME`, the clock of traces.
const TRACE_CLOCK: u32 = 6;
/// The first clock that belongs to a sequence.
const SEQUENCE_CLOCK: u32 = 64;

/// Tags: the numbers of fields and their wire types.
const PACKET: u8 = 1 << 3 | LENGTH_DELIMITED;
const TIMESTAMP: u8 = 8 << 3;
const SEQUENCE: u8 = 10 << 3;
const TRACK_EVENT: u8 = 11 << 3 | LENGTH_DELIMITED;
const SEQUENCE_FLAGS: u8 = 13 << 3;
const EVENT_TYPE: u8 = 9 << 3;
const EVENT_NAME: u8 = 10 << 3;
const LENGTH_DELIMITED: u8 = 2;

/// `TrackEvent.Type`.
const SLICE_BEGIN: u8 = 1;
const SLICE_END: u8 = 2;

/// A few bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Bytes {
    /// The first byte in the lowest bits.
    bits: u128,
    len: usize,
}

impl Bytes {
    #[inline(always)]
    fn new(bytes: &[u8]) -> Self {
        bytes
            .iter()
            .fold(Self::default(), |all, byte| all.and(*byte))
    }

    #[inline(always)]
    fn and(self, byte: u8) -> Self {
        Self {
            bits: self.bits | u128::from(byte) << (8 * self.len),
            len: self.len + 1,
        }
    }

    /// Appends a number of variable length.
    #[inline(always)]
    fn number(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self = self.and(value as u8 | 0x80);
            value >>= 7;
        }
        self.and(value as u8)
    }
}

/// The packets of a task's slices.
#[derive(Debug)]
pub(super) struct Sequence {
    number: u32,
    /// The fields of its packets that are always the same, behind the packet's tag and length.
    fields: Bytes,
    /// For each name that was written in the sequence, the field of the event that begins a slice.
    events: Vec<Bytes>,
    /// Timestamp of the last packet.
    clock: u64,
}

/// Writes packets.
pub(super) struct Packets<'a, 'b> {
    out: &'a mut Out<'b>,
    bytes: Box<[u8]>,
    /// Number of bytes that are not yet written.
    len: usize,
    /// Number of the last sequence.
    sequence: u32,
}

impl<'a, 'b> Packets<'a, 'b> {
    /// Begins with a sequence without slices.
    pub(super) fn new(out: &'a mut Out<'b>) -> Self {
        Self {
            out,
            bytes: vec![0; CHUNK + MAX_SLICE].into(),
            len: 0,
            sequence: 1,
        }
    }

    /// Writes a packet. Its sequence is the last one that has begun, unless it has one.
    pub(super) fn write(&mut self, mut packet: Packet) -> io::Result<()> {
        if packet.sequence == 0 {
            packet.sequence = self.sequence;
        }
        self.flush()?;
        let mut bytes = vec![PACKET];
        packet.encode_length_delimited(&mut bytes)?;
        self.out.write_all(&bytes)
    }

    /// Begins the sequence of a task, whose track is `track`.
    pub(super) fn begin(&mut self, track: u64) -> io::Result<Sequence> {
        self.sequence += 1;
        let clock = |id, is_incremental| Clock {
            id,
            timestamp: Some(0),
            is_incremental,
        };
        let clocks = vec![clock(TRACE_CLOCK, None), clock(SEQUENCE_CLOCK, Some(true))];
        self.write(Packet {
            clocks: Some(ClockSnapshot { clocks }),
            sequence_flags: Some(SequenceFlags::Cleared as u32),
            defaults: Some(Defaults {
                events: Some(EventDefaults { track_uuid: track }),
                clock: SEQUENCE_CLOCK,
            }),
            ..Packet::default()
        })?;
        let flags = SequenceFlags::Needed as u8;
        let fields = Bytes::new(&[PACKET, 0, SEQUENCE_FLAGS, flags, SEQUENCE]);
        Ok(Sequence {
            number: self.sequence,
            fields: fields.number(self.sequence.into()),
            events: Vec::new(),
            clock: 0,
        })
    }

    /// Writes that a slice begins. Its name is `text`, with a number of its own.
    #[inline(always)]
    pub(super) fn slice_begin<'n>(
        &mut self,
        sequence: &mut Sequence,
        clock: u64,
        name: u32,
        text: impl FnOnce() -> &'n str,
    ) -> io::Result<()> {
        let event = match sequence.events.get(name as usize) {
            Some(event) if event.len > 0 => *event,
            _ => self.intern(sequence, name, text())?,
        };
        self.slice(sequence, clock, event)
    }

    /// Writes that the innermost slice ends.
    #[inline(always)]
    pub(super) fn slice_end(&mut self, sequence: &mut Sequence, clock: u64) -> io::Result<()> {
        const EVENT: &[u8] = &[TRACK_EVENT, 2, EVENT_TYPE, SLICE_END];
        self.slice(sequence, clock, Bytes::new(EVENT))
    }

    /// Writes a name. Returns the event with it.
    #[cold]
    fn intern(&mut self, sequence: &mut Sequence, name: u32, text: &str) -> io::Result<Bytes> {
        // An identifier is not 0.
        let iid = u64::from(name) + 1;
        let event_names = vec![EventName {
            iid,
            name: text.to_owned(),
        }];
        self.write(Packet {
            sequence: sequence.number,
            interned_data: Some(Interned { event_names }),
            sequence_flags: Some(SequenceFlags::Needed as u32),
            ..Packet::default()
        })?;
        let len = 3 + Bytes::default().number(iid).len as u8;
        let event = [TRACK_EVENT, len, EVENT_TYPE, SLICE_BEGIN, EVENT_NAME];
        let event = Bytes::new(&event).number(iid);
        let at = name as usize;
        if sequence.events.len() <= at {
            sequence.events.resize(at + 1, Bytes::default());
        }
        if let Some(known) = sequence.events.get_mut(at) {
            *known = event;
        }
        Ok(event)
    }

    #[inline(always)]
    fn slice(&mut self, sequence: &mut Sequence, clock: u64, event: Bytes) -> io::Result<()> {
        let elapsed = clock.saturating_sub(sequence.clock);
        sequence.clock = clock;
        let time = Bytes::new(&[TIMESTAMP]).number(elapsed);
        let mut fields = sequence.fields;
        // The length is that behind the tag and itself. It is below 128.
        let len = fields.len - 2 + event.len + time.len;
        fields.bits |= (len as u128) << 8;
        self.put(fields);
        self.put(event);
        self.put(time);
        match self.len < CHUNK {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Appends bytes, for which there is room.
    #[inline(always)]
    fn put(&mut self, bytes: Bytes) {
        let rest = self.bytes.get_mut(self.len..).unwrap_or_default();
        if let Some(room) = rest.first_chunk_mut() {
            *room = bytes.bits.to_le_bytes();
            self.len += bytes.len;
        }
    }

    /// Writes what is not yet written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let len = std::mem::take(&mut self.len);
        self.out
            .write_all(self.bytes.get(..len).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Trace`.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Trace {
        #[prost(message, repeated, tag = "1")]
        packets: Vec<SlicePacket>,
    }

    /// `TracePacket` of a slice.
    #[derive(Clone, PartialEq, prost::Message)]
    struct SlicePacket {
        #[prost(uint64, optional, tag = "8")]
        timestamp: Option<u64>,
        #[prost(uint32, tag = "10")]
        sequence: u32,
        #[prost(message, optional, tag = "11")]
        event: Option<Event>,
        #[prost(message, optional, tag = "12")]
        interned: Option<Interned>,
        #[prost(uint32, tag = "13")]
        flags: u32,
    }

    /// `TrackEvent`.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Event {
        #[prost(uint32, tag = "9")]
        kind: u32,
        #[prost(uint64, optional, tag = "10")]
        name: Option<u64>,
    }

    #[test]
    fn slices_of_any_size_are_decoded() {
        // Numbers of one to ten bytes; 200 sequences have numbers of two.
        let clocks: Vec<u64> = (0..64).map(|bits| 1 << bits).collect();
        let mut bytes = Vec::new();
        let mut packets = Packets::new(&mut bytes);
        for task in 0..200 {
            let mut sequence = packets.begin(task).unwrap();
            for clock in &clocks {
                let name = *clock as u32 % 100_000;
                packets
                    .slice_begin(&mut sequence, *clock, name, || "a name")
                    .unwrap();
                packets.slice_end(&mut sequence, *clock).unwrap();
            }
        }
        packets.flush().unwrap();
        let trace = Trace::decode(bytes.as_slice()).unwrap();
        let mut found = trace.packets.iter();
        for task in 0..200 {
            let begin = found.next().unwrap();
            let number = task + 2;
            assert_eq!((begin.sequence, begin.flags), (number, 1));
            let (mut names, mut time) = (Vec::new(), 0);
            for clock in &clocks {
                let name = u64::from(*clock as u32 % 100_000) + 1;
                if !names.contains(&name) {
                    let packet = found.next().unwrap();
                    let interned = &packet.interned.as_ref().unwrap().event_names;
                    assert_eq!(
                        (interned[0].iid, interned[0].name.as_str()),
                        (name, "a name")
                    );
                    assert_eq!(packet.sequence, number);
                    names.push(name);
                }
                for (kind, name) in [(SLICE_BEGIN, Some(name)), (SLICE_END, None)] {
                    let packet = found.next().unwrap();
                    time += packet.timestamp.unwrap();
                    let kind = kind.into();
                    assert_eq!(packet.event, Some(Event { kind, name }));
                    assert_eq!((time, packet.sequence, packet.flags), (*clock, number, 2));
                }
            }
        }
        assert_eq!(found.next(), None);
    }
}
