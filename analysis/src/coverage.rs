//! Source files with how often their lines, functions and branches were executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use iced_x86::{Decoder, DecoderOptions, Instruction};
use vbts_trace::profile::Watch;
use vbts_trace::profile::code::{SymbolKind, Transfer, transfer};
use vbts_trace::profile::modules::{Module, ModuleId, ModuleKind};

use super::Loaded;
use super::counts::{AllCounts, ModuleCounts};
use super::names::{Room, shown};
use super::source_paths::Paths;

/// Maximum number of rows of the tables of lines, of all files together. A few bytes of a file can
/// stand for millions of them.
const MAX_ROWS: usize = 1 << 22;
/// Maximum size in bytes of the code of a row.
const MAX_ROW: u64 = 1 << 20;
/// Maximum size in bytes of a source file.
const MAX_SOURCE: u64 = 16 << 20;
/// Maximum number of its lines.
const MAX_LINES: usize = 1 << 20;
/// Maximum number of conditional branches.
const MAX_BRANCHES: usize = 1 << 21;

/// A conditional branch instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchCount {
    /// Its source line.
    pub line: u32,
    /// Its module.
    pub module: ModuleId,
    /// Its offset.
    pub offset: u64,
    /// How often it was executed.
    pub executed: u64,
    /// How often it was taken.
    pub taken: u64,
}

/// A source file.
#[derive(Debug, Default)]
pub struct SourceFile {
    /// How often its lines were executed that have code.
    pub lines: BTreeMap<u32, u64>,
    /// How often its functions were called, by their line and name.
    pub functions: BTreeMap<(u32, String), u64>,
    /// Its branches, sorted.
    pub branches: Vec<BranchCount>,
}

/// The source files.
#[derive(Debug, Default)]
pub struct Coverage {
    /// By their paths.
    pub files: BTreeMap<String, SourceFile>,
    /// Rows that there was no memory for.
    pub left_out: u64,
}

/// The source line of some code.
#[derive(Debug, Clone, Copy)]
struct Row {
    start: u64,
    size: u64,
    line: u32,
    file: u32,
}

/// Which source files are wanted.
#[derive(Debug)]
pub struct Selection {
    /// Relative paths begin here.
    pub directory: PathBuf,
    /// Only files in these directories, or these files; all, if there are none.
    pub only: Vec<PathBuf>,
}

/// The wanted source files that were found.
#[derive(Debug)]
struct Sources<'a> {
    selection: &'a Selection,
    paths: Paths,
    /// Room for the names of their functions.
    room: Room,
}

impl Sources<'_> {
    /// The number of a wanted source file; `None` if it is not found.
    fn number(&mut self, path: &str, exists: impl FnOnce(&Path) -> bool) -> Option<u32> {
        let whole = clean(&self.selection.directory.join(path));
        if !exists(&whole) {
            return None;
        }
        self.paths.number(&shown(&whole.to_string_lossy()))
    }

    /// Whether a source file is wanted.
    fn is_wanted(&self, path: &str) -> bool {
        let only = &self.selection.only;
        if only.is_empty() {
            return true;
        }
        let whole = clean(&self.selection.directory.join(path));
        only.iter().any(|prefix| whole.starts_with(prefix))
    }
}

/// A path without `.` and `..`.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    clean
}

/// Finds the source lines of all modules whose code was executed, in the source files that exist
/// and that `selection` has.
pub fn coverage<W: Watch>(profile: &mut Loaded<W>, selection: &Selection) -> Coverage {
    let counts = AllCounts::of(profile);
    let mut sources = Sources {
        selection,
        paths: Paths::default(),
        room: Room::default(),
    };
    let mut coverage = Coverage::default();
    let mut files: Vec<SourceFile> = Vec::new();
    let mut left = MAX_ROWS;
    for id in profile.executed_modules() {
        let (code, modules) = profile.code();
        let module = modules.get(id).clone();
        let Some(counts) = counts.module(id) else {
            continue;
        };
        let kinds = [ModuleKind::File, ModuleKind::Kernel, ModuleKind::Generated];
        if !kinds.contains(&module.kind) {
            continue;
        }
        let mut rows: Vec<Row> = Vec::new();
        let mut paths = Paths::default();
        code.files.lines(&module, &mut |start, size, line, path| {
            if left == 0 {
                coverage.left_out += 1;
                return false;
            }
            left -= 1;
            if !sources.is_wanted(path) {
                return true;
            }
            if let Some(file) = paths.number(path).filter(|_| size <= MAX_ROW) {
                let row = Row {
                    start,
                    size,
                    line,
                    file,
                };
                rows.push(row);
            }
            true
        });
        let mut open = |path: &Path| code.files.open_source(path).is_some();
        let numbers = paths
            .list
            .iter()
            .map(|path| sources.number(path, &mut open));
        let numbers: Vec<Option<u32>> = numbers.collect();
        rows.retain_mut(|row| {
            let number = numbers.get(row.file as usize).copied().flatten();
            row.file = number.unwrap_or(0);
            number.is_some()
        });
        rows.sort_by_key(|row| row.start);
        files.resize_with(sources.paths.list.len(), SourceFile::default);
        add_lines(profile, id, counts, &rows, &mut files);
        coverage.left_out += add_functions(
            profile,
            &module,
            counts,
            &rows,
            &mut sources.room,
            &mut files,
        );
        coverage.left_out += add_branches(profile, &module, counts, &rows, &mut files);
    }
    for (path, mut file) in sources.paths.list.into_iter().zip(files) {
        file.branches.sort_unstable();
        file.branches
            .dedup_by_key(|branch| (branch.line, branch.module, branch.offset));
        coverage.files.insert(path, file);
    }
    coverage
}

