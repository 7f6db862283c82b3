//! Coverage as one HTML file, which needs nothing else.

use std::io;

use vbts_trace::profile::Watch;

use super::coverage::{Coverage, SourceFile, source_lines};
use super::lcov::not_taken;
use super::{Loaded, Out, Xml, percent};

const STYLE: &str = "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}\
td,th{padding:2px 12px;text-align:right}td:first-child,th:first-child{text-align:left}\
pre{margin:0;font:12px monospace}pre span{display:block}.h{background:#dfd}.n{background:#fdd}\
.p{background:#ffc}i{font-style:normal;color:#777;white-space:pre}details{margin:.5em 0}\
summary{cursor:pointer;font-weight:bold}";

/// Writes a table of the source files, and each with its counts.
///
/// # Errors
/// The output fails.
pub fn html<W: Watch>(
    profile: &mut Loaded<W>,
    coverage: &Coverage,
    title: &str,
    out: &mut Out<'_>,
) -> io::Result<()> {
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><h1>{0}</h1>\n<table><tr><th>file</th><th>lines</th>\
         <th></th><th>functions</th><th></th><th>branch directions</th><th></th></tr>",
        Xml(&super::names::shown(title))
    )?;
    for (at, (path, file)) in coverage.files.iter().enumerate() {
        write!(out, "<tr><td><a href=\"#f{at}\">{}</a></td>", Xml(path))?;
        for (hit, found) in [lines(file), functions(file), directions(file)] {
            write!(
                out,
                "<td>{:.1}%</td><td>{hit} of {found}</td>",
                percent(hit, found)
            )?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table>")?;
    for (at, (path, file)) in coverage.files.iter().enumerate() {
        let open = if coverage.files.len() == 1 {
            " open"
        } else {
            ""
        };
        writeln!(
            out,
            "<details id=\"f{at}\"{open}><summary>{}</summary><pre>",
            Xml(path)
        )?;
        let texts = source_lines(profile, path);
        for (line, text) in (1_u32..).zip(&texts) {
            let count = file.lines.get(&line);
            let first = file.branches.partition_point(|branch| branch.line < line);
            let after = file.branches.partition_point(|branch| branch.line <= line);
            let branches = file.branches.get(first..after).unwrap_or_default();
            let is_partial = branches.iter().any(|b| b.taken == 0 || not_taken(b) == 0);
            let class = match count {
                None => "",
                Some(0) => "n",
                Some(_) if is_partial => "p",
                Some(_) => "h",
            };
            let shown = count.map_or(String::new(), u64::to_string);
            let pairs: Vec<String> = branches
                .iter()
                .map(|branch| format!("{}/{}", branch.taken, not_taken(branch)))
                .collect();
            writeln!(
                out,
                "<span class=\"{class}\" title=\"{}\"><i>{line:>6} {shown:>10}  </i>{}</span>",
                match pairs.is_empty() {
                    true => String::new(),
                    false => format!("taken/not taken: {}", pairs.join(" ")),
                },
                Xml(text)
            )?;
        }
        writeln!(out, "</pre></details>")?;
    }
    // A link opens the file that it leads to.
    writeln!(
        out,
        "<script>onhashchange=()=>{{const e=document.getElementById(location.hash.slice(1));\
         if(e)e.open=true}};onhashchange()</script></body></html>"
    )
}

fn share(counts: impl Iterator<Item = u64>) -> (u64, u64) {
    counts.fold((0, 0), |(hit, found), count| {
        (hit + u64::from(count > 0), found + 1)
    })
}

fn lines(file: &SourceFile) -> (u64, u64) {
    share(file.lines.values().copied())
}

fn functions(file: &SourceFile) -> (u64, u64) {
    share(file.functions.values().copied())
}

fn directions(file: &SourceFile) -> (u64, u64) {
    share(
        file.branches
            .iter()
            .flat_map(|branch| [branch.taken, not_taken(branch)]),
    )
}
