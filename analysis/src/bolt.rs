//! Profiles for tools that optimise and show binary code.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use iced_x86::{Decoder, DecoderOptions};
use vbts_trace::profile::Watch;
use vbts_trace::profile::code::MAX_INSTRUCTION;
use vbts_trace::profile::modules::{ModuleId, ModuleKind, Place};

use super::{Loaded, Out};

/// The executed file called `name`, by its path or the last part of it. Without a name, the file of
/// the first task's program, or that with most instructions.
pub fn find_module<W: Watch>(profile: &Loaded<W>, name: Option<&str>) -> Option<ModuleId> {
    let executed = profile.executed_modules().into_iter();
    let files = executed.filter(|id| profile.modules().get(*id).kind == ModuleKind::File);
    let files: Vec<ModuleId> = files.collect();
    let path = |id: &ModuleId| profile.modules().get(*id).name.as_str();
    let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    if let Some(name) = name {
        let is_wanted = |id: &ModuleId| path(id) == name || last(path(id)) == name;
        return files.iter().copied().find(is_wanted);
    }
    // They are in the order in which they have ended.
    let tasks = profile.tasks().iter().min_by_key(|(number, _)| *number);
    let program = tasks.map(|(_, task)| task.program as usize);
    let program = program.and_then(|at| profile.programs().get(at));
    let program = program.map(|name| String::from_utf8_lossy(name));
    let by_name = files.iter().find(|id| program.as_deref() == Some(path(id)));
    let mut instructions: BTreeMap<ModuleId, u64> = BTreeMap::new();
    for (line, count) in profile.lines() {
        let sum = instructions.entry(line.start.module).or_default();
        *sum = sum.saturating_add(count.count.saturating_mul(count.instructions.into()));
    }
    let largest = files.iter().max_by_key(|id| instructions.get(id));
    by_name.or(largest).copied()
}

/// Taken branches with their counts: by their address and that of their target, 0 in another file.
type Branches = BTreeMap<(u64, u64), u64>;
/// Straight lines with their counts: by the addresses of their first and their last instruction.
type Lines = BTreeMap<(u64, u64), u64>;

/// The branches and straight lines of a file, by addresses in its ELF file.
fn of_file<W: Watch>(profile: &mut Loaded<W>, module: ModuleId) -> (Branches, Lines) {
    let mut edges: BTreeMap<(Place, Place), u64> = BTreeMap::new();
    for (edge, count) in profile.edges().filter(|(edge, _)| !edge.is_event) {
        if edge.from.module == module || edge.to.module == module {
            *edges.entry((edge.from, edge.to)).or_default() += count;
        }
    }
    let symbols = profile.functions().symbols(module);
    // The tools take a stub of the linkage table for one jump, and do not know the code to which
    // all stubs jump that are not resolved.
    let is_stub = |offset: u64| {
        let after = symbols.partition_point(|symbol| symbol.start <= offset);
        let symbol = after.checked_sub(1).and_then(|at| symbols.get(at));
        symbol.is_some_and(|symbol| offset < symbol.end && symbol.kind.is_linkage())
    };
    let from_stubs: BTreeSet<u64> = edges
        .keys()
        .filter(|(from, to)| from.module == module && to.module == module && is_stub(from.offset))
        .map(|(_, to)| to.offset)
        .collect();
    let mut offsets: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (line, count) in profile.lines() {
        let is_function = !is_stub(line.start.offset) && !from_stubs.contains(&line.start.offset);
        if line.start.module == module && line.complete && is_function {
            *offsets.entry((line.start.offset, line.last)).or_default() += count.count;
        }
    }
    let (code, modules) = profile.code();
    let file = modules.get(module);
    let mut address = |place: Place| match place.module == module {
        true => code.files.address(file, place.offset).unwrap_or(0),
        false => 0,
    };
    let (mut branches, mut lines) = (Branches::new(), Lines::new());
    for ((from, to), count) in edges {
        *branches.entry((address(from), address(to))).or_default() += count;
    }
    for ((start, last), count) in offsets {
        let place = |offset| Place { module, offset };
        let addresses = (address(place(start)), address(place(last)));
        *lines.entry(addresses).or_default() += count;
    }
    (branches, lines)
}

