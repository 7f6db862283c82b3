//! What a program maps while it runs: a library, and code that it makes. A kept trace has
//! the mappings of both.

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::Machine;
use vbts_tests::programs;
use vbts_trace::{Event, Item, Reader};

use super::report;

const LIBRARY: &str =
    "int later(int n) { int s = 0; for (int i = 0; i < n; i++) s += i; return s; }";
/// The code is `mov $42, %eax; ret`.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW);
	int (*later)(int) = library ? (int (*)(int))dlsym(library, "later") : NULL;
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int sum = 0;

	memcpy(page, "\xb8\x2a\0\0\0\xc3", 6);
	for (int i = 0; later && i < 100; i++)
		sum += later(i) + ((int (*)(void))page)();
	return sum == 0;
}
"#;

pub fn mapped_later(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let build = |name: &str, source: &str, options: &[&str]| {
        let file = directory.path().join(format!("{name}.c"));
        std::fs::write(&file, source)?;
        let options = [&["-g", "-O0"], options].concat();
        programs::gcc(&file, &directory.path().join(name), &options)
    };
    let library = build("liblater.so", LIBRARY, &["-shared", "-fPIC"])?;
    let program = build("program", PROGRAM, &[])?;
    let kept = directory.path().join("a.btrace");
    machine
        .trace("btrace", &kept, &[], &[&program, &library])?
        .expect(0)?;

    let mut reader = Reader::new(std::io::BufReader::new(std::fs::File::open(&kept)?))?;
    let environment = &reader.run().other["environment"];
    let variables = environment["variables"]
        .as_array()
        .context("no variables")?;
    ensure!(variables.iter().any(|name| name == "PATH"), "{environment}");
    ensure!(
        environment["follow"] == "all" && environment["epoch"].is_i64(),
        "{environment}"
    );
    let (mut maps, mut made) = (String::new(), 0);
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Event {
                event: Event::Maps { text, .. },
                ..
            } => {
                maps = String::from_utf8(text)?;
            }
            Item::Branches { branches, .. } => {
                // The code that it makes begins a page, and returns at its byte 5.
                made += branches.iter().filter(|b| b.from & 0xFFF == 5).count();
            }
            Item::Event { .. } => {}
        }
    }
    ensure!(made >= 100, "{made} returns from the code that it makes");
    let name = library.display().to_string();
    let has = |end: &str| {
        let mut lines = maps
            .lines()
            .filter(|line| line.contains("r-xp") || line.contains("rwxp"));
        lines.any(|line| line.trim_end().ends_with(end))
    };
    ensure!(has(&name) && has(" 0"), "{maps}");
    let text = String::from_utf8(report(machine, &["text"], &kept)?)?;
    let calls = text
        .lines()
        .filter(|line| line.contains(" later+0x0 ("))
        .count();
    ensure!(calls == 100, "{calls} calls");
    let modules = String::from_utf8(report(machine, &["modules"], &kept)?)?;
    ensure!(modules.contains("liblater.so"), "{modules}");
    Ok(())
}
