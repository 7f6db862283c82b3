//! The calls among the last branches of a task that have not returned, found without its code.
//!
//! A branch to the beginning of a function is a call. A branch to what follows the call, at most
//! the length of an instruction behind its address, is its return. The procedure linkage table and
//! the dynamic linker's resolver lead from a call to its function, and are no callers. A branch
//! into the middle of another function that is the return of no known call is that of a call before
//! the last branches.

use vbts_symbols::{Symbolizer, is_linkage};

use crate::task::Task;

/// Maximum length of an instruction in bytes (SDM Vol. 2A 2.3.11).
const MAX_INSTRUCTION: u64 = 15;
/// The beginning of the name of the resolver, which jumps to the function that it has found. Other
/// functions of the linker only call.
const RESOLVER: &str = "_dl_runtime_";
/// Name of the code behind the call of `_dl_start` in the dynamic linker: it jumps to the program's
/// entry point.
const LINKER_START: &str = "_dl_start_user";
/// Offset of a function's first byte.
const ENTRY: u64 = 0;

/// What the last branches of a task say about its stack.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The calls that have not returned, the outermost first, as indices of the branches.
    pub open: Vec<usize>,
    /// The branches that are not in the linkage, as indices, oldest first.
    pub shown: Vec<usize>,
}

/// A place, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The name of its function, without the ending of a part that the compiler has moved away;
    /// `None` if the function is unknown.
    function: Option<String>,
    is_entry: bool,
    is_linkage: bool,
    /// Its function jumps to others, and does not call them.
    jumps: bool,
    /// The place is in the code of the dynamic linker that jumps to the program.
    is_linker_start: bool,
}

/// The name of the function and the offset in it that a label begins with.
fn function(label: &str) -> Option<(&str, u64)> {
    let (name, rest) = label.rsplit_once("+0x")?;
    let digits = rest.split(' ').next()?;
    Some((name, u64::from_str_radix(digits, 16).ok()?))
}

fn place(label: &str) -> Place {
    let function = function(label);
    let is_linkage = function.is_some_and(|(name, _)| is_linkage(name));
    let is_linker_start = function.is_some_and(|(name, _)| name == LINKER_START);
    Place {
        function: function.map(|(name, _)| name.trim_end_matches(".cold").to_owned()),
        is_entry: function.is_some_and(|(_, offset)| offset == ENTRY),
        is_linkage,
        is_linker_start,
        jumps: is_linkage
            && function
                .is_some_and(|(name, _)| name.starts_with(RESOLVER) || name.ends_with("plt")),
    }
}

/// Returns whether a branch leads out of its function.
fn leaves(from: &Place, to: &Place) -> bool {
    from.function.is_some() && to.function.is_some() && from.function != to.function
}

impl Callers {
    /// Reads the last branches of `task`.
    pub(super) fn of(task: &Task, symbols: &mut Symbolizer) -> Self {
        let all = task.recent.branches();
        let mut others = Some(all);
        let mut label = |address| {
            let mut ends = || {
                let branches = others.take().unwrap_or_default().iter();
                branches
                    .flat_map(|branch| [branch.from, branch.to])
                    .collect()
            };
            place(symbols.label(task.process, address, &mut ends))
        };
        let mut this = Self::default();
        // Whether each open call leads to the linkage.
        let mut to_linkage: Vec<bool> = Vec::new();
        for (at, branch) in all.iter().enumerate() {
            let (from, to) = (label(branch.from), label(branch.to));
            let in_linkage = from.is_linkage || to_linkage.contains(&true);
            if !in_linkage {
                this.shown.push(at);
            }
            let returns = |call: &usize| {
                let from = all.get(*call).map_or(0, |call| call.from);
                (1..=MAX_INSTRUCTION).contains(&branch.to.wrapping_sub(from))
            };
            if to.is_linker_start {
                // It has a name of its own, but is entered by the return of `_dl_start`.
                this.open.clear();
                to_linkage.clear();
            } else if to.is_entry {
                let mut call = at;
                // The call that has led to the linkage leads to this function.
                while from.jumps && to_linkage.last() == Some(&true) {
                    to_linkage.pop();
                    call = this.open.pop().unwrap_or(call);
                }
                this.open.push(call);
                to_linkage.push(to.is_linkage);
            } else if let Some(returned) = this.open.iter().rposition(returns) {
                this.open.truncate(returned);
                to_linkage.truncate(returned);
            } else if !in_linkage && leaves(&from, &to) {
                this.open.clear();
                to_linkage.clear();
            }
        }
        let mut is_caller = |at: &usize| {
            let from = all.get(*at).map(|call| label(call.from));
            from.is_none_or(|from| !from.is_linkage && !from.is_linker_start)
        };
        this.open.retain(|at| is_caller(at));
        this
    }
}

/// The name of the function at an address, without the ending of a stub.
pub(super) fn name_at(symbols: &mut Symbolizer, task: &Task, address: u64) -> Option<String> {
    let label = symbols.label(task.process, address, &mut Vec::new);
    let (name, _) = function(label)?;
    Some(name.strip_suffix("@plt").unwrap_or(name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_what_is_there() {
        let parts = |label| {
            let Place {
                is_entry,
                is_linkage,
                jumps,
                ..
            } = place(label);
            (is_entry, is_linkage, jumps)
        };
        assert_eq!(parts("main+0x0 (a.c:1)"), (true, false, false));
        assert_eq!(parts("ns::f(int)+0x1f (a+0xb.c:1)"), (false, false, false));
        assert_eq!(parts("puts@plt+0x0"), (true, true, true));
        assert_eq!(parts(".plt+0x0"), (true, true, true));
        assert_eq!(parts("_dl_runtime_resolve_xsavec+0x4"), (false, true, true));
        assert_eq!(parts("_dl_fixup+0x0"), (true, true, false));
        assert_eq!(parts(""), (false, false, false));
    }
}
