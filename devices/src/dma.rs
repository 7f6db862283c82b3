//! Tells processors which pages of guest memory devices have written.
//!
//! Each write gets a new generation, which is stored for its pages. Each processor keeps the
//! generation up to which it has invalidated its caches. So every processor observes every write,
//! and one comparison tells a processor that there was no write.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use vm_memory::bitmap::{Bitmap, NewBitmap, RefSlice, WithBitmapSlice};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MmapRegion};

use crate::{GuestRam, lock};

const PAGE_SHIFT: u32 = 12;
/// Pages in a group, which covers 2 MiB.
const GROUP: usize = 512;

/// Pages whose generations are allocated, and skipped, together.
#[derive(Debug, Default)]
struct Group {
    /// The latest generation of any of its pages.
    latest: AtomicU64,
    pages: OnceLock<Box<[AtomicU64]>>,
}

impl Group {
    fn page(&self, page: usize) -> Option<&AtomicU64> {
        self.pages.get()?.get(page)
    }
}

/// The generation of the latest device write to each page of one region of guest memory. It is used
/// as the region's dirty bitmap.
#[derive(Debug, Default)]
pub struct DmaGenerations {
    groups: Vec<Group>,
    /// The generation of the latest write that is complete.
    latest: AtomicU64,
    /// Held while a write is recorded, so that generations complete in order.
    recording: Mutex<()>,
    /// See [`Self::with_owner`].
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl DmaGenerations {
    /// Has the region keep the value to which its memory belongs, until the last clone of the guest
    /// memory is dropped. vm-memory does not own memory that it has not mapped itself.
    #[must_use]
    pub fn with_owner(self, owner: impl Any + Send + Sync) -> Self {
        Self {
            owner: Some(Box::new(owner)),
            ..self
        }
    }

    /// The value to which the memory of the region belongs, if it is a `T`.
    pub fn owner<T: Any>(&self) -> Option<&T> {
        self.owner.as_ref()?.downcast_ref()
    }

    /// The generation of the latest write, or 0 if there was none.
    fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }

    /// Calls `written` with the number of each page that was written after `generation`, lowest
    /// first.
    fn written_since(&self, generation: u64, mut written: impl FnMut(u64)) {
        let is_newer = |latest: &AtomicU64| latest.load(Ordering::Relaxed) > generation;
        for (first, group) in (0..).step_by(GROUP).zip(&self.groups) {
            if !is_newer(&group.latest) {
                continue;
            }
            for (page, latest) in (first..).zip(group.pages.get().into_iter().flatten()) {
                if is_newer(latest) {
                    written(page);
                }
            }
        }
    }
}

impl<'a> WithBitmapSlice<'a> for DmaGenerations {
    type S = RefSlice<'a, Self>;
}

impl Bitmap for DmaGenerations {
    fn mark_dirty(&self, offset: usize, len: usize) {
        let Some(last) = len.checked_sub(1).map(|l| offset.saturating_add(l)) else {
            return;
        };
        let _recording = lock(&self.recording);
        let generation = self.latest.load(Ordering::Relaxed) + 1;
        for page in offset >> PAGE_SHIFT..=last >> PAGE_SHIFT {
            let Some(group) = self.groups.get(page / GROUP) else {
                break;
            };
            group.latest.store(generation, Ordering::Relaxed);
            let pages = group.pages.get_or_init(|| {
                std::iter::repeat_with(AtomicU64::default)
                    .take(GROUP)
                    .collect()
            });
            if let Some(latest) = pages.get(page % GROUP) {
                latest.store(generation, Ordering::Relaxed);
            }
        }
        self.latest.store(generation, Ordering::Release);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let page = offset >> PAGE_SHIFT;
        let group = self.groups.get(page / GROUP);
        group
            .and_then(|group| group.page(page % GROUP))
            .is_some_and(|latest| latest.load(Ordering::Relaxed) != 0)
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}

impl NewBitmap for DmaGenerations {
    fn with_len(len: usize) -> Self {
        let groups = len.div_ceil(GROUP << PAGE_SHIFT);
        Self {
            groups: std::iter::repeat_with(Group::default)
                .take(groups)
                .collect(),
            ..Self::default()
        }
    }
}

/// One processor's position among the device writes to guest memory.
#[derive(Debug)]
pub struct DmaObserver {
    ram: GuestRam,
    /// The generation that has been reported, of each region.
    reported: Vec<u64>,
}

impl DmaObserver {
    /// An observer of the writes to `ram` from now on.
    pub fn new(ram: GuestRam) -> Self {
        let reported = ram
            .iter()
            .map(|region| generations(region).latest())
            .collect();
        Self { ram, reported }
    }

