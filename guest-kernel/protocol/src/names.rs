//! Lists of names in messages.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// A list of names, which need not be UTF-8: each is its length as `u32` little-endian, and its
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    /// Appends a name to `bytes`, from which [`Self::new`] can make a list.
    pub fn push(bytes: &mut Vec<u8>, name: &[u8]) {
        let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(name.get(..len as usize).unwrap_or(name));
    }

    /// The list in `bytes`.
    ///
    /// # Errors
    /// A name is cut off.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let cut = || Error::Malformed("a list of names is cut off".into());
            (_, rest) = first(rest).ok_or_else(cut)?;
        }
        Ok(Self(bytes))
    }

    /// The names in order.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (name, after) = first(rest)?;
            rest = after;
            Some(name)
        })
    }
}

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Names<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Deserialize::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The first name of a list, and the others.
fn first(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = list.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_names_that_were_added() {
        let names: [&[u8]; 4] = [b"/tmp/a b", b"", b"\xff\0\n", b"x"];
        let mut bytes = Vec::new();
        names.iter().for_each(|name| Names::push(&mut bytes, name));
        let list = Names::new(&bytes).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), names);
        assert_eq!(Names::new(&[]).unwrap().iter().count(), 0);
        for end in [1, 4, 11, bytes.len() - 1] {
            Names::new(&bytes[..end]).unwrap_err();
        }
        Names::new(&[0xff, 0xff, 0xff, 0xff, 1]).unwrap_err();
    }
}
