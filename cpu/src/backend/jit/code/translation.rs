//! What a block and a page of code know of their native code.

use crate::backend::jit::code::new_code::MappingId;
use crate::backend::jit::code::store::CodeId;

/// The native code of a block, and how far the block is from having some.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Translation {
    code: CodeId,
    /// Runs in the interpreter since the block was last translated, or [`Self::NEVER`].
    heat: u32,
}

impl Translation {
    /// [`Self::heat`] of a block that cannot be translated.
    const NEVER: u32 = u32::MAX;

    /// No native code.
    pub(crate) const NONE: Self = Self {
        code: CodeId::NONE,
        heat: 0,
    };

    /// Returns the native code. It need not fit, see `CodeStore::fits`.
    #[inline]
    pub(crate) fn code(self) -> CodeId {
        self.code
    }

    /// Counts a run in the interpreter. Returns whether the block is to be translated, after
    /// `threshold` of them.
    #[inline]
    pub(crate) fn heat_up(&mut self, threshold: u32) -> bool {
        if self.heat == Self::NEVER {
            return false;
        }
        self.heat += 1;
        self.heat >= threshold
    }

    /// Notes the result of translating the block: `None` if it cannot be translated.
    pub(crate) fn set(&mut self, code: Option<CodeId>) {
        match code {
            Some(code) => *self = Self { code, heat: 0 },
            None => self.heat = Self::NEVER,
        }
    }

    /// Forgets the native code: it does not become valid any more.
    pub(crate) fn forget(&mut self) {
        self.code = CodeId::NONE;
    }

    /// Forgets the native code, and the runs so far.
    pub(crate) fn cool_down(&mut self) {
        self.forget();
        if self.heat != Self::NEVER {
            self.heat = 0;
        }
    }
}

/// A linear page that is translated to a guest-physical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearPage {
    /// Its first address.
    pub address: u64,
    /// Jumps to it have the key of a global page.
    pub global: bool,
}

/// The linear pages for which a guest-physical page has native code, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Mappings(Vec<(LinearPage, MappingId)>);

impl Mappings {
    /// Upper bound on their number.
    const MAX: usize = 8;

    /// Whether the page has no native code.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the mapping to a linear page.
    pub(crate) fn find(&self, page: LinearPage) -> Option<MappingId> {
        self.0.iter().find(|m| m.0 == page).map(|m| m.1)
    }

    /// Returns the mapping to a linear page, which becomes `new` if there is none. The oldest
    /// mapping is forgotten if there are many.
    pub(crate) fn find_or_insert(
        &mut self,
        page: LinearPage,
        new: impl FnOnce() -> MappingId,
    ) -> MappingId {
        if let Some(known) = self.find(page) {
            return known;
        }
        if self.0.len() >= Self::MAX {
            self.0.remove(0);
        }
        let id = new();
        self.0.push((page, id));
        id
    }

    /// Forgets all of them: their native code does not become valid any more.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
