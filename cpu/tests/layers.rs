//! Checks that the files of the crate import only from their own layer and from layers below it.

#![allow(clippy::expect_used, reason = "a test stops at the first error")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the lowest. Each is a directory, or a file of that name.
const LAYERS: [&str; 9] = [
    "state",
    "model",
    "mmu",
    "insn",
    "decode",
    "processor",
    "exec",
    "backend",
    "engine",
];

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

/// The layers that `source` names in paths that begin with `crate::`.
fn imports(source: &str) -> BTreeSet<usize> {
    let code = source.lines().filter(|l| !l.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1))
        .filter_map(|path| {
            let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
            layer(&path[..end.unwrap_or(path.len())])
        })
        .collect()
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Each file with a layer above its own that it imports from.
fn upward_imports() -> BTreeSet<(String, &'static str)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&root, &mut paths);
    let mut found = BTreeSet::new();
    let mut layered = 0;
    for path in paths {
        let name = path.strip_prefix(&root).expect("inside the root");
        let name = name.to_str().expect("a name in ASCII").to_owned();
        let top = name.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = layer(top) else {
            assert_eq!(name, "lib.rs", "{name} is in no layer");
            continue;
        };
        layered += 1;
        let source = fs::read_to_string(&path).expect("a readable source");
        let above = imports(&source).into_iter().filter(|&other| other > own);
        found.extend(above.map(|other| (name.clone(), LAYERS[other])));
    }
    assert!(layered > LAYERS.len(), "the sources were not found");
    found
}

#[test]
fn files_import_only_from_layers_below() {
    let found = upward_imports();
    assert!(found.is_empty(), "imports from a layer above: {found:#?}");
}

#[test]
fn an_import_is_found_in_any_path() {
    let source = "use crate::engine::Exit;\nfn f() { crate::state::x() }\n// crate::exec\n";
    let expected = [layer("state"), layer("engine")].map(Option::unwrap);
    assert_eq!(imports(source), BTreeSet::from(expected));
}
