//! Snapshots in a file: another process that replays the same recording goes to any of them without
//! a run from the start.
//!
//! The first snapshot is not in the file: every replay begins there. Of the others, a selection is,
//! with the pages that differ from the selected one before. The contents of pages are in the order
//! of their addresses, so that the versions of a page follow each other, and zstd finds what they
//! have in common.
//!
//! ```text
//! magic, format, key, then a stream of zstd: size of the postcard, postcard, contents of pages
//! CRC-32 of all of that
//! ```
//!
//! A file can be damaged, or written by another program: its sizes are limited, its times and
//! places are checked, and the states of devices, processors and TLBs refuse values that they never
//! have when they are restored.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vbts_host::exit::Failure;

use super::selection::select;
use super::snapshot::Snapshot;
use super::{History, ReplayObserver};
use crate::board::MAX_DEADLINE;
use crate::machine::{End, Machine};
use crate::memory::{PAGE, Page, ZEROS, ranges};

/// First bytes of a file.
const MAGIC: [u8; 8] = *b"vbtssnap";
/// Number of the format. Another one is not read.
const FORMAT: u32 = 1;
/// Size in bytes of a [`SnapshotKey`].
const KEY: usize = 32;
/// Size in bytes of what precedes the stream.
const HEADER: usize = MAGIC.len() + size_of::<u32>() + KEY;
/// Size in bytes of the checksum.
const CHECKSUM: usize = 4;
/// Maximum size in bytes of everything except the contents of pages.
const MAX_METADATA: usize = 32 << 20;
/// Snapshots of a file, at most.
const MAX_SNAPSHOTS: usize = 64;
/// Snapshots beyond that because they are needed, at most.
const MAX_NEEDED: usize = 16;
/// Part of the limit of a file below which it stays if it can.
const PREFERRED: usize = 4;
/// Level of zstd. A higher one makes the first session wait.
const LEVEL: i32 = 1;

/// The identity of a replay: two replays with the same one are the same run of the same program
/// `vbts`.
pub type SnapshotKey = [u8; KEY];

/// Why snapshots cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotFileError {
    /// The snapshots need more room than they may have.
    #[error("the snapshots are larger than the limit")]
    TooLarge,
    /// The file was not written by this version, or for another recording.
    #[error("the file has no snapshots of this recording by this version of vbts")]
    Foreign,
    /// The file was cut off or changed.
    #[error("the file is damaged: {0}")]
    Damaged(&'static str),
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The machine of the replay cannot have snapshots.
    #[error("{0}")]
    Machine(Failure),
}

use SnapshotFileError::{Damaged, Foreign, TooLarge};

/// Everything in a file except the contents of pages. `S` is a [`Snapshot`].
#[derive(Debug, Serialize, Deserialize)]
struct Metadata<S> {
    /// What the owner of the history needs besides.
    #[serde(with = "serde_bytes")]
    facts: Vec<u8>,
    end: Option<(u64, End)>,
    /// Oldest first, without the first one of the history.
    snapshots: Vec<S>,
    /// By address, then by snapshot.
    versions: Vec<Version>,
    /// Number of contents of pages that follow.
    contents: u32,
}

/// A page that has other contents from a snapshot on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Version {
    /// Guest-physical address.
    gpa: u64,
    /// Number of the snapshot in the file.
    snapshot: u16,
    /// Number of the contents; `None` is zeros.
    contents: Option<u32>,
}

impl History {
    /// Writes a selection of the snapshots. Their pages have a quarter of `limit` bytes at most
    /// before they are compressed; or if all selections are larger, the smallest one is written.
    /// The last snapshots before each of the times `needed`, in ns, are in every selection.
    /// `facts` come back from [`Self::read`].
    ///
    /// # Errors
    /// Even the smallest selection is larger than `limit`, or `file` cannot be written.
    pub fn write(
        &self,
        file: &mut dyn Write,
        key: &SnapshotKey,
        facts: Vec<u8>,
        needed: &[u64],
        limit: usize,
    ) -> Result<(), SnapshotFileError> {
        let (chosen, versions, contents) = self.choose(needed, limit)?;
        let metadata = Metadata {
            facts,
            end: self.end,
            snapshots: chosen.iter().map(|n| &self.snapshots[*n]).collect(),
            versions,
            contents: u32::try_from(contents.len()).map_err(|_| TooLarge)?,
        };
        let metadata = postcard::to_allocvec(&metadata).map_err(|_| TooLarge)?;
        if metadata.len() > MAX_METADATA {
            return Err(TooLarge);
        }
        let mut file = Checked::new(file);
        file.write_all(&MAGIC)?;
        file.write_all(&FORMAT.to_le_bytes())?;
        file.write_all(key)?;
        let mut stream = zstd::stream::write::Encoder::new(&mut file, LEVEL)?;
        stream.write_all(&(metadata.len() as u64).to_le_bytes())?;
        stream.write_all(&metadata)?;
        for page in contents {
            stream.write_all(page)?;
        }
        stream.finish()?;
        file.finish()?;
        Ok(())
    }

