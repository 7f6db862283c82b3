//! Versions of the pages of guest memory at several times.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::PAGE;

/// Size in bytes of what a version needs besides its contents, about.
const OVERHEAD: usize = 64;

/// The contents of a page.
pub(crate) type Page = [u8; PAGE as usize];

/// A page of zeros.
pub(crate) const ZEROS: Page = [0; PAGE as usize];

/// The contents of a page from a time on; `None` is zeros.
pub(crate) type Contents = Option<Arc<Page>>;

/// The versions of pages, each from a time on. A page has zeros before its first version.
#[derive(Debug, Default)]
pub(crate) struct PageVersions {
    /// By guest-physical address; oldest first.
    pages: BTreeMap<u64, Vec<(u64, Contents)>>,
    /// Number of versions.
    count: usize,
    /// Number of different contents.
    contents: usize,
}

impl PageVersions {
    /// The contents of the page at `gpa` at `time`.
    pub(crate) fn at(&self, gpa: u64, time: u64) -> &Page {
        match self.find(gpa, time) {
            Some(contents) => contents,
            None => &ZEROS,
        }
    }

    /// The addresses of the pages with a version, lowest first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// The contents of the page at `gpa` at `time`; `None` is zeros.
    pub(crate) fn find(&self, gpa: u64, time: u64) -> Option<&Arc<Page>> {
        let versions = self.pages.get(&gpa)?;
        let later = versions.partition_point(|(from, _)| *from <= time);
        let (_, contents) = versions.get(later.checked_sub(1)?)?;
        contents.as_ref()
    }

    /// Adds a version of the page at `gpa` from `time` on.
    pub(crate) fn add(&mut self, gpa: u64, time: u64, page: &Page) {
        let contents = (*page != ZEROS).then(|| Arc::new(*page));
        self.insert(gpa, time, contents);
    }

    /// Adds a version from `time` on that is the one of `earlier`, unless there is one from `time`
    /// on.
    pub(crate) fn keep_from(&mut self, gpa: u64, earlier: u64, time: u64) -> bool {
        let versions = self.pages.get(&gpa);
        let has =
            versions.is_some_and(|v| v.binary_search_by_key(&time, |(from, _)| *from).is_ok());
        if !has {
            let contents = self.find(gpa, earlier).cloned();
            self.insert(gpa, time, contents);
        }
        !has
    }

    /// Adds versions as (guest-physical address, time, contents). Those of a page are in order, and
    /// later than all that it has. They may share contents.
    pub(crate) fn extend(&mut self, versions: impl Iterator<Item = (u64, u64, Contents)>) {
        for (gpa, time, contents) in versions {
            self.pages.entry(gpa).or_default().push((time, contents));
            self.count += 1;
        }
        let contents = self.pages.values().flatten();
        let contents = contents.filter_map(|(_, contents)| contents.as_ref().map(Arc::as_ptr));
        self.contents = contents.collect::<HashSet<_>>().len();
    }

    fn insert(&mut self, gpa: u64, time: u64, contents: Contents) {
        let is_new = |contents: &Contents| {
            let contents = contents.as_ref();
            usize::from(contents.is_some_and(|contents| Arc::strong_count(contents) == 1))
        };
        let added = is_new(&contents);
        let versions = self.pages.entry(gpa).or_default();
        match versions.binary_search_by_key(&time, |(from, _)| *from) {
            Ok(place) => {
                let old = std::mem::replace(&mut versions[place].1, contents);
                self.contents -= is_new(&old);
            }
            Err(place) => {
                versions.insert(place, (time, contents));
                self.count += 1;
            }
        }
        self.contents += added;
    }

    /// Removes the version of the page at `gpa` from `time` on. It continues from `later` on,
    /// unless there is one from then on. Returns whether it continues.
    pub(crate) fn remove(&mut self, gpa: u64, time: u64, later: Option<u64>) -> bool {
        let Some(versions) = self.pages.get_mut(&gpa) else {
            return false;
        };
        let Ok(place) = versions.binary_search_by_key(&time, |(from, _)| *from) else {
            return false;
        };
        if let Some(later) = later
            && versions
                .get(place + 1)
                .is_none_or(|(from, _)| *from > later)
        {
            versions[place].0 = later;
            return true;
        }
        let (_, contents) = versions.remove(place);
        self.count -= 1;
        if contents.is_some_and(|contents| Arc::strong_count(&contents) == 1) {
            self.contents -= 1;
        }
        if versions.is_empty() {
            self.pages.remove(&gpa);
        }
        false
    }

