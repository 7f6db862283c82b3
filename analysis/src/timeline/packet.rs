//! The messages of Perfetto's trace format that a timeline has, with the numbers of their fields
//! (protos/perfetto/trace of Perfetto).

use prost::Message;

/// `TracePacket`, except that of a slice ([`super::slices`]).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Packet {
    #[prost(message, optional, tag = "6")]
    pub clocks: Option<ClockSnapshot>,
    /// The sequence to which names, clocks and defaults belong.
    #[prost(uint32, tag = "10")]
    pub sequence: u32,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<Interned>,
    /// [`SequenceFlags`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub defaults: Option<Defaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<Track>,
}

/// `TracePacket.SequenceFlags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SequenceFlags {
    /// Names, clocks and defaults begin here (`SEQ_INCREMENTAL_STATE_CLEARED`).
    Cleared = 1,
    /// The packet needs them (`SEQ_NEEDS_INCREMENTAL_STATE`).
    Needed = 2,
}

/// `TracePacketDefaults`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Defaults {
    #[prost(message, optional, tag = "11")]
    pub events: Option<EventDefaults>,
    /// The clock of timestamps.
    #[prost(uint32, tag = "58")]
    pub clock: u32,
}

/// `TrackEventDefaults`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventDefaults {
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
}

/// `ClockSnapshot`: values of clocks at the same time.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// In ns, which stand for instructions.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
    /// Each timestamp is the difference from the one before it in the sequence.
    #[prost(bool, optional, tag = "3")]
    pub is_incremental: Option<bool>,
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
