//! Where what the user has named is, in the program of a process and in the kernel.

use std::ops::Range;

use vbts_protocol::Scope;
use vbts_trace::maps::Mapping;
use vbts_trace::profile::modules::{KERNEL, KERNEL_START};

use super::Filter;
use super::object::is_module;
use super::point::PointPlace;
use super::space::{Areas, Space, Target};
use vbts_symbols::{CodePlace, Symbolizer, Wanted};

/// Bytes around an address without a function in which the straight line to it is expected.
const SURROUNDINGS: u64 = 4096;
/// Number of files whose places are kept. When it is reached, all are dropped.
const MAX_FILES: usize = 1 << 10;

/// What a file has of what the user has named: offsets, or addresses of the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct FilePlaces {
    points: [Vec<CodePlace>; 2],
    areas: Vec<(Range<u64>, u8)>,
}

impl Filter {
    /// Finds what the user has named in the program of a process.
    pub(super) fn space(&mut self, mappings: &[Mapping], symbols: &mut Symbolizer) -> Space {
        let (mut space, mut areas) = (Space::default(), Vec::new());
        self.add_addresses(&mut space, &mut areas, 0..KERNEL_START);
        for mapping in mappings {
            let name = mapping.name.as_str();
            for (at, (object, flags)) in self.filters.objects().enumerate() {
                if object.name().is_some_and(|object| is_module(name, object)) {
                    areas.push((mapping.start..mapping.end, flags));
                    if let Some(is_found) = self.objects_found.get_mut(at) {
                        *is_found = true;
                    }
                }
            }
            let places = match self.files.get(name) {
                Some(places) => places.clone(),
                None => {
                    let places = self.places(Some(name), symbols);
                    if self.files.len() >= MAX_FILES {
                        self.files.clear();
                    }
                    self.files.insert(name.into(), places.clone());
                    places
                }
            };
            let len = mapping.end - mapping.start;
            let address = |offset: u64| {
                let distance = offset.wrapping_sub(mapping.offset);
                (distance < len).then(|| mapping.start + distance)
            };
            for (points, of_file) in space.points.iter_mut().zip(&places.points) {
                points.extend(of_file.iter().filter_map(|place| {
                    let at = address(place.at)?;
                    Some(Target {
                        at,
                        start: at.saturating_sub(place.at.saturating_sub(place.start)),
                        end: at.saturating_add(place.end.saturating_sub(place.at)),
                    })
                }));
            }
            areas.extend(places.areas.iter().filter_map(|(range, flags)| {
                let start = address(range.start)?;
                Some((start..start.saturating_add(range.end - range.start), *flags))
            }));
        }
        space.areas = Areas::new(&areas);
        space
    }

    /// Finds what the user has named in the kernel.
    pub(super) fn kernel_space(&mut self, symbols: &mut Symbolizer) -> Space {
        let (mut space, mut areas) = (Space::default(), Vec::new());
        self.add_addresses(&mut space, &mut areas, KERNEL_START..u64::MAX);
        for (at, (object, flags)) in self.filters.objects().enumerate() {
            if object.name() == Some(KERNEL) {
                areas.push((KERNEL_START..u64::MAX, flags));
                if let Some(is_found) = self.objects_found.get_mut(at) {
                    *is_found = true;
                }
            }
        }
        if self.scope != Scope::User {
            let places = self.places(None, symbols);
            for (points, of_file) in space.points.iter_mut().zip(&places.points) {
                points.extend(of_file.iter().map(|place| Target {
                    at: place.at,
                    start: place.start,
                    end: place.end,
                }));
            }
            areas.extend(places.areas);
        }
        space.areas = Areas::new(&areas);
        space
    }

    /// Adds what the user has named by addresses in `half` of the address space.
    fn add_addresses(
        &mut self,
        space: &mut Space,
        areas: &mut Vec<(Range<u64>, u8)>,
        half: Range<u64>,
    ) {
        for (which, point) in self.filters.points().into_iter().enumerate() {
            if let Some(PointPlace::Address(at)) = point.map(|point| &point.place)
                && half.contains(at)
            {
                space.points[which].push(Target {
                    at: *at,
                    start: at.saturating_sub(SURROUNDINGS),
                    end: at.saturating_add(SURROUNDINGS),
                });
                self.points_found[which] = true;
            }
        }
        for (at, (object, flags)) in self.filters.objects().enumerate() {
            if let Some(range) = &object.range {
                areas.push((range.clone(), flags));
                if let Some(is_found) = self.objects_found.get_mut(at) {
                    *is_found = true;
                }
            }
        }
    }

    /// Finds what the user has named in the file that is mapped as `name`, or in that of the
    /// kernel.
    fn places(&mut self, name: Option<&str>, symbols: &mut Symbolizer) -> FilePlaces {
        let mut places = FilePlaces::default();
        for (which, point) in self.filters.points().into_iter().enumerate() {
            if let Some(point) = point {
                places.points[which] = point.place.find(name, symbols);
                self.points_found[which] |= !places.points[which].is_empty();
            }
        }
        for (at, (object, flags)) in self.filters.objects().enumerate() {
            if let Some(function) = object.function() {
                let found = symbols.resolve(name, &Wanted::Code(function.into()));
                if let Some(is_found) = self.objects_found.get_mut(at) {
                    *is_found |= !found.is_empty();
                }
                let ranges = found.iter().map(|place| (place.start..place.end, flags));
                places.areas.extend(ranges);
            }
        }
        places
    }
}