    /// The selected snapshots, by their numbers, with their pages and the contents of those.
    #[expect(clippy::type_complexity, reason = "three parts of one file")]
    fn choose(
        &self,
        needed: &[u64],
        limit: usize,
    ) -> Result<(Vec<usize>, Vec<Version>, Vec<&Page>), SnapshotFileError> {
        let times: Vec<u64> = self.times().collect();
        let mut count = MAX_SNAPSHOTS;
        loop {
            let chosen = select(&times, needed, count);
            let (versions, contents) = self.versions_of(&chosen);
            let size = contents.len() * size_of::<Page>();
            if size <= limit / PREFERRED || count == 0 && size <= limit {
                return Ok((chosen, versions, contents));
            }
            if count == 0 {
                return Err(TooLarge);
            }
            count = chosen.len().min(count) / 2;
        }
    }

    /// The pages that differ between the first snapshot and the `chosen` ones, in their order, and
    /// the different contents.
    fn versions_of(&self, chosen: &[usize]) -> (Vec<Version>, Vec<&Page>) {
        let first = self.snapshots.first().map_or(0, |snapshot| snapshot.time);
        let times = chosen.iter().map(|n| self.snapshots[*n].time);
        let times: Vec<u64> = times.collect();
        let (mut versions, mut contents) = (Vec::new(), Vec::new());
        let mut numbers = HashMap::new();
        for gpa in self.pages.addresses() {
            let mut before = self.pages.find(gpa, first);
            for (snapshot, time) in (0..).zip(&times) {
                let page = self.pages.find(gpa, *time);
                if page.map(Arc::as_ptr) == before.map(Arc::as_ptr) {
                    continue;
                }
                before = page;
                let contents = page.map(|page| {
                    *numbers.entry(Arc::as_ptr(page)).or_insert_with(|| {
                        contents.push(&**page);
                        contents.len() as u32 - 1
                    })
                });
                versions.push(Version {
                    gpa,
                    snapshot,
                    contents,
                });
            }
        }
        (versions, contents)
    }

    /// Reads snapshots that [`Self::write`] has written with this `key`, of at most `limit` bytes.
    /// `machine` has not run yet, and neither has the history. Returns the facts that were written.
    ///
    /// # Errors
    /// The file is damaged, or has other snapshots. The history then has none of them.
    pub fn read(
        &mut self,
        machine: &mut Machine,
        observer: &mut dyn ReplayObserver,
        file: &mut dyn Read,
        key: &SnapshotKey,
        limit: usize,
    ) -> Result<Vec<u8>, SnapshotFileError> {
        let bytes = check(file, key, limit)?;
        let mut stream = zstd::stream::read::Decoder::new(&*bytes)?;
        let metadata = read_metadata(&mut stream)?;
        let mut contents = Vec::new();
        for _ in 0..metadata.contents {
            if contents.len() * size_of::<Page>() >= limit {
                return Err(Damaged("it is too large"));
            }
            let mut page = ZEROS;
            stream.read_exact(&mut page)?;
            contents.push(Arc::new(page));
        }
        self.begin(machine, observer)
            .map_err(SnapshotFileError::Machine)?;
        metadata.check(machine)?;
        let Metadata {
            facts,
            end,
            mut snapshots,
            versions,
            ..
        } = metadata;
        for version in &versions {
            snapshots[usize::from(version.snapshot)]
                .pages
                .push(version.gpa);
        }
        self.pages.extend(versions.iter().map(|version| {
            let time = snapshots[usize::from(version.snapshot)].time;
            let contents = version.contents.map(|n| contents[n as usize].clone());
            (version.gpa, time, contents)
        }));
        self.snapshots.extend(snapshots);
        self.end = end;
        self.thin(machine.now());
        Ok(facts)
    }

