//! The call tree: what was executed, by the functions that have led there.

use rustc_hash::FxHashMap;

use super::functions::FunctionId;
use super::inlined::{ChainId, Chains, InlinedId};

/// Number of a node.
pub type NodeId = u32;

/// Maximum number of nodes. Further calls count for their callers.
const MAX_NODES: usize = 1 << 22;

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// A program, by its number. Its node has no parent.
    Program(u32),
    /// A function.
    Function(FunctionId),
    /// A function that is inlined into the parent.
    Inlined(InlinedId),
    /// A signal interrupts what the parent does.
    Signal,
}

impl Label {
    /// Returns whether calls are counted. Debugging information does not say where an inlined
    /// function begins each time.
    pub fn has_calls(self) -> bool {
        !matches!(self, Self::Inlined(_))
    }
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The caller; the node itself, if it has none. It has a smaller number.
    pub parent: NodeId,
    /// What it stands for.
    pub label: Label,
    /// Number of calls; 0 if [`Label::has_calls`] is false.
    pub calls: u64,
    /// Instructions that were executed in it, without its children.
    pub instructions: u64,
    /// Records of branches that were executed in it, without its children.
    pub branches: u64,
}

impl Node {
    /// Number of calls, if they are counted.
    pub fn counted_calls(&self) -> Option<u64> {
        self.label.has_calls().then_some(self.calls)
    }
}

/// Number of children that are found without the table of all, a power of two.
const RECENT: usize = 1 << 14;

/// A node, and what it is found by.
#[derive(Debug, Clone, Copy)]
struct Recent {
    parent: NodeId,
    label: Label,
    node: NodeId,
}

/// The call tree.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    children: FxHashMap<(NodeId, Label), NodeId>,
    /// Children that were looked up, by [`slot`].
    recent: Vec<Recent>,
    /// Nodes of chains that were looked up, by [`mix`].
    recent_chains: Vec<(NodeId, ChainId, NodeId)>,
    cut: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let none = Recent {
            parent: NodeId::MAX,
            label: Label::Signal,
            node: 0,
        };
        Self {
            nodes: Vec::new(),
            children: FxHashMap::default(),
            recent: vec![none; RECENT],
            recent_chains: vec![(NodeId::MAX, 0, 0); RECENT],
            cut: 0,
        }
    }
}

/// Where a child is among the recent ones.
fn slot(parent: NodeId, label: Label) -> usize {
    let label = match label {
        Label::Function(function) | Label::Inlined(function) => function,
        Label::Program(_) | Label::Signal => NodeId::MAX,
    };
    mix(parent, label)
}

/// A number below [`RECENT`] that depends on both.
fn mix(parent: NodeId, other: u32) -> usize {
    // Neighbours are often called one after the other. The factor is 2^32 / golden ratio.
    let mixed = parent.wrapping_mul(0x9E37_79B9).rotate_left(15) ^ other;
    mixed as usize % RECENT
}

impl Tree {
    /// All nodes. A parent comes before its children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of calls that count for their callers, because the tree is full.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// The node of a program.
    pub fn program(&mut self, program: u32) -> NodeId {
        let label = Label::Program(program);
        // No function has such a label, so that the parent does not matter.
        if let Some(node) = self.children.get(&(0, label)) {
            return *node;
        }
        let node = self.nodes.len() as NodeId;
        self.add(node, label);
        self.children.insert((0, label), node);
        node
    }

    /// The node with the path of `node` below `program`, which is the node of a program. `moved`
    /// has nodes that were asked for before, and is for the same program.
    pub fn below(
        &mut self,
        program: NodeId,
        node: NodeId,
        moved: &mut FxHashMap<NodeId, NodeId>,
    ) -> NodeId {
        let mut path = Vec::new();
        let mut at = node;
        let mut found = loop {
            if let Some(found) = moved.get(&at) {
                break *found;
            }
            match self.nodes.get(at as usize) {
                Some(node) if !matches!(node.label, Label::Program(_)) && node.parent != at => {
                    path.push((at, node.label));
                    at = node.parent;
                }
                _ => break program,
            }
        };
        for (at, label) in path.into_iter().rev() {
            found = self.child(found, label);
            moved.insert(at, found);
        }
        found
    }

