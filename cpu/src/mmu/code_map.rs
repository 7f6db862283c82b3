//! The guest-physical memory that the processors of a machine have decoded code from.
//!
//! Each processor caches decoded code of its own. One map for all of them says which pages have
//! such code, so that a write by any processor is tracked. A write to decoded code clears the
//! page, and each other processor finds the page in its queue at the start of its next run. On
//! virtual time, where one processor runs at a time, a processor therefore never executes code that
//! another one has overwritten. On the host's time, a store by another processor that runs
//! meanwhile may be untracked, until that processor has taken the page out of its queue. A
//! serializing instruction then compares decoded code with memory (see
//! `VmmRequests::REVALIDATE_CODE`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that one bit of [`Shared`]'s words represents.
const GRANULE: u64 = 64;

/// The part of the map that all processors of a machine share.
#[derive(Debug)]
struct Shared {
    /// A word for each page: a bit for each granule with decoded code.
    pages: Box<[AtomicU64]>,
    /// The queue of each processor.
    queues: Mutex<Vec<Arc<Queue>>>,
}

/// The pages whose word another processor has set from zero or cleared.
#[derive(Debug, Default)]
struct Queue {
    /// Whether `pages` has any.
    is_pending: AtomicBool,
    pages: Mutex<PageSet>,
}

/// Page numbers, each once: a guest cannot make the set larger than its memory.
#[derive(Debug, Default)]
struct PageSet {
    numbers: Vec<u64>,
    /// Decoded code of one of them has been overwritten.
    is_overwritten: bool,
    /// A bit for each page of memory, up to the highest that was ever added.
    members: Vec<u64>,
}

impl PageSet {
    fn insert(&mut self, number: u64, is_overwritten: bool) {
        self.is_overwritten |= is_overwritten;
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.members.len() <= word {
            self.members.resize(word + 1, 0);
        }
        if self.members[word] & bit == 0 {
            self.members[word] |= bit;
            self.numbers.push(number);
        }
    }

    fn take(&mut self) -> CodeChanges {
        let numbers = std::mem::take(&mut self.numbers);
        for number in &numbers {
            self.members[(number / 64) as usize] &= !(1 << (number % 64));
        }
        CodeChanges {
            pages: numbers.into_iter().map(|number| number << 12).collect(),
            is_overwritten: std::mem::take(&mut self.is_overwritten),
        }
    }
}

/// Changes of the map by other processors.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CodeChanges {
    /// Guest-physical addresses of the pages of which another processor has decoded the first code,
    /// or overwritten the code. Whether writes to them are tracked may have changed, and decoded
    /// code of them is stale.
    pub pages: Vec<u64>,
    /// Whether code of one of them was overwritten.
    pub is_overwritten: bool,
}

/// A processor's view of the map. A clone is the view of another processor of the machine.
#[derive(Debug)]
pub(crate) struct CodeMap {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
}

impl CodeMap {
    /// No code in guest memory that ends at `ram_end`.
    pub(crate) fn new(ram_end: u64) -> Self {
        let pages = (0..ram_end >> 12).map(|_| AtomicU64::new(0)).collect();
        Self::join(Arc::new(Shared {
            pages,
            queues: Mutex::default(),
        }))
    }

    fn join(shared: Arc<Shared>) -> Self {
        let queue = Arc::new(Queue::default());
        lock(&shared.queues).push(queue.clone());
        Self { shared, queue }
    }

    /// The word of the page of `gpa`.
    fn word(&self, gpa: u64) -> Option<&AtomicU64> {
        self.shared.pages.get((gpa >> 12) as usize)
    }

