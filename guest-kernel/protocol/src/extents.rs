//! Where the records of a message are in the guest's memory.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// Bytes of one record: the kernel's `struct bts_struct`.
pub const RECORD_SIZE: usize = 24;

/// Maximum size in bytes of the records of one [`crate::ToHost::Records`], a multiple of
/// [`RECORD_SIZE`].
pub const MAX_RECORDS: usize = (4 << 20) / RECORD_SIZE * RECORD_SIZE;

/// A contiguous range of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Bytes of an [`Extent`] in a frame.
const EXTENT_SIZE: usize = 16;

/// A list of extents: {address, length}, `u64` little-endian each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents<'a>(&'a [u8]);

impl<'a> Extents<'a> {
    /// Appends an extent to `bytes`, from which [`Self::new`] can make a list.
    pub fn push(bytes: &mut Vec<u8>, extent: Extent) {
        bytes.extend_from_slice(&extent.address.to_le_bytes());
        bytes.extend_from_slice(&extent.len.to_le_bytes());
    }

    /// The list in `bytes`.
    ///
    /// # Errors
    /// The total length is not a multiple of [`RECORD_SIZE`], or is more than [`MAX_RECORDS`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let wrong = |why: std::fmt::Arguments<'_>| Err(Error::Malformed(why.to_string()));
        if !bytes.len().is_multiple_of(EXTENT_SIZE) {
            return wrong(format_args!("{} bytes are no extents", bytes.len()));
        }
        let extents = Self(bytes);
        let len = extents
            .iter()
            .try_fold(0u64, |sum, extent| sum.checked_add(extent.len))
            .unwrap_or(u64::MAX);
        if !len.is_multiple_of(RECORD_SIZE as u64) {
            return wrong(format_args!("{len} bytes are not whole records"));
        }
        if len > MAX_RECORDS as u64 {
            return wrong(format_args!("{len} bytes of records are too many"));
        }
        Ok(extents)
    }

    /// The extents in order.
    pub fn iter(self) -> impl Iterator<Item = Extent> + 'a {
        self.0.as_chunks::<EXTENT_SIZE>().0.iter().map(|bytes| {
            let (address, len) = bytes.split_at(8);
            let word = |bytes: &[u8]| {
                bytes
                    .iter()
                    .rev()
                    .fold(0, |word, b| word << 8 | u64::from(*b))
            };
            Extent {
                address: word(address),
                len: word(len),
            }
        })
    }
}

impl Serialize for Extents<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Extents<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Deserialize::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