    /// Drops all snapshots but the first, at which it puts the machine.
    ///
    /// # Errors
    /// The machine cannot go there.
    pub fn forget(
        &mut self,
        machine: &mut Machine,
        observer: &mut dyn ReplayObserver,
    ) -> Result<(), Failure> {
        let first = self.times().next();
        if let Some(first) = first {
            self.restore(machine, first, observer)?;
        }
        while self.snapshots.len() > 1 {
            self.drop_snapshot(self.snapshots.len() - 1);
        }
        self.end = None;
        Ok(())
    }
}

impl Metadata<Snapshot> {
    /// Checks that the snapshots, their pages and the end of the run can be those of `machine`,
    /// which is at the first snapshot.
    fn check(&self, machine: &Machine) -> Result<(), SnapshotFileError> {
        let mut time = machine.now();
        for snapshot in &self.snapshots {
            if snapshot.time <= time || !snapshot.is_possible(machine.vcpus.len()) {
                return Err(Damaged("a snapshot has an impossible time"));
            }
            time = snapshot.time;
        }
        if self
            .end
            .is_some_and(|(end, _)| end < time || end >= MAX_DEADLINE)
        {
            return Err(Damaged("the run ends at an impossible time"));
        }
        let ranges = ranges(&machine.memory);
        let has = |gpa: u64| {
            let holds = |&(start, len): &(u64, u64)| gpa >= start && gpa - start < len;
            gpa.is_multiple_of(PAGE) && ranges.iter().any(holds)
        };
        let possible = |version: &Version| {
            has(version.gpa)
                && usize::from(version.snapshot) < self.snapshots.len()
                && version.contents.is_none_or(|n| n < self.contents)
        };
        let place = |version: &Version| (version.gpa, version.snapshot);
        let in_order = self.versions.is_sorted_by(|a, b| place(a) < place(b));
        if !in_order || !self.versions.iter().all(possible) {
            return Err(Damaged("a page is none of the machine"));
        }
        Ok(())
    }
}

/// Reads a file of at most `limit` bytes, and returns its stream.
fn check(
    file: &mut dyn Read,
    key: &SnapshotKey,
    limit: usize,
) -> Result<Vec<u8>, SnapshotFileError> {
    let most = (limit + MAX_METADATA) as u64;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Damaged("it is too large"));
    }
    let expected = [&MAGIC[..], &FORMAT.to_le_bytes(), key].concat();
    if !bytes.starts_with(&expected) {
        return Err(Foreign);
    }
    let Some((contents, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else {
        return Err(Damaged("it is too short"));
    };
    if crc32fast::hash(contents) != u32::from_le_bytes(*checksum) || contents.len() < HEADER {
        return Err(Damaged("its checksum is wrong"));
    }
    bytes.truncate(bytes.len() - CHECKSUM);
    bytes.drain(..HEADER);
    Ok(bytes)
}

fn read_metadata(stream: &mut impl Read) -> Result<Metadata<Snapshot>, SnapshotFileError> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_METADATA as u64 {
        return Err(Damaged("it is too large"));
    }
    let mut bytes = Vec::new();
    stream.take(len).read_to_end(&mut bytes)?;
    let decoded = postcard::take_from_bytes::<Metadata<Snapshot>>(&bytes);
    match decoded {
        Ok((metadata, [])) if metadata.snapshots.len() <= MAX_SNAPSHOTS + MAX_NEEDED => {
            Ok(metadata)
        }
        _ => Err(Damaged("its contents cannot be decoded")),
    }
}

/// Computes the checksum of what is written.
struct Checked<'a> {
    file: &'a mut dyn Write,
    checksum: crc32fast::Hasher,
}

impl<'a> Checked<'a> {
    fn new(file: &'a mut dyn Write) -> Self {
        let checksum = crc32fast::Hasher::new();
        Self { file, checksum }
    }

    fn finish(self) -> io::Result<()> {
        self.file
            .write_all(&self.checksum.finalize().to_le_bytes())?;
        self.file.flush()
    }
}

impl Write for Checked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.checksum
            .update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests;
