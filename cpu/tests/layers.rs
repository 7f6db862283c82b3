//! Checks that the files of the crate import only from their own layer and from layers below it.

#![allow(clippy::expect_used, reason = "a test stops at the first error")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories and files that are layers.
struct Layers {
    /// The directory that contains them.
    root: &'static str,
    /// The prefix of their paths in the language.
    path: &'static str,
    /// Their names, from the lowest. Each is a directory, or a file of that name.
    names: &'static [&'static str],
    /// Whether other files are above all of them. Otherwise there are no others, except for
    /// `lib.rs`.
    has_top: bool,
}

const CRATE: Layers = Layers {
    root: "src",
    path: "crate::",
    names: &[
        "state",
        "model",
        "mmu",
        "insn",
        "decode",
        "processor",
        "exec",
        "backend",
        "engine",
    ],
    has_top: false,
};

const JIT: Layers = Layers {
    root: "src/backend/jit",
    path: "crate::backend::jit::",
    names: &[
        "assembler",
        "registers",
        "flags",
        "vectors",
        "forms",
        "calls",
        "code",
        "translator",
        "branches",
        "templates",
    ],
    has_top: true,
};

impl Layers {
    fn layer(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|layer| *layer == name)
    }

    /// Returns the number of the layer that contains files beside the layers.
    fn top(&self) -> usize {
        self.names.len()
    }

    /// Returns the layers that `source` names in paths that begin with [`Self::path`].
    fn imports(&self, source: &str) -> BTreeSet<usize> {
        let code = source.lines().filter(|l| !l.trim_start().starts_with("//"));
        let code: Vec<_> = code.collect();
        let paths = code.join("\n");
        let name = |path: &str| {
            let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
            path[..end.unwrap_or(path.len())].to_owned()
        };
        let imported = paths.split(self.path).skip(1).flat_map(|path| {
            // A list of names, or one name.
            let list = path.strip_prefix('{').and_then(|list| list.split_once('}'));
            match list {
                Some((list, _)) => list.split(',').map(|path| name(path.trim())).collect(),
                None => vec![name(path)],
            }
        });
        imported
            .filter_map(|name| match self.layer(&name) {
                None if self.has_top => Some(self.top()),
                layer => layer,
            })
            .collect()
    }

    /// Returns each file with a layer above its own that it imports from.
    fn upward_imports(&self) -> BTreeSet<(String, &'static str)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.root);
        let mut paths = Vec::new();
        files(&root, &mut paths);
        let mut found = BTreeSet::new();
        let mut layered = 0;
        for path in paths {
            let name = path.strip_prefix(&root).expect("inside the root");
            let name = name.to_str().expect("a name in ASCII").to_owned();
            let top = name.split(['/', '.']).next().unwrap_or_default();
            let Some(own) = self.layer(top) else {
                assert!(self.has_top || name == "lib.rs", "{name} is in no layer");
                continue;
            };
            layered += 1;
            let source = fs::read_to_string(&path).expect("a readable source");
            let above = self.imports(&source).into_iter().filter(|&n| n > own);
            let name_of = |n| {
                self.names
                    .get(n)
                    .copied()
                    .unwrap_or("a file above the layers")
            };
            found.extend(above.map(|n| (name.clone(), name_of(n))));
        }
        assert!(layered > self.names.len(), "the sources were not found");
        found
    }
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

#[test]
fn files_import_only_from_layers_below() {
    for layers in [CRATE, JIT] {
        let found = layers.upward_imports();
        assert!(found.is_empty(), "imports from a layer above: {found:#?}");
    }
}

#[test]
fn an_import_is_found_in_any_path() {
    let source = "use crate::engine::Exit;\nfn f() { crate::state::x() }\n// crate::exec\n";
    let expected = ["state", "engine"].map(|name| CRATE.layer(name).expect("a layer"));
    assert_eq!(CRATE.imports(source), BTreeSet::from(expected));
    let source = "use crate::backend::jit::{\n    Jit,\n    flags,\n};\nuse crate::mmu::tlb;\n";
    let expected = [JIT.layer("flags").expect("a layer"), JIT.top()];
    assert_eq!(JIT.imports(source), BTreeSet::from(expected));
}