    /// Calls `written` with the guest-physical address of each page that was written since the last
    /// call. Other observers do not change what this one reports.
    pub fn take(&mut self, mut written: impl FnMut(u64)) {
        for (region, reported) in self.ram.iter().zip(&mut self.reported) {
            let generations = generations(region);
            let latest = generations.latest();
            if latest == *reported {
                continue;
            }
            let start = region.start_addr().0;
            generations.written_since(*reported, |page| written(start + (page << PAGE_SHIFT)));
            *reported = latest;
        }
    }
}

/// The generations of the region itself: the trait gives a slice of them only.
fn generations(region: &vm_memory::GuestRegionMmap<DmaGenerations>) -> &DmaGenerations {
    let mapping: &MmapRegion<DmaGenerations> = region;
    mapping.bitmap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestAddress};

    const HIGH: u64 = 4 << 30;

    fn ram() -> GuestRam {
        let ranges = [(GuestAddress(0), 4 << 20), (GuestAddress(HIGH), 1 << 20)];
        GuestRam::from_ranges(&ranges).unwrap()
    }

    fn take(observer: &mut DmaObserver) -> Vec<u64> {
        let mut pages = Vec::new();
        observer.take(|gpa| pages.push(gpa));
        pages
    }

    fn since(generations: &DmaGenerations, generation: u64) -> Vec<u64> {
        let mut pages = Vec::new();
        generations.written_since(generation, |page| pages.push(page));
        pages
    }

    #[test]
    fn every_observer_sees_every_write_once() {
        let ram = ram();
        let mut observers = [(); 2].map(|()| DmaObserver::new(ram.clone()));
        ram.write_slice(&[1; 3], GuestAddress(0x1FFE)).unwrap();
        ram.write_slice(&[1], GuestAddress(HIGH + 0x3000)).unwrap();
        for observer in &mut observers {
            assert_eq!(take(observer), [0x1000, 0x2000, HIGH + 0x3000]);
            assert!(take(observer).is_empty());
        }
        ram.write_slice(&[1], GuestAddress(0x2000)).unwrap();
        for observer in &mut observers {
            assert_eq!(take(observer), [0x2000]);
        }
    }

    #[test]
    fn an_observer_starts_with_later_writes() {
        let ram = ram();
        ram.write_slice(&[1], GuestAddress(0x1000)).unwrap();
        let mut observer = DmaObserver::new(ram.clone());
        assert!(take(&mut observer).is_empty());
        ram.write_slice(&[1], GuestAddress(0x1000)).unwrap();
        assert_eq!(take(&mut observer), [0x1000]);
    }

    #[test]
    fn writes_of_several_threads_reach_an_observer() {
        const WRITES: u64 = 2_000;
        let ram = ram();
        let mut observer = DmaObserver::new(ram.clone());
        let mut seen = std::collections::BTreeSet::new();
        std::thread::scope(|scope| {
            let writer = |first: u64| {
                let ram = &ram;
                move || {
                    for n in 0..WRITES {
                        let page = first + n * 2 % 512;
                        ram.write_obj(n, GuestAddress(page << PAGE_SHIFT)).unwrap();
                    }
                }
            };
            let writers = [0, 1].map(|first| scope.spawn(writer(first)));
            while !writers.iter().all(|writer| writer.is_finished()) {
                observer.take(|gpa| seen.extend([gpa]));
            }
        });
        observer.take(|gpa| seen.extend([gpa]));
        assert_eq!(seen.len(), 512);
    }

    #[test]
    fn each_write_gives_its_pages_a_new_generation() {
        let generations = DmaGenerations::with_len(1 << 30);
        generations.mark_dirty(0x1FFF, 2);
        generations.mark_dirty((1 << 30) - 1, 1);
        generations.mark_dirty(511 << PAGE_SHIFT, 2 << PAGE_SHIFT);
        generations.mark_dirty(0x5000, 0);
        assert!(generations.dirty_at(0x2ABC) && !generations.dirty_at(0x5000));
        assert_eq!(since(&generations, 0), [1, 2, 511, 512, (1 << 18) - 1]);
        assert_eq!(since(&generations, 1), [511, 512, (1 << 18) - 1]);
        assert_eq!(generations.latest(), 3);
        assert!(since(&generations, 3).is_empty());
    }

    #[test]
    fn slices_count_from_their_start() {
        let generations = DmaGenerations::with_len(1 << 20);
        generations
            .slice_at(0x3000)
            .slice_at(0x800)
            .mark_dirty(0x900, 1);
        assert_eq!(since(&generations, 0), [4]);
    }

    #[test]
    fn writes_outside_the_region_are_ignored() {
        let generations = DmaGenerations::with_len(0x2001);
        generations.mark_dirty(0x1000, usize::MAX);
        generations.mark_dirty(usize::MAX, 5);
        assert!(!generations.dirty_at(usize::MAX));
        assert_eq!(
            since(&generations, 0).len(),
            GROUP - 1,
            "to the end of the group"
        );
        assert!(since(&DmaGenerations::default(), 0).is_empty());
    }
}
