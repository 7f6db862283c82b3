//! Joins what leads from a call to the function that is meant: the stub of the procedure linkage
//! table and, the first time, the dynamic linker's resolver.

use std::collections::HashMap;
use std::hash::Hash;

use vbts_trace::profile::Seen;
use vbts_trace::profile::modules::Place;
use vbts_trace::profile::space::Effect;

/// A transfer between functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joined {
    pub from: Place,
    pub to: Place,
    pub effect: Effect,
    /// The resolver itself calls the function.
    pub by_resolver: bool,
}

impl Joined {
    /// The transfer of one record.
    pub(crate) fn of(seen: &Seen<'_>) -> Self {
        Self {
            from: seen.map.place(seen.from),
            to: seen.map.place(seen.to),
            effect: seen.effect,
            by_resolver: false,
        }
    }
}

/// For each task, by its key `K`, the transfer that has led to the linkage.
#[derive(Debug)]
pub(crate) struct Linkage<K>(HashMap<K, (Place, Effect)>);

impl<K> Default for Linkage<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> Linkage<K> {
    /// Returns the transfer that a record completes; `None` for one that leads to the linkage, or
    /// stays in it.
    pub(crate) fn join(&mut self, task: K, seen: &Seen<'_>) -> Option<Joined> {
        let joined = Joined::of(seen);
        let Joined { from, effect, .. } = joined;
        let is_linkage = |place| seen.functions.is_linkage_at(place);
        match (is_linkage(from), is_linkage(joined.to)) {
            (false, false) => Some(joined),
            (true, true) => None,
            (false, true) => {
                if matches!(effect, Effect::Call | Effect::Tail) {
                    self.0.insert(task, (from, effect));
                }
                None
            }
            (true, false) if effect == Effect::Tail => {
                let (from, effect) = self.0.remove(&task).unwrap_or((from, effect));
                Some(Joined {
                    from,
                    effect,
                    ..joined
                })
            }
            (true, false) => Some(Joined {
                from: self.0.get(&task).map_or(from, |(from, _)| *from),
                by_resolver: true,
                ..joined
            }),
        }
    }
}
