//! Names of functions and files.

use std::path::Path;

use anyhow::{Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{report, tool};

/// Names in a file can be anything. In a document they stay text.
pub(super) fn hostile_names(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("a<b>&'\"\u{202e}.c");
    std::fs::write(
        &source,
        "__attribute__((noinline)) int f(int x) { __asm__ volatile(\"\"); return x; }\n\
         int main(void) { return f(0); }\n",
    )?;
    let program = directory.path().join("a<b>&'\"");
    programs::gcc(&source, &program, &["-O1", "-g", "-static", "-no-pie"])?;
    let mut rename = tool("objcopy", &["--redefine-sym"])?;
    rename.arg("f=<script>&\"'\x1b]]>;\n</svg>").arg(&program);
    machine::finish(rename)?.expect(0)?;
    let trace = directory.path().join("a.btrace");
    machine
        .trace(
            "btrace",
            &trace,
            &["--epoch", "0"],
            &[program.as_path(), Path::new("\x1b]0;<script>&\x07\u{202e}")],
        )?
        .expect(0)?;
    for (words, is_xml) in [
        (&["flamegraph"][..], true),
        (&["cobertura"], true),
        (&["html"], false),
        (&["timeline"], false),
        (&["functions"], false),
        (&["calls", "--least", "0"], false),
        (&["lcov"], false),
        (&["folded"], false),
        (&["tail"], false),
        (&["assembly"], false),
    ] {
        let text = report(machine, words, &trace)?;
        let plain = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        ensure!(text.chars().all(plain), "{words:?}: {text}");
        if is_xml || words == ["html"] {
            ensure!(!text.contains("<script>&"), "{words:?}: {text}");
        }
        if is_xml {
            let file = directory.path().join("document.xml");
            std::fs::write(&file, text)?;
            let script = "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])";
            let mut command = tool("python3", &["-c", script])?;
            command.arg(&file);
            machine::finish(command)?.expect(0)?;
        }
    }
    Ok(())
}