    /// Size in bytes, about.
    pub(crate) fn size(&self) -> usize {
        self.contents * size_of::<Page>() + self.count * OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0x1000;

    fn page(value: u8) -> Page {
        [value; PAGE as usize]
    }

    fn at(versions: &PageVersions, times: [u64; 5]) -> [u8; 5] {
        times.map(|time| versions.at(A, time)[7])
    }

    #[test]
    fn a_page_has_its_last_version() {
        let mut versions = PageVersions::default();
        assert_eq!(versions.size(), 0);
        for (time, value) in [(20, 2), (10, 1), (40, 0), (30, 3)] {
            versions.add(A, time, &page(value));
        }
        versions.add(2 * A, 30, &page(9));
        let times = [9, 10, 29, 30, 99];
        assert_eq!(at(&versions, times), [0, 1, 2, 3, 0]);
        // Zeros need no contents.
        assert_eq!(versions.size(), 4 * 4096 + 5 * OVERHEAD);
        versions.add(A, 10, &page(0));
        assert_eq!(versions.size(), 3 * 4096 + 5 * OVERHEAD);
    }

    #[test]
    fn a_removed_version_continues_where_it_is_needed() {
        let mut versions = PageVersions::default();
        for (time, value) in [(10, 1), (20, 2), (40, 4)] {
            versions.add(A, time, &page(value));
        }
        // At 30 the page is as at 20, and at 40 it is not.
        assert!(versions.remove(A, 20, Some(30)));
        assert_eq!(at(&versions, [10, 20, 30, 39, 40]), [1, 1, 2, 2, 4]);
        assert!(!versions.remove(A, 30, Some(40)));
        assert_eq!(at(&versions, [10, 20, 30, 39, 40]), [1, 1, 1, 1, 4]);
        assert!(!versions.remove(A, 30, None) && !versions.remove(2 * A, 10, None));
        assert!(!versions.remove(A, 40, None) && !versions.remove(A, 10, None));
        assert_eq!((versions.size(), versions.pages.len()), (0, 0));
    }

    #[test]
    fn versions_that_share_contents_are_counted_once() {
        let mut versions = PageVersions::default();
        versions.add(A, 10, &page(1));
        let shared = Some(Arc::new(page(2)));
        let more = [(A, 20, shared.clone()), (2 * A, 20, shared), (A, 30, None)];
        versions.extend(more.into_iter());
        assert_eq!(at(&versions, [9, 10, 20, 29, 30]), [0, 1, 2, 2, 0]);
        assert_eq!(versions.size(), 2 * 4096 + 4 * OVERHEAD);
        assert!(!versions.remove(A, 20, None));
        assert_eq!(versions.size(), 2 * 4096 + 3 * OVERHEAD);
        assert!(!versions.remove(2 * A, 20, None));
        assert_eq!(versions.size(), 4096 + 2 * OVERHEAD);
    }

    #[test]
    fn a_later_version_keeps_its_contents() {
        let mut versions = PageVersions::default();
        versions.add(A, 10, &page(1));
        assert!(versions.keep_from(A, 10, 30) && !versions.keep_from(A, 10, 30));
        versions.add(A, 20, &page(2));
        assert_eq!(at(&versions, [10, 19, 20, 29, 30]), [1, 1, 2, 2, 1]);
        // Two versions share their contents.
        assert_eq!(versions.size(), 2 * 4096 + 3 * OVERHEAD);
        versions.remove(A, 10, Some(20));
        assert_eq!(versions.size(), 2 * 4096 + 2 * OVERHEAD);
        versions.remove(A, 30, None);
        assert_eq!(versions.size(), 4096 + OVERHEAD);
    }
}
