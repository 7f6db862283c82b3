//! Guest-physical RAM: from guest-physical addresses to host memory.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::mmu::code_map::CodeMap;
use crate::mmu::host_access::HostAccess;
use crate::mmu::reservation::Reservation;
use crate::mmu::written_pages::WrittenPages;
use crate::state::int::Int;

/// One contiguous range of guest RAM.
#[derive(Debug, Clone, Copy)]
struct Region {
    start: u64,
    len: u64,
    host: NonNull<u8>,
}

/// The guest's RAM: ranges of host memory, found by guest-physical address.
///
/// Each processor of a machine needs a clone of one value. A write by one of them then invalidates
/// the code that the others have decoded.
///
/// # Example
///
/// ```
/// use std::ptr::NonNull;
///
/// use vbts_cpu::GuestRam;
///
/// #[repr(align(4096))]
/// struct Page([u8; 4096]);
///
/// let page = Box::into_raw(Box::new(Page([7; 4096])));
/// let host = NonNull::new(page.cast::<u8>()).unwrap();
/// // SAFETY: the page is never freed, and no reference to it exists.
/// let ram = unsafe { GuestRam::new(&[(0x1000, 4096, host)]) };
/// assert_eq!(ram.read_u64(0x1008), Some(0x0707_0707_0707_0707));
/// assert_eq!(ram.read_u64(0x2000), None);
/// assert_eq!(ram.end(), 0x2000);
/// ```
#[derive(Debug, Clone)]
pub struct GuestRam {
    regions: Vec<Region>,
    /// First guest-physical address above all RAM.
    end: u64,
    /// The code that has been decoded from it.
    code_map: CodeMap,
    written: WrittenPages,
    /// See [`Self::in_reservation`].
    reservation: Option<Arc<Reservation>>,
}

// SAFETY: the pointers are to guest memory, which `new` requires to outlive this value and which is
// accessed by address only; no Rust reference to it is ever formed.
unsafe impl Send for GuestRam {}
// SAFETY: as above.
unsafe impl Sync for GuestRam {}

impl GuestRam {
    /// Describes RAM as ranges `(guest-physical start, length in bytes, host address)`, each
    /// page-aligned.
    ///
    /// # Safety
    /// Each host range must be valid for reads and writes for as long as the result or a clone of
    /// it lives, and no Rust reference may be held to it meanwhile.
    pub unsafe fn new(ranges: &[(u64, u64, NonNull<u8>)]) -> Self {
        let regions: Vec<Region> = ranges
            .iter()
            .map(|&(start, len, host)| Region { start, len, host })
            .collect();
        let end = regions.iter().map(|r| r.start + r.len).max().unwrap_or(0);
        Self {
            regions,
            end,
            code_map: CodeMap::new(end),
            written: WrittenPages::new(end),
            reservation: None,
        }
    }

    /// Notes that all of it lies in `reservation`, if that is so. Native code can access no other
    /// memory.
    #[must_use]
    pub fn in_reservation(self, reservation: &Arc<Reservation>) -> Self {
        let lies_inside = |r: &Region| reservation.has(r.host.as_ptr() as u64, r.len);
        let reservation = self
            .regions
            .iter()
            .all(lies_inside)
            .then(|| reservation.clone());
        Self {
            reservation,
            ..self
        }
    }

    /// The reservation in which all of it lies.
    pub(crate) fn reservation(&self) -> Option<&Arc<Reservation>> {
        self.reservation.as_ref()
    }

    /// First guest-physical address above all RAM.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The map of the code that has been decoded from it.
    #[inline(always)]
    pub(crate) fn code_map(&self) -> &CodeMap {
        &self.code_map
    }

    /// The pages that processors may have written.
    #[inline(always)]
    pub(crate) fn written(&self) -> &WrittenPages {
        &self.written
    }

    /// Takes the guest-physical addresses of the pages that processors may have written since the
    /// last call, lowest first. Each processor has to be told with
    /// [`SoftCpu::note_writable_pages`](crate::SoftCpu::note_writable_pages) before it runs again.
    pub fn take_written_pages(&self) -> Vec<u64> {
        self.written.take()
    }

    /// The host address of the RAM page that holds `gpa`, or `None` if `gpa` is not RAM.
    #[inline]
    pub fn page(&self, gpa: u64) -> Option<NonNull<u8>> {
        let page = gpa & !0xFFF;
        self.regions
            .iter()
            .find(|r| page.wrapping_sub(r.start) < r.len)
            .map(|r| {
                // SAFETY: `page` lies inside the region, by the test above.
                unsafe { r.host.add((page - r.start) as usize) }
            })
    }

    /// Reads the 8-byte-aligned quadword at `gpa`; `None` if it is not RAM.
    #[inline]
    pub fn read_u64(&self, gpa: u64) -> Option<u64> {
        let page = self.page(gpa)?;
        // SAFETY: an aligned quadword does not leave its page, and the page is RAM.
        Some(unsafe { u64::load(page.add((gpa & 0xFF8) as usize).as_ptr()) })
    }

    /// Writes `new` at `gpa`, which is aligned to its size, if the value there is `old`;
    /// atomically. Returns whether it was.
    pub(crate) fn replace<T: Int>(&self, gpa: u64, old: T, new: T) -> bool {
        let Some(page) = self.page(gpa) else {
            return false;
        };
        self.written.add(gpa);
        let offset = (gpa & 0xFFF) as usize & !(T::BYTES - 1);
        // SAFETY: an aligned value does not leave its page, and the page is RAM.
        unsafe { T::compare_exchange(page.add(offset).cast().as_ptr(), old, new) == old }
    }
}