    fn add(&mut self, parent: NodeId, label: Label) {
        self.nodes.push(Node {
            parent,
            label,
            calls: 0,
            instructions: 0,
            branches: 0,
        });
    }

    /// The child of `parent`.
    pub fn child(&mut self, parent: NodeId, label: Label) -> NodeId {
        let slot = slot(parent, label);
        if let Some(recent) = self.recent.get(slot)
            && recent.parent == parent
            && recent.label == label
        {
            return recent.node;
        }
        let node = self.find_or_add(parent, label);
        // A call that counts for its caller is counted each time.
        if let Some(recent) = self.recent.get_mut(slot).filter(|_| node != parent) {
            *recent = Recent {
                parent,
                label,
                node,
            };
        }
        node
    }

    /// The node of the innermost function of a chain of inlined functions below `parent`.
    #[inline]
    pub fn inlined(&mut self, parent: NodeId, chain: ChainId, chains: &Chains) -> NodeId {
        if chain == Chains::EMPTY {
            return parent;
        }
        match self.recent_chains.get(mix(parent, chain)) {
            Some((known, same, node)) if *known == parent && *same == chain => *node,
            _ => self.add_inlined(parent, chain, chains),
        }
    }

    #[cold]
    fn add_inlined(&mut self, parent: NodeId, chain: ChainId, chains: &Chains) -> NodeId {
        let mut functions = Vec::new();
        let mut rest = chain;
        while let Some((outer, function)) = chains.innermost(rest) {
            functions.push(function);
            rest = outer;
        }
        let mut node = parent;
        for function in functions.into_iter().rev() {
            let label = Label::Inlined(function);
            node = match self.children.get(&(node, label)) {
                Some(known) => *known,
                // What it executes counts for the function that it is inlined into.
                None if self.nodes.len() >= MAX_NODES => break,
                None => self.find_or_add(node, label),
            };
        }
        if let Some(recent) = self.recent_chains.get_mut(mix(parent, chain)) {
            *recent = (parent, chain, node);
        }
        node
    }

    fn find_or_add(&mut self, parent: NodeId, label: Label) -> NodeId {
        if let Some(node) = self.children.get(&(parent, label)) {
            return *node;
        }
        if self.nodes.len() >= MAX_NODES {
            self.cut += 1;
            return parent;
        }
        let node = self.nodes.len() as NodeId;
        self.add(parent, label);
        self.children.insert((parent, label), node);
        node
    }

    /// The node with this number, which comes from this tree.
    #[inline]
    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(node as usize)
    }

    /// The tree without the nodes whose label is `hidden`: what was executed in them, and what they
    /// called, counts for their callers.
    pub fn without(&self, hidden: impl Fn(Label) -> bool) -> Self {
        let mut shown = Self::default();
        // For each node, the one that it becomes.
        let mut place: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            let parent = place.get(node.parent as usize).copied();
            let (to, is_hidden) = match (node.label, parent) {
                (Label::Program(program), _) => (shown.program(program), false),
                (label, Some(parent)) if hidden(label) => (parent, true),
                (label, Some(parent)) => (shown.child(parent, label), false),
                // The parent of a node comes before it.
                (label, None) => (shown.child(at as NodeId, label), false),
            };
            place.push(to);
            if let Some(sum) = shown.get_mut(to) {
                sum.calls += if is_hidden { 0 } else { node.calls };
                sum.instructions += node.instructions;
                sum.branches += node.branches;
            }
        }
        shown
    }

    /// Instructions and branches of each node with all nodes below it.
    pub fn totals(&self) -> Vec<(u64, u64)> {
        let mut totals: Vec<(u64, u64)> = self
            .nodes
            .iter()
            .map(|node| (node.instructions, node.branches))
            .collect();
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if node.parent as usize != at
                && let Some((instructions, branches)) = totals.get(at).copied()
                && let Some(parent) = totals.get_mut(node.parent as usize)
            {
                parent.0 = parent.0.saturating_add(instructions);
                parent.1 = parent.1.saturating_add(branches);
            }
        }
        totals
    }
}
