//! Call stacks in the format of Brendan Gregg's FlameGraph: the names of the frames with `;`
//! between them, and the number of instructions.

use std::io;

use vbts_trace::profile::Watch;

use super::calls::sorted_children;
use super::{Loaded, Names, Out};

/// Maximum length of a line in bytes. The names in the middle of a longer one are left out.
const MAX_LINE: usize = 64 << 10;

/// Writes the call stacks.
///
/// # Errors
/// The output fails.
pub fn folded<W: Watch>(profile: &mut Loaded<W>, out: &mut Out<'_>) -> io::Result<()> {
    let names = Names::of(profile);
    let tree = profile.shown_tree();
    let (nodes, totals) = (tree.nodes(), tree.totals());
    let (roots, children) = sorted_children(nodes, &totals);
    let mut open: Vec<(u32, usize)> = roots.iter().rev().map(|root| (*root, 0)).collect();
    let mut stack = String::new();
    while let Some((at, length)) = open.pop() {
        stack.truncate(length);
        let Some(node) = nodes.get(at as usize) else {
            continue;
        };
        if !stack.is_empty() && stack.len() < MAX_LINE {
            stack.push(';');
        }
        if stack.len() < MAX_LINE {
            // What the format has a use for is replaced.
            let name = names.label(node.label);
            stack.extend(name.chars().map(|c| if c == ';' { ':' } else { c }));
        }
        if node.instructions > 0 {
            writeln!(out, "{stack} {}", node.instructions)?;
        }
        let below = children.get(at as usize).into_iter().flatten().rev();
        open.extend(below.map(|child| (*child, stack.len())));
    }
    Ok(())
}