    /// The word's value, or 0 outside RAM.
    fn granules(&self, gpa: u64) -> u64 {
        self.word(gpa)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Whether any code was decoded from the page of `gpa`.
    pub(crate) fn is_code(&self, gpa: u64) -> bool {
        self.granules(gpa) != 0
    }

    /// Whether code was decoded from a granule that overlaps the `len` bytes at `gpa`, which must
    /// not cross a page, or may have been: another processor has changed the map.
    pub(crate) fn may_overlap(&self, gpa: u64, len: usize) -> bool {
        self.granules(gpa) & Self::mask(gpa, len) != 0 || self.has_changes()
    }

    fn mask(gpa: u64, len: usize) -> u64 {
        let first = (gpa & 0xFFF) / GRANULE;
        let last = ((gpa & 0xFFF) + len.max(1) as u64 - 1).min(0xFFF) / GRANULE;
        (u64::MAX >> (63 - (last - first))) << first
    }

    /// Marks bytes as decoded. Returns whether they are the first of their page.
    pub(crate) fn add(&self, gpa: u64, len: usize) -> bool {
        let mask = Self::mask(gpa, len);
        let first = self.word(gpa).is_some_and(|word| {
            // Most bytes have been marked before, by another processor or for another block.
            word.load(Ordering::Relaxed) & mask != mask
                && word.fetch_or(mask, Ordering::AcqRel) == 0
        });
        if first {
            self.tell_others(gpa, false);
        }
        first
    }

    /// Forgets the code of the page of `gpa`, whose bytes have changed. Returns whether there was
    /// any.
    pub(crate) fn clear(&self, gpa: u64) -> bool {
        let page = self.word(gpa);
        let had_code = page.is_some_and(|word| word.swap(0, Ordering::AcqRel) != 0);
        if had_code {
            self.tell_others(gpa, true);
        }
        had_code
    }

    /// Queues the page of `gpa` for each other processor.
    fn tell_others(&self, gpa: u64, is_overwritten: bool) {
        for queue in lock(&self.shared.queues).iter() {
            if !Arc::ptr_eq(queue, &self.queue) {
                lock(&queue.pages).insert(gpa >> 12, is_overwritten);
                queue.is_pending.store(true, Ordering::Release);
            }
        }
    }

    /// Whether [`Self::take_changes`] returns any page. On virtual time, none is queued while the
    /// processor runs.
    #[inline(always)]
    pub(crate) fn has_changes(&self) -> bool {
        self.queue.is_pending.load(Ordering::Acquire)
    }

    /// Takes the changes by other processors since the last call.
    pub(crate) fn take_changes(&self) -> CodeChanges {
        let mut pages = lock(&self.queue.pages);
        self.queue.is_pending.store(false, Ordering::Release);
        pages.take()
    }
}

impl Clone for CodeMap {
    fn clone(&self) -> Self {
        Self::join(self.shared.clone())
    }
}

impl Drop for CodeMap {
    fn drop(&mut self) {
        lock(&self.shared.queues).retain(|queue| !Arc::ptr_eq(queue, &self.queue));
    }
}

/// Locks a mutex. A thread that has panicked leaves both structures valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages, and whether one was overwritten.
    fn changes(map: &CodeMap) -> (Vec<u64>, bool) {
        let CodeChanges {
            pages,
            is_overwritten,
        } = map.take_changes();
        (pages, is_overwritten)
    }

    #[test]
    fn a_change_of_a_page_reaches_each_other_processor_once() {
        let one = CodeMap::new(0x4000);
        let (two, three) = (one.clone(), one.clone());
        assert!(one.add(0x1000, 4) && !two.add(0x1040, 4) && !one.add(0x1000, 4));
        assert!(!one.has_changes() && two.has_changes());
        assert!(two.clear(0x1FFF) && !two.clear(0x1000));
        assert!(one.add(0x1080, 1) && one.add(0x3000, 0x2000));
        assert_eq!(changes(&one), (vec![0x1000], true));
        assert_eq!(changes(&two), (vec![0x1000, 0x3000], false));
        assert_eq!(changes(&three), (vec![0x1000, 0x3000], true));
        assert!(!three.has_changes());
        assert_eq!(changes(&three), (vec![], false));
    }

    #[test]
    fn processors_share_the_granules() {
        let one = CodeMap::new(0x2000);
        let two = one.clone();
        one.add(0x103C, 8);
        assert!(two.is_code(0x1000) && !two.is_code(0));
        two.take_changes();
        assert!(two.may_overlap(0x1000, 1) && two.may_overlap(0x107F, 1));
        assert!(!two.may_overlap(0x1080, 0xF80));
        // No code is outside RAM.
        assert!(!two.add(0x2000, 1) && !two.is_code(0x2000) && !two.clear(0x2000));
    }

    #[test]
    fn a_pending_change_may_be_of_any_page() {
        let one = CodeMap::new(0x2000);
        let two = one.clone();
        assert!(!one.may_overlap(0x1000, 8));
        two.add(0, 1);
        assert!(one.may_overlap(0x1000, 8));
        one.take_changes();
        assert!(!one.may_overlap(0x1000, 8));
    }

    #[test]
    fn a_queue_is_bounded_and_ends_with_its_processor() {
        const PAGES: u64 = 100;
        let one = CodeMap::new(PAGES << 12);
        let two = one.clone();
        for _ in 0..3 {
            for page in 0..PAGES {
                one.add(page << 12, 1);
                one.clear(page << 12);
            }
        }
        assert_eq!(changes(&two).0.len() as u64, PAGES);
        drop(two);
        assert_eq!(lock(&one.shared.queues).len(), 1);
    }
}
