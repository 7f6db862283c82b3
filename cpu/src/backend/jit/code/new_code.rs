//! Native code of a block that the translator passes to the code store.

use vbts_verifier::Part;

use crate::backend::jit::registers::frame::RecordedBranch;

/// Names a linear page, as it is mapped to a guest-physical one with native code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappingId(pub(super) u32);

/// Start of the guest's code of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// RIP of the block.
    pub rip: u64,
    /// The page of RIP.
    pub mapping: MappingId,
    /// It is a global page.
    pub global: bool,
}

/// A direct jump to another block, in new code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Offset of its displacement in the hot section.
    pub at: usize,
    /// RIP of the other block.
    pub target: u64,
}

/// Numbers with which native code of a block names itself and its parts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Numbers {
    pub code: u32,
    /// The first edge.
    pub edge: u32,
    /// The first branch that is recorded.
    pub branch: u32,
}

/// New native code of a block.
#[derive(Debug)]
pub(crate) struct NewCode<'a> {
    pub start: Start,
    /// The code was made for a processor that records branches.
    pub recording: bool,
    /// The hot section and the cold one.
    pub parts: [Part<'a>; 2],
    /// Offset of the code behind the check of the key.
    pub body: usize,
    pub links: &'a [Link],
    /// The branches that the code records.
    pub branches: &'a [RecordedBranch],
    /// Instructions that the code executes, if it is checked.
    pub count: u8,
}
