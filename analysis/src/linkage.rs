//! Joins what leads from a call to the function that is meant: the stub of the procedure linkage
//! table and, the first time, the dynamic linker's resolver.

use vbts_trace::profile::space::Effect;

/// A call, or another transfer between functions, that was followed through the linkage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joined<T> {
    /// The transfer that has led to the linkage, or the one of the record.
    pub first: T,
    /// The resolver itself calls the function.
    pub by_resolver: bool,
}

/// For one task, the transfer that has led to the linkage.
#[derive(Debug)]
pub(crate) struct Linkage<T>(Option<T>);

impl<T> Default for Linkage<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Copy> Linkage<T> {
    /// Follows a record with this `effect`, the transfer `this`, whose ends are `in_linkage` or
    /// not. Returns the transfer that it completes; `None` if it leads to the linkage, or stays in
    /// it.
    #[inline]
    pub(crate) fn join(
        &mut self,
        in_linkage: (bool, bool),
        effect: Effect,
        this: T,
    ) -> Option<Joined<T>> {
        let (first, by_resolver) = match in_linkage {
            (false, false) => (this, false),
            (true, true) => return None,
            (false, true) => {
                if matches!(effect, Effect::Call | Effect::Tail) {
                    self.0 = Some(this);
                }
                return None;
            }
            (true, false) if effect == Effect::Tail => (self.0.take().unwrap_or(this), false),
            (true, false) => (self.0.unwrap_or(this), true),
        };
        Some(Joined { first, by_resolver })
    }
}
