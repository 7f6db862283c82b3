//! The pictures and pages of `vbts report` in Chromium.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};

use super::{Traced, report, tool, traced};

const WEBDRIVER: &str = include_str!("webdriver.py");

/// The visible frames of a flame graph: name, position and width in instructions and in pixels.
const FRAMES: &str = "[...document.querySelectorAll('#frames > g')]
    .filter(g => g.style.display != 'none')
    .map(g => { const r = g.querySelector('rect').getBoundingClientRect();
        return [g.dataset.n, Number(g.dataset.x), Number(g.dataset.w), r.left, r.width]; })";

/// A frame that is visible.
#[derive(Debug)]
struct Frame {
    name: String,
    x: f64,
    width: f64,
    left: f64,
    pixels: f64,
}

/// Shows a file in Chromium: see `webdriver.py`. Returns what the steps ask for.
fn browse(file: &Path, steps: &[(&str, &str)]) -> Result<Vec<Value>> {
    tool("chromium", &[])?;
    tool("chromedriver", &[])?;
    let mut command = Command::new("python3");
    command.args(["-c", WEBDRIVER]).arg(file);
    command.args(steps.iter().flat_map(|(kind, argument)| [kind, argument]));
    let output = machine::finish(command)?.expect(0)?.stdout;
    let mut values: Vec<Value> = serde_json::from_slice(&output)?;
    let errors = values.pop().context("no values")?;
    ensure!(errors == Value::Array(Vec::new()), "{errors}");
    Ok(values)
}

fn frames(value: &Value) -> Result<Vec<Frame>> {
    let frame = |row: &Value| {
        let number = |at: usize| row[at].as_f64();
        Some(Frame {
            name: row[0].as_str()?.to_owned(),
            x: number(1)?,
            width: number(2)?,
            left: number(3)?,
            pixels: number(4)?,
        })
    };
    let rows = value.as_array().context("no frames")?;
    let frames: Option<Vec<Frame>> = rows.iter().map(frame).collect();
    frames.context("not a frame")
}

/// Whether each frame is where it should be while `whole` is as wide as the picture.
fn fit(frames: &[Frame], whole: &Frame) -> bool {
    let scale = 1200.0 / whole.width;
    let close = |a: f64, b: f64| (a - b).abs() < 0.1;
    frames.iter().all(|frame| {
        let left = (frame.x - whole.x).max(0.0) * scale;
        let right = ((frame.x + frame.width - whole.x) * scale).min(1200.0);
        right > left && close(frame.pixels, right - left) && close(frame.left, left)
    })
}

fn example(machine: &Machine) -> Result<Traced> {
    traced(machine, &["-O0", "-g"], &["k"])
}

/// A flame graph has each frame at its place, zooms at a click, and finds functions.
pub(super) fn flamegraph(machine: &Machine) -> Result<()> {
    let traced = example(machine)?;
    let file = traced.directory.path().join("a.svg");
    std::fs::write(&file, report(machine, &["flamegraph"], &traced.trace)?)?;
    let found = "document.querySelector('#found').textContent";
    let steps = [
        ("get", FRAMES),
        ("click", "#frames > g[data-n='main']"),
        ("get", FRAMES),
        ("get", "document.querySelector('#details').textContent"),
        ("click", "#reset"),
        ("get", FRAMES),
        ("find", "^(fib|main)$"),
        ("get", found),
        ("get", "document.querySelectorAll('#frames > g.m').length"),
        ("find", "^fib$"),
        ("get", found),
    ];
    let values = browse(&file, &steps)?;
    let [shown, zoomed, details, again, both, marked, fib] = &values[..] else {
        anyhow::bail!("{values:?}");
    };
    let shown = frames(shown)?;
    ensure!(shown.len() > 50, "{} frames", shown.len());
    let whole = shown.iter().max_by(|a, b| a.width.total_cmp(&b.width));
    let whole = whole.context("no frames")?;
    ensure!(fit(&shown, whole), "{shown:#?}");

    let named = |name: &str| shown.iter().filter(|frame| frame.name == name).collect();
    let mains: Vec<&Frame> = named("main");
    ensure!(mains.len() == 1, "{mains:?}");
    let zoomed = frames(zoomed)?;
    ensure!(
        zoomed.len() < shown.len() && fit(&zoomed, mains[0]),
        "{zoomed:#?}"
    );
    ensure!(
        zoomed.iter().any(|frame| frame.name == "fib"),
        "{zoomed:#?}"
    );
    let counted = format!("main: {} instructions ", mains[0].width);
    ensure!(
        details
            .as_str()
            .is_some_and(|text| text.starts_with(&counted)),
        "{details} instead of {counted}"
    );
    let again = frames(again)?;
    ensure!(
        again.len() == shown.len() && fit(&again, whole),
        "{again:#?}"
    );

    // fib calls itself, and main calls it.
    let fibs: Vec<&Frame> = named("fib");
    let outer: f64 = fibs
        .iter()
        .filter(|frame| {
            let within = |other: &&&Frame| {
                other.width > frame.width
                    && other.x <= frame.x
                    && other.x + other.width >= frame.x + frame.width
            };
            !fibs.iter().any(|other| within(&other))
        })
        .map(|frame| frame.width)
        .sum();
    let share = |width: f64| format!("found: {:.2}%", 100.0 * width / whole.width);
    ensure!(*both == share(mains[0].width), "{both}");
    ensure!(*marked == fibs.len() + 1, "{marked} are marked");
    ensure!(*fib == share(outer), "{fib} instead of {}", share(outer));
    Ok(())
}

/// The page with the coverage has a table whose numbers are those of the lines that it shows.
pub(super) fn coverage(machine: &Machine) -> Result<()> {
    let traced = example(machine)?;
    let file = traced.directory.path().join("a.html");
    std::fs::write(&file, report(machine, &["html"], &traced.trace)?)?;
    let rows = "[...document.querySelectorAll('table tr')].slice(1).map(row => {
        const link = row.querySelector('a');
        const file = document.querySelector(link.getAttribute('href'));
        const count = names => file.querySelectorAll(names).length;
        return [link.textContent, row.cells[2].textContent,
            `${count('.h,.p')} of ${count('.h,.p,.n')}`, file.open]; })";
    let link = "table a[href='#f0']";
    let values = browse(&file, &[("get", rows), ("click", link), ("get", rows)])?;
    let [before, after] = &values[..] else {
        anyhow::bail!("{values:?}");
    };
    let rows = before.as_array().context("no table")?;
    let own = |row: &&Value| {
        row[0]
            .as_str()
            .is_some_and(|path| path.ends_with("/answers.c"))
    };
    let own = rows.iter().find(own).context("no answers.c")?;
    ensure!(own[1] == own[2], "{own}");
    let missing = |row: &&Value| row[2] == "0 of 0";
    ensure!(
        rows.iter().all(|row| row[1] == row[2] || missing(&row)),
        "{before}"
    );
    ensure!(
        after[0][3] == true,
        "the link does not open its file: {after}"
    );
    Ok(())
}
