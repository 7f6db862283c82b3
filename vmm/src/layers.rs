//! Checks the layers that the documentation of this crate draws against the source files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The row of each module in the table of lib.rs; row 0 is the top.
fn rows() -> BTreeMap<&'static str, usize> {
    let table = include_str!("lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .filter(|cells| cells.starts_with(['[', '`']));
    let mut rows = BTreeMap::new();
    for (row, line) in table.enumerate() {
        let (modules, _) = line.split_once('|').unwrap();
        for (at, name) in modules.split('`').enumerate() {
            if at % 2 == 1 {
                assert!(rows.insert(name, row).is_none(), "{name} is in two rows");
            }
        }
    }
    rows
}

/// All source files below `directory`.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The modules of this crate that `text` names by a path from the crate's root.
fn imports(text: &str) -> Vec<&str> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect()
}

/// Each violation of the layers by `text`, a file of `module`.
fn violations(rows: &BTreeMap<&str, usize>, module: &str, text: &str) -> Vec<String> {
    let row = rows.get(module).expect(module);
    let mut found = Vec::new();
    for import in imports(text) {
        if import == module {
            continue;
        }
        match rows.get(import) {
            Some(below) if below > row => {}
            _ => found.push(format!("{module} imports {import}")),
        }
    }
    found
}

#[test]
fn modules_import_only_from_layers_below_their_own() {
    let rows = rows();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    let mut found = Vec::new();
    for file in &files {
        let inside = file.strip_prefix(&source).unwrap();
        let first = Path::new(inside.iter().next().unwrap());
        let module = first.file_stem().unwrap().to_str().unwrap();
        // The crate's root, and this test.
        if !["lib", "layers"].contains(&module) {
            let text = std::fs::read_to_string(file).unwrap();
            found.extend(violations(&rows, module, &text));
        }
    }
    assert!(files.len() > rows.len());
    assert_eq!(found, [""; 0], "see the layers in lib.rs");
}

#[test]
fn a_violation_is_found() {
    let rows = rows();
    for (module, text, expected) in [
        ("board", "use crate::launch::Launch;", 1),
        ("config", "    let x = crate::machine::run;", 1),
        ("launch", "use crate::kvm::{self};", 0),
        ("kvm", "use crate::kvm::check;\n// as crate::launch does", 0),
    ] {
        assert_eq!(violations(&rows, module, text).len(), expected, "{text}");
    }
}
