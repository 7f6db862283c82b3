//! Inlined functions: which code of a function is theirs.
//!
//! The compiler has put the code of an inlined function into that of its caller, in one piece or in
//! several. At each instruction, a chain of inlined functions is active: each is inlined into the
//! one before it, and the first one into the function.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::modules::Place;

/// Number of an inlined function. What reads the code has its name.
pub type InlinedId = u32;

/// Number of a chain of inlined functions.
pub type ChainId = u32;

/// Maximum number of different chains. Code of further ones belongs to what is around it.
const MAX_CHAINS: usize = 1 << 22;
/// Maximum number of functions in a chain.
const MAX_DEPTH: usize = 128;

/// A call that was inlined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InlinedCall {
    /// Index of the inlined call in which it is, in the list that has it. It is smaller.
    pub outer: Option<u32>,
    /// The function.
    pub function: InlinedId,
    /// Offsets of its code: of the first byte of a piece, and of the first one after it.
    pub code: Vec<(u64, u64)>,
}

/// A chain of inlined functions.
#[derive(Debug, Clone, Copy)]
struct Chain {
    outer: ChainId,
    innermost: InlinedId,
}

/// Chains of inlined functions by their numbers. Number 0 is the empty chain.
#[derive(Debug, Default)]
pub struct Chains {
    list: Vec<Chain>,
    numbers: FxHashMap<(ChainId, InlinedId), ChainId>,
}

impl Chains {
    /// The chain without inlined functions.
    pub const EMPTY: ChainId = 0;

    /// The innermost function of a chain, and the chain around it; `None` if it is empty.
    pub fn innermost(&self, chain: ChainId) -> Option<(ChainId, InlinedId)> {
        let chain = self.list.get((chain as usize).checked_sub(1)?)?;
        Some((chain.outer, chain.innermost))
    }

    fn within(&mut self, outer: ChainId, innermost: InlinedId) -> ChainId {
        if let Some(known) = self.numbers.get(&(outer, innermost)) {
            return *known;
        }
        if self.list.len() >= MAX_CHAINS {
            return outer;
        }
        self.list.push(Chain { outer, innermost });
        let number = self.list.len() as ChainId;
        self.numbers.insert((outer, innermost), number);
        number
    }
}

/// A part of a straight line that belongs to one chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The chain.
    pub chain: ChainId,
    /// Number of its instructions.
    pub instructions: u32,
}

/// Which chains are active in a function.
#[derive(Debug, Default)]
struct Code {
    /// Offsets from which on a chain is active, sorted. Before the first one, none is.
    chains: Vec<(u64, ChainId)>,
}

impl Code {
    fn new(calls: &[InlinedCall], chains: &mut Chains) -> Self {
        let mut this = Self::default();
        // For each call, its chain and the length of that.
        let mut known: Vec<(ChainId, usize)> = Vec::new();
        let mut places = Vec::new();
        let mut pieces = Vec::new();
        for call in calls {
            let outer = call.outer.and_then(|outer| known.get(outer as usize));
            let (outer, depth) = outer.copied().unwrap_or_default();
            let (chain, depth) = match depth {
                MAX_DEPTH.. => (outer, depth),
                _ => (chains.within(outer, call.function), depth + 1),
            };
            known.push((chain, depth));
            for (start, end) in &call.code {
                places.extend([*start, *end]);
                pieces.push((*start, *end, depth, chain));
            }
        }
        places.sort_unstable();
        places.dedup();
        pieces.sort_by_key(|(start, ..)| *start);
        let mut starts = pieces.into_iter().peekable();
        // By the length of the chain: the end of the code, and the chain.
        let mut active: BTreeMap<usize, (u64, ChainId)> = BTreeMap::new();
        for place in places {
            active.retain(|_, (end, _)| *end > place);
            while let Some(piece) = starts.next_if(|(start, ..)| *start <= place) {
                let (_, end, depth, chain) = piece;
                active.insert(depth, (end, chain));
            }
            let innermost = active.last_key_value();
            let chain = innermost.map_or(Chains::EMPTY, |(_, (_, chain))| *chain);
            if this.chains.last().is_none_or(|(_, last)| *last != chain) {
                this.chains.push((place, chain));
            }
        }
        this
    }

    /// The chain that is active at `offset`.
    fn at(&self, offset: u64) -> ChainId {
        let after = self.chains.partition_point(|(start, _)| *start <= offset);
        let active = after.checked_sub(1).and_then(|at| self.chains.get(at));
        active.map_or(Chains::EMPTY, |(_, chain)| *chain)
    }

