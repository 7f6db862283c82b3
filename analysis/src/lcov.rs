//! Coverage for other tools: lcov's tracefiles, and Cobertura's XML.

use std::io;

use super::coverage::{BranchCount, Coverage, SourceFile};
use super::{Out, Xml};

/// The hit and the found ones of some counts.
fn hits(counts: impl Iterator<Item = u64>) -> (usize, usize) {
    counts.fold((0, 0), |(hit, found), count| {
        (hit + usize::from(count > 0), found + 1)
    })
}

/// The counts of both directions of each branch.
fn directions(file: &SourceFile) -> impl Iterator<Item = u64> + '_ {
    file.branches
        .iter()
        .flat_map(|branch| [branch.taken, not_taken(branch)])
}

/// How often a branch was not taken.
pub(crate) fn not_taken(branch: &BranchCount) -> u64 {
    branch.executed.saturating_sub(branch.taken)
}

/// Writes a tracefile of lcov (geninfo(1)).
///
/// # Errors
/// The output fails.
pub fn lcov(coverage: &Coverage, out: &mut Out<'_>) -> io::Result<()> {
    for (path, file) in &coverage.files {
        writeln!(out, "TN:\nSF:{path}")?;
        for ((line, name), count) in &file.functions {
            writeln!(out, "FN:{line},{name}\nFNDA:{count},{name}")?;
        }
        let (hit, found) = hits(file.functions.values().copied());
        writeln!(out, "FNF:{found}\nFNH:{hit}")?;
        let mut block = 0;
        let mut last = 0;
        for branch in &file.branches {
            block = if branch.line == last { block + 1 } else { 0 };
            last = branch.line;
            for (number, count) in [branch.taken, not_taken(branch)].iter().enumerate() {
                write!(out, "BRDA:{},{block},{number},", branch.line)?;
                match branch.executed {
                    0 => writeln!(out, "-")?,
                    _ => writeln!(out, "{count}")?,
                }
            }
        }
        let (hit, found) = hits(directions(file));
        writeln!(out, "BRF:{found}\nBRH:{hit}")?;
        for (line, count) in &file.lines {
            writeln!(out, "DA:{line},{count}")?;
        }
        let (hit, found) = hits(file.lines.values().copied());
        writeln!(out, "LF:{found}\nLH:{hit}\nend_of_record")?;
    }
    Ok(())
}

fn rate((hit, found): (usize, usize)) -> f64 {
    match found {
        0 => 1.0,
        _ => hit as f64 / found as f64,
    }
}

/// Writes Cobertura's XML.
///
/// # Errors
/// The output fails.
pub fn cobertura(coverage: &Coverage, out: &mut Out<'_>) -> io::Result<()> {
    let files = || coverage.files.values();
    let lines = hits(files().flat_map(|file| file.lines.values().copied()));
    let branches = hits(files().flat_map(directions));
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(
        out,
        "<!DOCTYPE coverage SYSTEM \"http://cobertura.sourceforge.net/xml/coverage-04.dtd\">"
    )?;
    writeln!(
        out,
        "<coverage line-rate=\"{:.4}\" branch-rate=\"{:.4}\" lines-covered=\"{}\" \
         lines-valid=\"{}\" branches-covered=\"{}\" branches-valid=\"{}\" complexity=\"0\" \
         version=\"vbts\" timestamp=\"0\">",
        rate(lines),
        rate(branches),
        lines.0,
        lines.1,
        branches.0,
        branches.1
    )?;
    writeln!(out, "<sources><source>/</source></sources>\n<packages>")?;
    writeln!(
        out,
        "<package name=\"\" line-rate=\"{:.4}\" branch-rate=\"{:.4}\" complexity=\"0\">\n<classes>",
        rate(lines),
        rate(branches)
    )?;
    for (path, file) in &coverage.files {
        let name = path.trim_start_matches('/');
        let short = name.rsplit('/').next().unwrap_or(name);
        writeln!(
            out,
            "<class name=\"{}\" filename=\"{}\" line-rate=\"{:.4}\" branch-rate=\"{:.4}\" \
             complexity=\"0\">\n<methods/>\n<lines>",
            Xml(short),
            Xml(name),
            rate(hits(file.lines.values().copied())),
            rate(hits(directions(file)))
        )?;
        for (line, count) in &file.lines {
            let first = file.branches.partition_point(|branch| branch.line < *line);
            let after = file.branches.partition_point(|branch| branch.line <= *line);
            let of_line = file.branches.get(first..after).unwrap_or_default();
            let both = of_line
                .iter()
                .flat_map(|branch| [branch.taken, not_taken(branch)]);
            let (hit, found) = hits(both);
            if found == 0 {
                writeln!(
                    out,
                    "<line number=\"{line}\" hits=\"{count}\" branch=\"false\"/>"
                )?;
            } else {
                writeln!(
                    out,
                    "<line number=\"{line}\" hits=\"{count}\" branch=\"true\" \
                     condition-coverage=\"{:.0}% ({hit}/{found})\"/>",
                    100.0 * rate((hit, found))
                )?;
            }
        }
        writeln!(out, "</lines>\n</class>")?;
    }
    writeln!(out, "</classes>\n</package>\n</packages>\n</coverage>")
}
