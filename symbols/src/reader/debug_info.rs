//! Whole units of `.debug_info`, each read when it is needed.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;

use gimli::{DebugInfo, Dwarf, LittleEndian, Unit};

use super::lines::Data;
use super::units::UnitPlace;

/// Maximum size in bytes of a unit that is read. The largest ones are whole programs that were
/// compiled as one unit.
const MAX_UNIT: u64 = 64 << 20;
/// Maximum number of units that are kept, and of their bytes.
const MAX_KEPT: usize = 64;
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Where `.debug_info` is.
#[derive(Debug)]
pub(super) enum Contents {
    /// In the file, at this offset.
    File(u64),
    /// In memory, because it is compressed in its file.
    Memory(Arc<[u8]>),
}

/// A unit.
pub(super) struct WholeUnit {
    /// Its entries.
    pub unit: Unit<Data>,
    /// Its offset in `.debug_info`.
    pub offset: u64,
    size: usize,
}

/// The units of a file.
pub(super) struct WholeUnits {
    dwarf: Arc<Dwarf<Data>>,
    file: File,
    contents: Contents,
    places: Vec<UnitPlace>,
    /// The offsets of the shortened units, in order, with their indices in `places`.
    shortened: Vec<(u64, usize)>,
    /// The units that were used last, the last one at the end, with their indices in `places`.
    kept: VecDeque<(usize, Rc<WholeUnit>)>,
}

impl WholeUnits {
    /// The units at `places` of `.debug_info` of `file`, of which `dwarf` has the other sections.
    pub(super) fn new(
        dwarf: Arc<Dwarf<Data>>,
        file: File,
        contents: Contents,
        places: Vec<UnitPlace>,
    ) -> Self {
        let shortened = places.iter().enumerate();
        let shortened = shortened.filter_map(|(index, place)| Some((place.shortened?, index)));
        Self {
            dwarf,
            file,
            contents,
            shortened: shortened.collect(),
            places,
            kept: VecDeque::new(),
        }
    }

    /// Number of units.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// What the file has, with shortened units.
    pub(super) fn dwarf(&self) -> &Dwarf<Data> {
        &self.dwarf
    }

    /// The index of the unit that has this offset among the shortened ones.
    pub(super) fn shortened(&self, offset: u64) -> Option<usize> {
        let found = self.shortened.binary_search_by_key(&offset, |(at, _)| *at);
        let (_, index) = self.shortened.get(found.ok()?)?;
        Some(*index)
    }

    /// The index of the unit that contains `offset`.
    pub(super) fn containing(&self, offset: u64) -> Option<usize> {
        let after = self.places.partition_point(|place| place.offset <= offset);
        let index = after.checked_sub(1)?;
        let place = self.places.get(index)?;
        (offset - place.offset < place.size).then_some(index)
    }

    /// The unit with this index; `None` if it is malformed, too large or cannot be read.
    pub(super) fn get(&mut self, index: usize) -> Option<Rc<WholeUnit>> {
        if let Some(at) = self.kept.iter().rposition(|(known, _)| *known == index) {
            let known = self.kept.remove(at)?;
            let unit = known.1.clone();
            self.kept.push_back(known);
            return Some(unit);
        }
        let unit = Rc::new(self.read(*self.places.get(index)?)?);
        self.kept.push_back((index, unit.clone()));
        let mut size: usize = self.kept.iter().map(|(_, unit)| unit.size).sum();
        while self.kept.len() > MAX_KEPT || size > MAX_KEPT_BYTES {
            let (_, oldest) = self.kept.pop_front()?;
            size -= oldest.size;
        }
        Some(unit)
    }

    fn read(&self, place: UnitPlace) -> Option<WholeUnit> {
        let bytes = self.bytes(place)?;
        let size = bytes.len();
        let info: DebugInfo<_> = Data::new(bytes, LittleEndian).into();
        let header = info.units().next().ok()??;
        Some(WholeUnit {
            unit: Unit::new(&self.dwarf, header).ok()?,
            offset: place.offset,
            size,
        })
    }

    fn bytes(&self, place: UnitPlace) -> Option<Arc<[u8]>> {
        if place.size > MAX_UNIT {
            return None;
        }
        let size = usize::try_from(place.size).ok()?;
        match &self.contents {
            Contents::File(at) => {
                let mut bytes = vec![0; size];
                let at = at.checked_add(place.offset)?;
                self.file.read_exact_at(&mut bytes, at).ok()?;
                Some(bytes.into())
            }
            Contents::Memory(all) => {
                let start = usize::try_from(place.offset).ok()?;
                Some(all.get(start..start.checked_add(size)?)?.into())
            }
        }
    }
}