    /// Whether one chain is active from `start` to `last`.
    fn is_one(&self, start: u64, last: u64) -> bool {
        let next = self.chains.partition_point(|(at, _)| *at <= start);
        self.chains.get(next).is_none_or(|(at, _)| *at > last)
    }
}

/// The inlined functions of all functions.
#[derive(Debug, Default)]
pub struct Inlining {
    /// The chains.
    pub chains: Chains,
    /// By the start of the function.
    functions: FxHashMap<Place, Code>,
}

impl Inlining {
    /// Whether the inlined functions of the function at `start` are known.
    pub fn has(&self, start: Place) -> bool {
        self.functions.contains_key(&start)
    }

    /// Takes the inlined functions of the function at `start`.
    pub fn add(&mut self, start: Place, calls: &[InlinedCall]) {
        let code = Code::new(calls, &mut self.chains);
        self.functions.insert(start, code);
    }

    /// The chain of the code from offset `start` to `last` in a function, if it has one alone.
    pub fn chain(&self, function: Place, start: u64, last: u64) -> Option<ChainId> {
        let Some(code) = self.functions.get(&function) else {
            return Some(Chains::EMPTY);
        };
        code.is_one(start, last).then(|| code.at(last))
    }

    /// Adds an instruction at `offset` of a function to the pieces of a straight line. It counts
    /// only if it is `executed`.
    pub fn step(&self, function: Place, offset: u64, executed: bool, pieces: &mut Vec<Piece>) {
        let Some(code) = self.functions.get(&function) else {
            return;
        };
        let (chain, instructions) = (code.at(offset), u32::from(executed));
        match pieces.last_mut() {
            Some(last) if last.chain == chain => last.instructions += instructions,
            _ => pieces.push(Piece {
                chain,
                instructions,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(outer: Option<u32>, function: u32, code: &[(u64, u64)]) -> InlinedCall {
        InlinedCall {
            outer,
            function,
            code: code.to_vec(),
        }
    }

    /// The functions of a chain, the outer ones first.
    fn functions(chains: &Chains, chain: ChainId) -> Vec<InlinedId> {
        let next = |(chain, _): &(ChainId, InlinedId)| chains.innermost(*chain);
        let inner = std::iter::successors(chains.innermost(chain), next);
        let mut all: Vec<InlinedId> = inner.map(|(_, function)| function).collect();
        all.reverse();
        all
    }

    #[test]
    fn a_line_is_cut_where_the_chain_changes() {
        let function = Place {
            module: 3,
            offset: 0,
        };
        let mut inlining = Inlining::default();
        // Function 7 has two pieces. In the first one, function 8 is inlined, at its beginning.
        let inlined = [
            call(None, 7, &[(10, 20), (30, 34)]),
            call(Some(0), 8, &[(10, 14)]),
        ];
        inlining.add(function, &inlined);
        let at = |offset| {
            let chain = inlining.chain(function, offset, offset);
            functions(&inlining.chains, chain.unwrap())
        };
        assert!(at(9).is_empty());
        assert_eq!(at(10), [7, 8]);
        assert_eq!(at(14), [7]);
        assert!(at(20).is_empty());
        assert_eq!(at(33), [7]);
        assert!(at(34).is_empty());
        assert!(inlining.chain(function, 14, 19).is_some());
        for (start, last) in [(8, 10), (13, 14), (15, 30)] {
            assert_eq!(inlining.chain(function, start, last), None, "{start}");
        }
        let mut pieces = Vec::new();
        for offset in [8, 10, 12, 14, 20] {
            inlining.step(function, offset, offset < 20, &mut pieces);
        }
        let seen: Vec<_> = pieces
            .iter()
            .map(|piece| {
                let functions = functions(&inlining.chains, piece.chain);
                (functions, piece.instructions)
            })
            .collect();
        let expected = [(vec![], 1), (vec![7, 8], 2), (vec![7], 1), (vec![], 0)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn another_function_has_the_empty_chain() {
        let inlining = Inlining::default();
        let function = Place {
            module: 3,
            offset: 0,
        };
        assert_eq!(inlining.chain(function, 0, 100), Some(Chains::EMPTY));
    }

    #[test]
    fn the_depth_of_a_hostile_file_is_limited() {
        let mut inlining = Inlining::default();
        let function = Place {
            module: 3,
            offset: 0,
        };
        let many: Vec<_> = (0..1000_u32)
            .map(|n| call(n.checked_sub(1), n, &[(0, u64::MAX)]))
            .collect();
        inlining.add(function, &many);
        let chain = inlining.chain(function, 1, 1).unwrap();
        assert_eq!(functions(&inlining.chains, chain).len(), MAX_DEPTH);
    }
}
