//! Code that is mapped for a part of the run only: all of it has names.

use std::path::Path;

use anyhow::{Result, ensure};
use vbts_tests::machine::Machine;
use vbts_tests::programs;

use super::report;

/// Loads each library in its arguments, calls its function `work`, and closes it. The next library
/// takes its place.
const PROGRAM: &str = r#"
    #include <dlfcn.h>
    int main(int argc, char **argv)
    {
        for (int i = 1; i < argc; i++) {
            void *library = dlopen(argv[i], RTLD_NOW);
            int (*work)(void) = (int (*)(void))dlsym(library, "work");
            if (work() != i || dlclose(library))
                return 1;
        }
        return 0;
    }
"#;

/// The `N`th library. Its function calls another one `N` times.
const LIBRARY: &str = r#"
    static __attribute__((noinline, noclone)) int counted(int n) { return n + 1; }
    int work(void)
    {
        int sum = 0;
        while (sum < N)
            sum = counted(sum);
        return sum;
    }
"#;

/// Libraries that the program closes, one of them after the last look at its mappings.
pub(super) fn of_closed_libraries(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("load.c"), PROGRAM)?;
    programs::gcc(&at("load.c"), &at("load"), &["-O1"])?;
    std::fs::write(at("library.c"), LIBRARY)?;
    let mut command = vec![at("load")];
    for number in ["1", "2", "3"] {
        let library = at(&format!("library{number}.so"));
        let number = format!("-DN={number}");
        let flags = ["-O1", "-shared", "-fPIC", &number];
        programs::gcc(&at("library.c"), &library, &flags)?;
        command.push(library);
    }
    let trace = at("closed.btrace");
    machine.trace("btrace", &trace, &[], &command)?.expect(0)?;
    let functions = report(machine, &["functions", "--limit", "10000"], &trace)?;
    for number in ["1", "2", "3"] {
        let named = |line: &&str| line.contains(&format!("counted (library{number}.so"));
        let line = functions.lines().find(named).unwrap_or_default();
        let calls = line.split_whitespace().nth(5);
        ensure!(calls == Some(number), "{number}: {line}\n{functions}");
    }
    all_is_mapped(machine, &trace)
}

/// Programs that execute another one before their buffers are full.
pub(super) fn of_replaced_programs(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("replaced.btrace");
    let command = ["env", "sh", "-c", "exec env sh -c 'env true'"];
    for processors in ["1", "2"] {
        machine
            .trace("btrace", &trace, &["--smp", processors], &command)?
            .expect(0)?;
        all_is_mapped(machine, &trace)?;
    }
    Ok(())
}

fn all_is_mapped(machine: &Machine, trace: &Path) -> Result<()> {
    let modules = report(machine, &["modules"], trace)?;
    ensure!(modules.contains("libc.so.6"), "{modules}");
    ensure!(!modules.contains("[unmapped]"), "{modules}");
    Ok(())
}