/// Adds the lines: in each function the count of the instruction that was executed most.
fn add_lines<W: Watch>(
    profile: &Loaded<W>,
    module: ModuleId,
    counts: &ModuleCounts,
    rows: &[Row],
    files: &mut [SourceFile],
) {
    let symbols = profile.functions().symbols(module);
    let of_row = |row: &Row| {
        let function = symbols.partition_point(|symbol| symbol.start <= row.start);
        let count = counts.most(row.start, row.start.saturating_add(row.size));
        (row.file, row.line, function, Reverse(count))
    };
    let mut most: Vec<_> = rows.iter().map(of_row).collect();
    most.sort_unstable();
    most.dedup_by_key(|(file, line, function, _)| (*file, *line, *function));
    for (file, line, _, Reverse(count)) in most {
        if let Some(file) = files.get_mut(file as usize) {
            let sum = file.lines.entry(line).or_default();
            *sum = sum.saturating_add(count);
        }
    }
}

fn row_at(rows: &[Row], offset: u64) -> Option<&Row> {
    let after = rows.partition_point(|row| row.start <= offset);
    let row = rows.get(after.checked_sub(1)?)?;
    (offset - row.start < row.size).then_some(row)
}

/// Adds the functions. Returns the number of those whose names there is no room for.
fn add_functions<W: Watch>(
    profile: &mut Loaded<W>,
    module: &Module,
    counts: &ModuleCounts,
    rows: &[Row],
    room: &mut Room,
    files: &mut [SourceFile],
) -> u64 {
    let mut left_out = 0;
    let symbols = profile.functions().symbols(module.id).iter();
    let found: Vec<(u64, Row)> = symbols
        .filter(|symbol| symbol.kind == SymbolKind::Function)
        .filter_map(|symbol| Some((symbol.start, *row_at(rows, symbol.start)?)))
        .collect();
    let offsets: Vec<u64> = found.iter().map(|(offset, _)| *offset).collect();
    let (code, _) = profile.code();
    code.files.find(module, &offsets, &mut |n, answer| {
        if let Some((offset, row)) = found.get(n)
            && let Some((name, 0)) = answer.function
            && let Some(file) = files.get_mut(row.file as usize)
        {
            let Some(name) = room.take(shown(name)) else {
                left_out += 1;
                return;
            };
            let sum = file.functions.entry((row.line, name)).or_default();
            *sum = sum.saturating_add(counts.at(*offset));
        }
    });
    left_out
}

/// Adds the conditional branches. Returns the number of rows that there is no room for.
fn add_branches<W: Watch>(
    profile: &mut Loaded<W>,
    module: &Module,
    counts: &ModuleCounts,
    rows: &[Row],
    files: &mut [SourceFile],
) -> u64 {
    let (code, _) = profile.code();
    let bits = code.bits(module);
    let mut instruction = Instruction::default();
    let mut done = 0;
    let mut left = MAX_BRANCHES - files.iter().map(|f| f.branches.len()).sum::<usize>();
    for (at, row) in rows.iter().enumerate() {
        if left == 0 {
            return (rows.len() - at) as u64;
        }
        // Rows of a hostile file overlap.
        if row.start < done {
            continue;
        }
        done = row.start.saturating_add(row.size);
        let bytes = code.read(module, row.start, row.size);
        let mut decoder = Decoder::with_ip(bits, bytes, row.start, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let Transfer::Jump {
                conditional: true, ..
            } = transfer(&instruction)
            else {
                continue;
            };
            if left == 0 {
                break;
            }
            if let Some(file) = files.get_mut(row.file as usize) {
                left -= 1;
                let offset = instruction.ip();
                file.branches.push(BranchCount {
                    line: row.line,
                    module: module.id,
                    offset,
                    executed: counts.at(offset),
                    taken: counts.taken(offset),
                });
            }
        }
    }
    0
}

/// The lines of a source file, as printable text.
pub(crate) fn source_lines<W: Watch>(profile: &mut Loaded<W>, path: &str) -> Vec<String> {
    let (code, _) = profile.code();
    let bytes = code.files.read_source(Path::new(path), MAX_SOURCE);
    let text = String::from_utf8_lossy(&bytes);
    text.lines()
        .take(MAX_LINES)
        .map(|line| shown(&line.replace('\t', "        ")))
        .collect()
}
