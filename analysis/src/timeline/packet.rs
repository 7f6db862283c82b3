//! The messages of Perfetto's trace format that a timeline has, with the numbers of their fields
//! (protos/perfetto/trace of Perfetto).

use std::io;

use prost::Message;

use crate::Out;

/// The number of `Trace.packet`, with the type of a message (2).
const PACKET_FIELD: u8 = 1 << 3 | 2;
/// The only sequence of packets.
const SEQUENCE: u32 = 1;

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Packet {
    /// In ns, which stand for instructions.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence to which names and events belong.
    #[prost(uint32, tag = "10")]
    pub sequence: u32,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<Interned>,
    /// [`SequenceFlags`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<Track>,
}

/// `TracePacket.SequenceFlags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SequenceFlags {
    /// The names begin here (`SEQ_INCREMENTAL_STATE_CLEARED`).
    Cleared = 1,
    /// The packet needs names (`SEQ_NEEDS_INCREMENTAL_STATE`).
    Needed = 2,
}

/// `InternedData`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Interned {
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<EventName>,
}

/// `EventName`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventName {
    /// Identifier of the name, not 0.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(enumeration = "SliceKind", tag = "9")]
    pub kind: i32,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
}

/// `TrackEvent.Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
pub(super) enum SliceKind {
    /// `TYPE_UNSPECIFIED`.
    Unspecified = 0,
    /// `TYPE_SLICE_BEGIN`.
    Begin = 1,
    /// `TYPE_SLICE_END`.
    End = 2,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Track {
    /// Identifier of the track, not 0.
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(message, optional, tag = "3")]
    pub process: Option<Process>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<Thread>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(string, tag = "6")]
    pub name: String,
}

/// `ThreadDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Thread {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(int32, tag = "2")]
    pub tid: i32,
    #[prost(string, tag = "5")]
    pub name: String,
}

/// Writes packets.
pub(super) struct Packets<'a, 'b> {
    out: &'a mut Out<'b>,
    bytes: Vec<u8>,
}

impl<'a, 'b> Packets<'a, 'b> {
    pub(super) fn new(out: &'a mut Out<'b>) -> Self {
        let bytes = Vec::new();
        Self { out, bytes }
    }

    pub(super) fn write(&mut self, packet: Packet) -> io::Result<()> {
        let packet = Packet {
            sequence: SEQUENCE,
            ..packet
        };
        self.bytes.clear();
        self.bytes.push(PACKET_FIELD);
        packet.encode_length_delimited(&mut self.bytes)?;
        self.out.write_all(&self.bytes)
    }
}
