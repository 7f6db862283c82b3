//! The first branch that two runs have executed differently.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

/// `check` decides differently for one of many numbers; what is called differs later. Two kinds of
/// threads begin in the order that the second argument asks for.
const SOURCE: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <stdlib.h>
    volatile int bad;
    static void check(int number, int limit)
    {
        if (number > limit)
            bad++;
    }
    static void *even(void *unused)
    {
        for (volatile int i = 0; i < 20; i += 2)
            ;
        return 0;
    }
    static void *third(void *unused)
    {
        for (volatile int i = 0; i < 20; i += 3)
            ;
        return 0;
    }
    static void *(*const kinds[])(void *) = { even, third };
    int main(int argc, char **argv)
    {
        int limit = atoi(argv[1]), first = atoi(argv[2]);
        for (int i = 1; i <= 20000; i++)
            check(i, limit);
        for (int i = 0; i < 2; i++) {
            pthread_t thread;
            pthread_create(&thread, 0, kinds[first ^ i], 0);
            pthread_join(thread, 0);
        }
        if (bad != 20000 - 15057)
            puts("bad");
        return 0;
    }
"#;

fn diff(machine: &Machine, directory: &Path, options: &[&str]) -> Result<String> {
    let mut command = machine.command(["report", "diff"]);
    command.args(options).current_dir(directory);
    command.args(["first.btrace", "second.btrace"]);
    Ok(String::from_utf8(
        machine::finish(command)?.expect(0)?.stdout,
    )?)
}

pub(super) fn is_found(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("br.c"), SOURCE)?;
    let program = programs::gcc(&path("br.c"), &path("br"), &["-O0", "-g", "-pthread"])?;
    let line = |text: &str| {
        let mut lines = SOURCE.lines().zip(1..);
        let found = lines.find_map(|(line, number)| line.contains(text).then_some(number));
        found.context("a line of the source")
    };
    let trace = |name: &str, arguments: [&str; 2]| {
        let words = [&[program.to_str().context("a path")?][..], &arguments].concat();
        let options = ["--epoch", "0"];
        machine.trace("btrace", &path(name), &options, &words)?;
        Ok::<_, anyhow::Error>(())
    };
    trace("first.btrace", ["15057", "0"])?;
    trace("second.btrace", ["15056", "0"])?;
    let text = diff(machine, directory.path(), &["--limit", "4"])?;
    let lines: Vec<&str> = text.lines().collect();
    let [_, head, first, second, stack, ..] = lines.as_slice() else {
        anyhow::bail!("{text}");
    };
    let at = format!("br.c:{}), execution 15057", line("if (number > limit)")?);
    ensure!(head.contains("check+0x") && head.ends_with(&at), "{text}");
    ensure!(first.starts_with("  first  branch "), "{text}");
    ensure!(first.contains("-> check+0x"), "{text}");
    ensure!(second.ends_with("  not taken"), "{text}");
    ensure!(stack.ends_with(" > main > check"), "{text}");
    // The calls part later, where `main` says so.
    let part = lines
        .iter()
        .find(|line| line.starts_with("  second branch") && **line != *second);
    ensure!(part.is_some_and(|part| part.ends_with("puts")), "{text}");
    // How often each way was taken, in all.
    let row = lines
        .iter()
        .find(|line| line.contains("check+0x") && line.ends_with("not taken"));
    let counts: Vec<&str> = row.context("a row")?.split_whitespace().take(3).collect();
    ensure!(counts == ["4943", "4944", "+1"], "{text}");
    // The threads are those with the same function.
    trace("second.btrace", ["15057", "1"])?;
    let text = diff(machine, directory.path(), &[])?;
    let same = "in 3 tasks, the branches and the calls of the program's own functions are the \
                same, in order";
    ensure!(text.lines().any(|line| line == same), "{text}");
    // Another build is compared by its calls.
    programs::gcc(
        &path("br.c"),
        &path("br"),
        &["-O0", "-g", "-pthread", "-fpatchable-function-entry=2"],
    )?;
    trace("second.btrace", ["15057", "0"])?;
    let text = diff(machine, directory.path(), &[])?;
    ensure!(
        text.contains("br is another file in the second run: its calls are compared"),
        "{text}"
    );
    ensure!(!text.contains("the first branch"), "{text}");
    Ok(())
}