/// Writes the profile of a file in BOLT's pre-aggregated format: `B` is a branch with its count,
/// `F` the code between two branches. Addresses are those in the ELF file; 0 is another file.
///
/// # Errors
/// The output fails.
pub fn bolt<W: Watch>(
    profile: &mut Loaded<W>,
    module: ModuleId,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let (branches, lines) = of_file(profile, module);
    for ((from, to), count) in branches {
        writeln!(out, "B {from:x} {to:x} {count} 0")?;
    }
    for ((start, last), count) in lines {
        writeln!(out, "F {start:x} {last:x} {count}")?;
    }
    Ok(())
}

/// Writes the profile of a file in the text format that AutoFDO's `create_llvm_prof` reads: the
/// number of straight lines and the lines, the number of sampled addresses (none), the number of
/// branches and the branches. Addresses are relative to the first loaded segment.
///
/// # Errors
/// The output fails.
pub fn autofdo<W: Watch>(
    profile: &mut Loaded<W>,
    module: ModuleId,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let (mut branches, lines) = of_file(profile, module);
    branches.retain(|(from, to), _| *from != 0 && *to != 0);
    let (code, modules) = profile.code();
    let base = code.files.base(modules.get(module));
    let relative = |address: u64| address.wrapping_sub(base);
    writeln!(out, "{}", lines.len())?;
    for ((start, last), count) in lines {
        writeln!(out, "{:x}-{:x}:{count}", relative(start), relative(last))?;
    }
    writeln!(out, "0\n{}", branches.len())?;
    for ((from, to), count) in branches {
        writeln!(out, "{:x}->{:x}:{count}", relative(from), relative(to))?;
    }
    Ok(())
}

/// Writes the executed code of all files in DynamoRIO's drcov format, version 2.
///
/// # Errors
/// The output fails.
pub fn drcov<W: Watch>(profile: &mut Loaded<W>, out: &mut Out<'_>) -> io::Result<()> {
    let mut lines: Vec<(ModuleId, u64, u64, bool)> = profile
        .lines()
        .map(|(line, _)| {
            (
                line.start.module,
                line.start.offset,
                line.last,
                line.complete,
            )
        })
        .collect();
    lines.sort_unstable();
    let (code, modules) = profile.code();
    let mut numbers: BTreeMap<ModuleId, usize> = BTreeMap::new();
    let mut blocks: Vec<u8> = Vec::new();
    let mut ends: BTreeMap<ModuleId, u64> = BTreeMap::new();
    for (id, start, last, complete) in lines {
        let module = modules.get(id);
        if module.kind != ModuleKind::File {
            continue;
        }
        let bits = code.bits(module);
        let bytes = code.read(module, last, MAX_INSTRUCTION);
        let mut decoder = Decoder::with_ip(bits, bytes, last, DecoderOptions::NONE);
        let length = if complete {
            decoder.decode().len() as u64
        } else {
            0
        };
        let Some(address) = code.files.address(module, start) else {
            continue;
        };
        let size = (last - start).saturating_add(length);
        // The format has 32 bits for an offset and 16 for a size. Longer lines are divided.
        let mut at = address;
        let end = address.saturating_add(size);
        let next = numbers.len();
        let number = *numbers.entry(id).or_insert(next);
        while at < end {
            let part = (end - at).min(u64::from(u16::MAX));
            let (Ok(offset), Ok(part), Ok(number)) = (
                u32::try_from(at),
                u16::try_from(part),
                u16::try_from(number),
            ) else {
                break;
            };
            blocks.extend_from_slice(&offset.to_le_bytes());
            blocks.extend_from_slice(&part.to_le_bytes());
            blocks.extend_from_slice(&number.to_le_bytes());
            at += u64::from(part);
        }
        let known = ends.entry(id).or_default();
        *known = end.max(*known);
    }
    writeln!(out, "DRCOV VERSION: 2\nDRCOV FLAVOR: drcov")?;
    writeln!(out, "Module Table: version 2, count {}", numbers.len())?;
    writeln!(out, "Columns: id, base, end, entry, path")?;
    let mut by_number: Vec<(usize, ModuleId)> = numbers.iter().map(|(id, n)| (*n, *id)).collect();
    by_number.sort_unstable();
    for (number, id) in by_number {
        let end = ends.get(&id).copied().unwrap_or(0);
        let path = super::names::shown(&modules.get(id).name);
        writeln!(out, "{number}, 0x0, {end:#x}, 0x0, {path}")?;
    }
    writeln!(out, "BB Table: {} bbs", blocks.len() / 8)?;
    out.write_all(&blocks)
}
