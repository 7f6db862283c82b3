//! The call tree with counts.

use std::io;

use serde_json::json;
use vbts_trace::profile::Watch;
use vbts_trace::profile::tree::{Label, Node};

use super::{Loaded, Names, Out, percent};

/// Maximum depth that is shown.
const MAX_DEPTH: usize = 512;

/// The children of each node, and the nodes without a parent, those with most instructions first.
pub(crate) fn sorted_children(nodes: &[Node], totals: &[(u64, u64)]) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut roots = Vec::new();
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        match children.get_mut(node.parent as usize) {
            Some(of_parent) if node.parent as usize != at => of_parent.push(at as u32),
            _ => roots.push(at as u32),
        }
    }
    let weight = |node: &u32| totals.get(*node as usize).copied().unwrap_or_default();
    for list in children.iter_mut().chain([&mut roots]) {
        list.sort_by(|a, b| weight(b).cmp(&weight(a)).then(a.cmp(b)));
    }
    (roots, children)
}

/// Shows the call tree, without the nodes that have less than `least` percent of all instructions.
///
/// # Errors
/// The output fails.
pub fn calls<W: Watch>(
    profile: &mut Loaded<W>,
    least: f64,
    as_json: bool,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let names = Names::of(profile);
    let whole = profile.counts().instructions;
    let tree = profile.shown_tree();
    let (nodes, totals) = (tree.nodes(), tree.totals());
    let (roots, children) = sorted_children(nodes, &totals);
    let mut open: Vec<(u32, usize)> = roots.iter().rev().map(|root| (*root, 0)).collect();
    let mut left_out = 0_u64;
    if !as_json {
        writeln!(
            out,
            "{:>14} {:>6} {:>14} {:>10}",
            "with callees", "", "instructions", "calls"
        )?;
    }
    while let Some((at, depth)) = open.pop() {
        let (Some(node), Some(total)) = (nodes.get(at as usize), totals.get(at as usize)) else {
            continue;
        };
        let share = percent(total.0, whole);
        if share < least || depth > MAX_DEPTH {
            left_out += 1;
            continue;
        }
        let name = names.label(node.label);
        if as_json {
            let parent = (node.parent != at).then_some(node.parent);
            let object = json!({
                "node": at,
                "parent": parent,
                "name": name,
                "calls": node.counted_calls(),
                "instructions": node.instructions,
                "branches": node.branches,
                "total": total.0,
            });
            writeln!(out, "{object}")?;
        } else {
            write!(
                out,
                "{:>14} {share:>5.1}% {:>14} ",
                total.0, node.instructions
            )?;
            match (node.label, node.counted_calls()) {
                (Label::Program(_), _) | (_, None) => write!(out, "{:>10}  ", "")?,
                (_, Some(calls)) => write!(out, "{calls:>10}  ")?,
            }
            writeln!(out, "{:indent$}{name}", "", indent = 2 * depth)?;
        }
        let below = children.get(at as usize).into_iter().flatten().rev();
        open.extend(below.map(|child| (*child, depth + 1)));
    }
    if left_out > 0 && !as_json {
        writeln!(
            out,
            "{left_out} subtrees with less than {least}% are left out: --least shows them"
        )?;
    }
    Ok(())
}
