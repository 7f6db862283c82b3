//! A flame graph: one SVG file, in which a browser can zoom and search. The script in it is our
//! own.

use std::io;

use vbts_trace::profile::Watch;

use super::calls::sorted_children;
use super::names::shown;
use super::{Loaded, Names, Out, Xml, percent};

/// Width of the picture in pixels.
const WIDTH: f64 = 1200.0;
/// Height of a frame in pixels.
const ROW: usize = 17;
/// Frames that are less wide than this are left out, in pixels.
const LEAST: f64 = 0.1;
/// Height of what is above and below the frames in pixels.
const MARGIN: usize = 40;
/// Maximum depth that is shown.
const MAX_DEPTH: usize = 1 << 10;
/// Width of a character in pixels.
const CHARACTER: f64 = 7.0;

const STYLE: &str = "text{font:12px monospace;pointer-events:none}.f{cursor:pointer}\
.f:hover rect{stroke:#000}.m rect{fill:#d050d0}#search,#reset{cursor:pointer;pointer-events:all;\
fill:#06c}";

/// What a browser does: zooms at a click, searches at Ctrl-F or a click on \"search\".
const SCRIPT: &str = include_str!("flamegraph.js");

/// A frame in the picture.
struct Frame<'a> {
    name: &'a str,
    /// Position and width in instructions.
    x: u64,
    width: u64,
    depth: usize,
    /// `None` for an inlined function.
    calls: Option<u64>,
}

/// Draws a flame graph of the call tree, by instructions.
///
/// # Errors
/// The output fails.
pub fn flamegraph<W: Watch>(
    profile: &mut Loaded<W>,
    title: &str,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let names = Names::of(profile);
    let tree = profile.shown_tree();
    let (nodes, totals) = (tree.nodes(), tree.totals());
    let (roots, children) = sorted_children(nodes, &totals);
    let total = |node: &u32| totals.get(*node as usize).map_or(0, |total| total.0);
    let whole: u64 = roots.iter().map(total).sum();
    let is_visible = |width: u64| width as f64 * WIDTH >= LEAST * whole as f64 && width > 0;
    let mut frames = Vec::new();
    let mut open: Vec<(u32, u64, usize)> = Vec::new();
    let push = |list: &[u32], mut x: u64, depth: usize, open: &mut Vec<(u32, u64, usize)>| {
        for node in list {
            open.push((*node, x, depth));
            x = x.saturating_add(total(node));
        }
    };
    push(&roots, 0, 0, &mut open);
    while let Some((at, x, depth)) = open.pop() {
        let width = total(&at);
        let Some(node) = nodes.get(at as usize).filter(|_| is_visible(width)) else {
            continue;
        };
        frames.push(Frame {
            name: names.label(node.label),
            x,
            width,
            depth,
            calls: node.counted_calls(),
        });
        if depth < MAX_DEPTH {
            push(
                children.get(at as usize).map_or(&[], Vec::as_slice),
                x,
                depth + 1,
                &mut open,
            );
        }
    }
    let depth = frames
        .iter()
        .map(|frame| frame.depth + 1)
        .max()
        .unwrap_or(0);
    let height = depth * ROW + 2 * MARGIN;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f8f8f8\"/>\n\
         <text x=\"600\" y=\"24\" text-anchor=\"middle\">{}</text>\n\
         <text id=\"reset\" x=\"8\" y=\"24\" visibility=\"hidden\">whole</text>\n\
         <text id=\"search\" x=\"1140\" y=\"24\">search</text>\n\
         <text id=\"details\" x=\"8\" y=\"{}\"> </text>\n\
         <text id=\"found\" x=\"1000\" y=\"{}\"> </text>\n<g id=\"frames\">",
        Xml(&shown(title)),
        height - 12,
        height - 12
    )?;
    for frame in &frames {
        let scale = |value: u64| value as f64 * WIDTH / whole.max(1) as f64;
        let (x, width) = (scale(frame.x), scale(frame.width));
        let y = MARGIN + frame.depth * ROW;
        let room = (width / CHARACTER) as usize;
        let text: String = match frame.name.chars().count() {
            count if count <= room => frame.name.to_owned(),
            _ if room < 3 => String::new(),
            _ => frame
                .name
                .chars()
                .take(room - 2)
                .chain("..".chars())
                .collect(),
        };
        let calls = frame.calls.map(|calls| format!(", {calls} calls"));
        let calls = calls.unwrap_or_default();
        writeln!(
            out,
            "<g class=\"f\" data-x=\"{}\" data-w=\"{}\" data-n=\"{}\"><title>{}: {} instructions \
             ({:.2}%){calls}</title><rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" \
             height=\"{}\" fill=\"{}\" rx=\"1\"/><text x=\"{:.2}\" y=\"{}\">{}</text></g>",
            frame.x,
            frame.width,
            Xml(frame.name),
            Xml(frame.name),
            frame.width,
            percent(frame.width, whole),
            ROW - 1,
            color(frame.name),
            x + 3.0,
            y + 12,
            Xml(&text)
        )?;
    }
    writeln!(
        out,
        "</g>\n<script><![CDATA[\nconst whole = {whole};\n{SCRIPT}]]></script>\n</svg>"
    )
}

/// A warm color that depends on the name only, so that two graphs can be compared.
fn color(name: &str) -> String {
    let hash = name.bytes().fold(0_u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    let hash = hash.wrapping_mul(0x9E37_79B1) >> 8;
    format!(
        "rgb({},{},{})",
        205 + hash % 50,
        90 + hash / 64 % 130,
        hash / 16384 % 60
    )
}
