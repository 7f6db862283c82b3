//! The descriptors of a traced program: a shell script gives the same with the program on the host
//! and with the program traced.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("regular_files_are_shared_with_their_offsets", regular_files),
            ("messages_leave_the_program_its_file", messages),
            ("standard_input_is_read_if_the_program_reads_it", lazy_input),
            ("closed_and_further_descriptors", further_descriptors),
            ("sockets_are_standard_streams", sockets),
            ("a_reader_that_goes_away_ends_the_program", closed_reader),
        ],
    )
}

/// Runs `script` with bash in `directory`. In the script, `"$@"` stands before each program.
fn run(directory: &Path, script: &str, before: &[String], machine: &Machine) -> Result<Run> {
    let mut command = Command::new("/bin/bash");
    command.args(["-c", script, "bash"]).args(before);
    command.envs(machine::variables(&machine.command::<[&str; 0], &str>([])));
    command.current_dir(directory).stdin(Stdio::null());
    machine::finish(command)
}

/// Compares what a script prints and how it ends.
fn compare(machine: &Machine, script: &str) -> Result<()> {
    let host = tempfile::tempdir()?;
    let on_host = run(host.path(), script, &[], machine)?;
    let guest = tempfile::tempdir()?;
    let trace = guest.path().join("trace");
    let command = machine.command(["trace", "--accel", machine.accel(), "--output"]);
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.extend([trace.to_string_lossy().into_owned(), "--".into()]);
    let traced = run(guest.path(), script, &words, machine)?;
    ensure!(
        (&traced.stdout, traced.status) == (&on_host.stdout, on_host.status),
        "{script}\n{}instead of\n{}{}",
        String::from_utf8_lossy(&traced.stdout),
        String::from_utf8_lossy(&on_host.stdout),
        traced.stderr
    );
    Ok(())
}

fn regular_files(machine: &Machine) -> Result<()> {
    compare(
        machine,
        r#"
        printf 'first\nsecond\nthird\n' > in
        # The next command goes on where the program stopped.
        { "$@" /bin/dd bs=1 count=6 status=none; cat; } < in
        { "$@" /bin/echo one; echo two; } > out
        "$@" /bin/echo three >> out
        { "$@" /bin/sh -c 'echo four; echo five >&2; echo six'; } > both 2>&1
        cat out; grep -v ^vbts: both
        "$@" /usr/bin/stat -L -c '%F %s' /dev/stdin < in
        "$@" /usr/bin/python3 -c 'import mmap, sys
map = mmap.mmap(sys.stdin.fileno(), 0, prot=mmap.PROT_READ)
print(len(map), map[6:12])' < in
        # A file without a name, and one that is open for both.
        exec 8<>both; rm both in
        "$@" /bin/sh -c 'echo SEVEN >&8; cat <&8' | grep -v ^vbts:
        # The program may truncate and seek in it.
        "$@" /usr/bin/python3 -c 'import os
os.ftruncate(1, 3); os.lseek(1, 0, os.SEEK_END); os.write(1, b"!\n")' 1<>out
        cat out
        "#,
    )
}

fn lazy_input(machine: &Machine) -> Result<()> {
    compare(
        machine,
        r#"
        printf 'a\nb\nc\n' > in
        while read x; do "$@" /bin/true; echo "$x"; done < in
        printf 'a\nb\nc\n' | while read x; do "$@" /bin/true; echo "$x"; done
        # It waits with read, poll and select.
        echo read | "$@" /bin/cat
        for wait in 'select.select([0], [], [])' 'p = select.poll(); p.register(0); p.poll()'; do
            (sleep 0.1; echo "$wait") | "$@" /usr/bin/python3 -c "import os, select
$wait
print(os.read(0, 1000))"
        done
        (head -c 300000 /dev/zero; sleep 0.1; echo end) | "$@" /usr/bin/sha256sum
        "#,
    )
}

fn further_descriptors(machine: &Machine) -> Result<()> {
    compare(
        machine,
        r#"
        "$@" /bin/cat <(echo substituted) /dev/fd/5 5<<< 'here'
        "$@" /bin/sh -c 'echo seven >&7; echo pipe >&9' 7> seven 9> >(cat > nine)
        cat seven; while ! [ -s nine ]; do sleep 0.1; done; cat nine
        "$@" /bin/sh -c 'echo closed' >&-; echo $?
        "$@" /bin/sh -c 'cat' <&-; echo $?
        "$@" /bin/sh -c 'test -e /proc/self/fd/2; echo $?' 2>&-
        "$@" /bin/sh -c 'cat /dev/stdin; echo out > /dev/stdout; cat /dev/fd/0' <<< 'in' | cat
        "$@" /bin/sh -c 'test -c /dev/stdin && cat; echo null > /dev/full' < /dev/null; echo $?
        "#,
    )
}

fn sockets(machine: &Machine) -> Result<()> {
    // As sshd gives them to a command, and Node.js to a child.
    let server = r#"
import socket, subprocess, sys
mine, its = socket.socketpair()
program = subprocess.Popen(sys.argv[1:], stdin=its, stdout=its, stderr=subprocess.DEVNULL)
its.close()
for line in b'one
', b'two
':
    mine.send(line)
    print(mine.recv(100))
mine.shutdown(socket.SHUT_WR)
print(mine.recv(100), program.wait())
"#;
    let script = format!(
        "/usr/bin/python3 -c \"{server}\" \"$@\" sh -c \
         'while read -r line; do echo \"<$line>\"; done; echo end; exit 5'"
    );
    compare(machine, &script)
}

fn closed_reader(machine: &Machine) -> Result<()> {
    compare(
        machine,
        r#"
        "$@" /usr/bin/yes | head -2; echo ${PIPESTATUS[@]}
        "$@" /bin/sh -c 'yes; echo $? >&2' 2> status | head -1; grep -v ^vbts: status
        "#,
    )
}

/// A message about the run does not overwrite what the program writes to the same file.
fn messages(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (source, log) = (
        directory.path().join("crash.c"),
        directory.path().join("log"),
    );
    std::fs::write(&source, "int main(void) { *(volatile int *)0 = 1; }")?;
    let program = programs::gcc(&source, &directory.path().join("crash"), &[])?;
    let lines = "echo before >&2; \"$0\" 2>/dev/null; echo after >&2";
    let mut command = machine.command(["trace", "--accel", machine.accel()]);
    command.args(["--output", "/dev/null", "--", "/bin/sh", "-c", lines]);
    let status = (command.arg(program).stderr(std::fs::File::create(&log)?)).status()?;
    let text = std::fs::read_to_string(&log)?;
    ensure!(
        status.success() && text.starts_with("before\n") && text.contains("after\nvbts: task "),
        "{status}: {text}"
    );
    ensure!(text.contains("crashed: SIGSEGV at address 0x0"), "{text}");
    Ok(())
}
