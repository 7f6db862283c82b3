//! Keys of cached jump targets.

/// What a cached jump target depends on: the mode of the processor and the generation of its
/// linear-address translations. A target is valid while its key is one of these. Never zero.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JumpKeys {
    /// For a jump to any page.
    pub any: u64,
    /// For a jump to a global page, whose translation a write to CR3 keeps.
    pub global: u64,
}
