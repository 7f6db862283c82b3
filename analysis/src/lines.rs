//! Source files and assembly with counts.

use std::io;

use iced_x86::{Decoder, DecoderOptions, FastFormatter, Instruction};
use vbts_trace::profile::Watch;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::Place;

use super::counts::AllCounts;
use super::coverage::{Coverage, source_lines};
use super::functions::rows_by_function;
use super::names::name_places;
use super::{Loaded, Names, Out};

/// Maximum size in bytes of a function that is shown.
const MAX_FUNCTION: u64 = 1 << 20;
/// Number of its instructions whose lines are in memory at once.
const NAMED_AT_ONCE: usize = 4096;

/// Shows source files with the count of each line, in the format of gcov(1).
///
/// # Errors
/// The output fails.
pub fn lines<W: Watch>(
    profile: &mut Loaded<W>,
    coverage: &Coverage,
    out: &mut Out<'_>,
) -> io::Result<()> {
    for (path, file) in &coverage.files {
        writeln!(out, "{:>9}:{:>5}:Source:{path}", "-", 0)?;
        let texts = source_lines(profile, path);
        let last = file.lines.keys().next_back().copied().unwrap_or(0);
        let known = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        for line in 1..=known {
            let text = texts.get(line as usize - 1).map_or("", String::as_str);
            match file.lines.get(&line) {
                None => writeln!(out, "{:>9}:{line:>5}:{text}", "-")?,
                Some(0) => writeln!(out, "{:>9}:{line:>5}:{text}", "#####")?,
                Some(count) => writeln!(out, "{count:>9}:{line:>5}:{text}")?,
            }
        }
        if last > known {
            // The file has changed, or cannot be read.
            for (line, count) in file.lines.range(known.saturating_add(1)..) {
                writeln!(out, "{count:>9}:{line:>5}:/*EOF*/")?;
            }
        }
    }
    Ok(())
}

/// Shows the instructions of functions with their counts: of those called `name`, or of the `limit`
/// functions with most instructions.
///
/// # Errors
/// The output fails.
pub fn assembly<W: Watch>(
    profile: &mut Loaded<W>,
    names: &Names,
    name: Option<&str>,
    limit: usize,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let counts = AllCounts::of(profile);
    let mut rows: Vec<(FunctionId, u64)> = rows_by_function(profile)
        .into_iter()
        .filter(|(id, _)| name.is_none_or(|name| names.function(*id).name == name))
        .map(|(id, row)| (id, row.instructions))
        .collect();
    rows.sort_by_key(|(id, instructions)| (std::cmp::Reverse(*instructions), *id));
    rows.truncate(limit);
    for (id, instructions) in rows {
        let function = profile.functions().get(id);
        let Place { module, offset } = function.start;
        let symbols = profile.functions().symbols(module);
        let at = symbols.partition_point(|symbol| symbol.start < offset);
        let end = symbols
            .get(at)
            .filter(|symbol| symbol.start == offset)
            .map(|symbol| symbol.end);
        let Some(counts) = counts.module(module) else {
            continue;
        };
        let shown = names.function(id);
        let place = names.module(module);
        writeln!(out, "{} ({place}): {instructions} instructions", shown.name)?;
        let Some(end) = end else {
            writeln!(
                out,
                "    its size is not known, because its file does not have it"
            )?;
            continue;
        };
        let size = (end - offset).min(MAX_FUNCTION);
        let (code, modules) = profile.code();
        let bits = code.bits(modules.get(module));
        let bytes = code.read(modules.get(module), offset, size).to_vec();
        let mut decoder = Decoder::with_ip(bits, &bytes, offset, DecoderOptions::NONE);
        let mut formatter = FastFormatter::new();
        formatter.options_mut().set_use_hex_prefix(true);
        let mut list: Vec<Instruction> = Vec::new();
        while decoder.can_decode() {
            list.push(decoder.decode());
        }
        let mut last = String::new();
        let mut text = String::new();
        let labelled = list.chunks(NAMED_AT_ONCE).flat_map(|part| {
            let place = |at: &Instruction| Place {
                module,
                offset: at.ip(),
            };
            let places: Vec<Place> = part.iter().map(place).collect();
            part.iter().zip(name_places(profile, &places))
        });
        for (instruction, label) in labelled {
            // The line stands behind the name.
            let line = label
                .split_once(" (")
                .map_or("", |(_, line)| line.trim_end_matches(')'));
            if !line.is_empty() && line != last {
                writeln!(out, "{:>14}  {line}", "")?;
                line.clone_into(&mut last);
            }
            text.clear();
            formatter.format(instruction, &mut text);
            let count = counts.at(instruction.ip());
            write!(out, "{count:>14}  {:>8x}  {text}", instruction.ip())?;
            let taken = counts.taken(instruction.ip());
            if taken > 0 && instruction.is_jcc_short_or_near() {
                write!(out, "  (taken {taken})")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}
