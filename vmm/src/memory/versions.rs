//! Versions of the pages of guest memory at several times.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::PAGE;

/// Size in bytes of what a version needs besides its contents, about.
const OVERHEAD: usize = 64;

/// The contents of a page.
pub(crate) type Page = [u8; PAGE as usize];

/// A page of zeros.
pub(crate) const ZEROS: Page = [0; PAGE as usize];

/// The contents of a page from a time on; `None` is zeros.
type Contents = Option<Arc<Page>>;

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

    fn find(&self, gpa: u64, time: u64) -> Option<&Arc<Page>> {
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
