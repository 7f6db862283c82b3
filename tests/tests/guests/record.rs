//! Recordings of whole machines (`vbts run --record`).

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vbts_tests::branches::{Branch, Symbols, first_difference, parse_raw, symbol};
use vbts_tests::control_flow::Code;
use vbts_tests::machine::{self, Machine, Run, Skip, TestModule};
use vbts_tests::{guest_program, oracle, programs};
use vbts_trace::{Event, Item, Reader};

/// Time in which something must have happened on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("has_what_the_branch_trace_store_has", with_bts),
            ("is_a_path_from_the_first_instruction", path),
            ("does_not_change_the_run", unchanged),
            ("several_processors", several),
            ("scopes", scopes),
            ("program_as_single_stepped", stepped),
            ("from_and_until_points", from_point),
            ("last_branches", last),
            ("tasks", tasks),
            ("ends", ends),
            ("another_reader", another_reader),
            ("on_kvm", on_kvm),
        ],
    )
}

/// A guest whose only process is `program`.
fn guest(machine: &Machine, accel: &str, program: &Path) -> Result<Command> {
    guest_program::command(machine, accel, machine.kernel(), program, "")
}

/// Compiles guest-kernel/tests/recorded.c.
fn traced_child(directory: &Path) -> Result<std::path::PathBuf> {
    guest_program::compile(directory, "recorded.c", &["bts.c"])
}

/// Records a guest, which must end with status 0, in `file`.
fn record(mut command: Command, options: &[&str], file: &Path) -> Result<Run> {
    command.args(options).arg("--record").arg(file);
    machine::finish(command)?.expect(0)
}

fn reader(file: &Path) -> Result<Reader<std::io::BufReader<std::fs::File>>> {
    let open = std::fs::File::open(file).context("no recording")?;
    Ok(Reader::new(std::io::BufReader::new(open))?)
}

/// Events, each with its processor.
type Events = Vec<(u64, Event)>;

/// The branches of processor `processor`, and the events of all.
fn contents(file: &Path, processor: u64) -> Result<(Vec<Branch>, Events)> {
    let mut reader = reader(file)?;
    let (mut all, mut events) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Branches { task, branches } if task == processor => {
                all.extend(branches.iter().map(|b| Branch {
                    from: b.from,
                    to: b.to,
                }));
            }
            Item::Branches { .. } => {}
            Item::Event { task, event } => events.push((task, event)),
        }
    }
    Ok((all, events))
}

/// The guest's own Branch Trace Store gets the same records as without a recording, and the
/// recording has them in the same order.
fn with_bts(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    let run = record(guest(machine, "soft", &program)?, &[], &file)?;
    let plain = machine::finish(guest(machine, "soft", &program)?)?.expect(0)?;
    ensure!(run.stdout == plain.stdout, "another console");

    let text = String::from_utf8(run.stdout)?;
    let stored: Vec<Branch> = text
        .lines()
        .filter_map(|line| line.trim_end().strip_prefix("branch "))
        .map(|line| {
            let (from, to) = line.split_once(' ').context("no two addresses")?;
            let number = |text| u64::from_str_radix(text, 16);
            Ok(Branch {
                from: number(from)?,
                to: number(to)?,
            })
        })
        .collect::<Result<_>>()?;
    ensure!(stored.len() > 5000, "{} records", stored.len());
    let (all, _) = contents(&file, 0)?;
    // Recording is off while other tasks run, and in parts of the kernel.
    let mut pieces = 0;
    let mut at = None::<usize>;
    for (n, branch) in stored.iter().enumerate() {
        if at.is_some_and(|at| all.get(at) == Some(branch)) {
            at = at.map(|at| at + 1);
            continue;
        }
        // The piece begins where most of what follows is the same.
        let rest = &stored[n..stored.len().min(n + 8)];
        let after = at.unwrap_or(0);
        let found = all[after..]
            .windows(rest.len())
            .position(|window| window == rest);
        let found = found.or_else(|| all[after..].iter().position(|b| b == branch));
        let found = found.with_context(|| format!("record {n} is missing: {branch:x?}"))?;
        at = Some(after + found + 1);
        pieces += 1;
    }
    ensure!(
        pieces < stored.len() / 50,
        "{pieces} pieces of {} records",
        stored.len()
    );
    Ok(())
}

/// Each branch leads in a straight line to the next one, from the entry of the kernel's C code to
/// the end of the run.
fn path(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    record(guest(machine, "soft", &program)?, &[], &file)?;
    let (all, _) = contents(&file, 0)?;
    let start = symbol(machine.kernel(), "start_kernel")?;
    let at = all
        .iter()
        .position(|branch| branch.to == start)
        .context("start_kernel is not reached")?;
    ensure!(all.len() > at + 1_000_000, "{} branches", all.len());
    let code = Code::read(&program, machine.kernel())?.of_machine();
    code.check_from(start, &all[at + 1..])?;
    Ok(())
}

/// Console and instruction counts are those of a run without a recording, and two recordings are
/// the same file.
fn unchanged(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    for smp in ["1", "3"] {
        let command = || -> Result<Command> {
            let mut command = guest(machine, "soft", &program)?;
            command.args(["--smp", smp, "--log", "debug"]);
            Ok(command)
        };
        let end = |run: &Run| -> Result<String> {
            let mut lines = run.stderr.lines();
            let line = lines.find(|line| line.contains("end instructions="));
            Ok(line.context("no counts")?.to_owned())
        };
        let plain = machine::finish(command()?)?.expect(0)?;
        let file = directory.path().join("a.btrace");
        let mut before = None;
        for _ in 0..2 {
            let run = record(command()?, &[], &file)?;
            ensure!(run.stdout == plain.stdout, "another console");
            ensure!(
                end(&run)? == end(&plain)?,
                "{} instead of {}",
                end(&run)?,
                end(&plain)?
            );
            let bytes = std::fs::read(&file)?;
            if let Some(before) = before.replace(bytes) {
                ensure!(before.as_slice() == std::fs::read(&file)?, "another file");
            }
        }
    }
    Ok(())
}

fn several(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    record(guest(machine, "soft", &program)?, &["--smp", "3"], &file)?;
    let code = Code::read(&program, machine.kernel())?.of_machine();
    let entry = symbol(machine.kernel(), "start_secondary")?;
    for processor in 1..3 {
        let (all, _) = contents(&file, processor)?;
        let at = all.iter().position(|branch| branch.to == entry);
        let at = at.context("start_secondary is not reached")?;
        ensure!(all.len() > at + 1000, "{} branches", all.len());
        code.check_from(entry, &all[at + 1..])?;
    }
    // Raw records do not tell processors.
    let mut command = machine.command(["report", "raw"]);
    command.arg(&file);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("--processor"), "{}", run.stderr);
    let mut command = machine.command(["report", "raw", "--processor", "2"]);
    command.arg(&file);
    let raw = parse_raw(&machine::finish(command)?.expect(0)?.stdout)?;
    ensure!(raw == contents(&file, 2)?.0, "other branches");
    Ok(())
}

/// The branches of a scope are those of all that lead to its privilege level.
fn scopes(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    let recorded = |scope| -> Result<Vec<Branch>> {
        let options = ["--record-scope", scope];
        record(guest(machine, "soft", &program)?, &options, &file)?;
        Ok(contents(&file, 0)?.0)
    };
    let all = recorded("all")?;
    // The kernel's first code runs in the lower half.
    let start = symbol(machine.kernel(), "start_kernel")?;
    let after = |all: Vec<Branch>| -> Vec<Branch> {
        let at = all.iter().position(|b| b.to == start).unwrap_or(0);
        all[at..].to_vec()
    };
    let of_kernel = |b: &&Branch| b.to >> 63 != 0;
    let later = after(all);
    let kernel: Vec<Branch> = later.iter().filter(of_kernel).copied().collect();
    ensure!(after(recorded("kernel")?) == kernel, "kernel");
    let user: Vec<Branch> = later.iter().filter(|b| b.is_user()).copied().collect();
    ensure!(user.len() > 1000, "{} branches", user.len());
    ensure!(recorded("user")? == user, "user");
    Ok(())
}

/// A program that is the only one of the guest takes the branches that single-stepping sees.
fn stepped(machine: &Machine) -> Result<()> {
    const SOURCE: &str = "
.globl _start
_start: mov $20000, %ebx
1:      imul $1103515245, %eax, %eax
        add $12345, %eax
        test $0x10000, %eax
        jz 2f
        call 3f
2:      dec %ebx
        jnz 1b
        mov $60, %eax
        xor %edi, %edi
        syscall
3:      ret
";
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("loop.S");
    std::fs::write(&source, SOURCE)?;
    let flags = ["-nostdlib", "-static", "-no-pie"];
    let program = programs::gcc(&source, &directory.path().join("program"), &flags)?;
    let expected = oracle::trace(&program)?;
    let file = directory.path().join("a.btrace");
    let options = ["--record-scope", "user"];
    let mut command = guest(machine, "soft", &program)?;
    command.args(options).arg("--record").arg(&file);
    // The kernel panics when PID 1 ends.
    machine::finish(command)?.expect(255)?;
    let (got, _) = contents(&file, 0)?;
    let symbols = Symbols::read(&program)?;
    ensure!(got.len() > 20_000, "{} branches", got.len());
    match first_difference(&expected.branches, &got, &symbols) {
        None => Ok(()),
        Some(difference) => bail!(difference),
    }
}

fn from_point(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    let point = "kernel_init";
    let address = symbol(machine.kernel(), point)?;
    record(guest(machine, "soft", &program)?, &[], &file)?;
    let (all, _) = contents(&file, 0)?;
    let at = all.iter().position(|branch| branch.to == address);
    let at = at.context("the point is not reached")?;
    // A report can begin there, too.
    let mut report = machine.command(["report", "raw", "--start", point, "--last", "100000"]);
    report.args(["--only", "[kernel]"]).arg(&file);
    let shown = machine::finish(report)?.expect(0)?.stdout;
    let is_kernel = |branch: &&Branch| branch.from >> 63 != 0 || branch.to >> 63 != 0;
    let kernel: Vec<&Branch> = all[at..].iter().filter(is_kernel).collect();
    let expected = kernel[kernel.len().saturating_sub(100_000)..].iter();
    let expected = expected.flat_map(|branch| [branch.from, branch.to, 0]);
    ensure!(
        shown == expected.flat_map(u64::to_le_bytes).collect::<Vec<u8>>(),
        "a report"
    );
    for point in [point, &format!("{address:#x}")] {
        let options = ["--record-from", point];
        record(guest(machine, "soft", &program)?, &options, &file)?;
        ensure!(contents(&file, 0)?.0 == all[at + 1..], "{point}");
    }
    // The second call of a function, and the place to which its callee returns.
    let calls = |name: &str| -> Result<Vec<usize>> {
        let address = symbol(machine.kernel(), name)?;
        let all = all.iter().enumerate();
        let calls = all.filter(|(_, branch)| branch.to == address);
        Ok(calls.map(|(at, _)| at).collect())
    };
    let called = calls("kfree")?;
    ensure!(called.len() > 2, "{} calls", called.len());
    record(
        guest(machine, "soft", &program)?,
        &["--record-from", "kfree#3"],
        &file,
    )?;
    ensure!(contents(&file, 0)?.0 == all[called[2] + 1..], "#3");
    // Up to a point, on one processor and, with the host's clock, on a thread of its own.
    for clock in ["virtual", "host"] {
        let options = ["--record-until", "kfree#3", "--clock", clock];
        record(guest(machine, "soft", &program)?, &options, &file)?;
        ensure!(reader(&file)?.summary().context("no end")?.end == "stopped");
        let until = contents(&file, 0)?.0;
        let address = symbol(machine.kernel(), "kfree")?;
        let calls = until.iter().filter(|branch| branch.to == address);
        ensure!(until.last().map(|branch| branch.to) == Some(address));
        ensure!(calls.count() == 3, "{clock}");
        ensure!(clock == "host" || until == all[..=called[2]], "{clock}");
    }
    let options = ["--record-from", "kfree#2", "--record-until", "kfree"];
    record(guest(machine, "soft", &program)?, &options, &file)?;
    ensure!(contents(&file, 0)?.0 == all[called[1] + 1..=called[2]]);
    let into = address..address + 0x400;
    let inside = all
        .iter()
        .find(|branch| into.contains(&branch.to) && branch.to != address);
    let inside = inside.context("nothing returns")?.to;
    let first = all.iter().position(|branch| branch.to == inside);
    let point = format!("{point}+{:#x}", inside - address);
    record(
        guest(machine, "soft", &program)?,
        &["--record-from", &point],
        &file,
    )?;
    ensure!(
        contents(&file, 0)?.0 == all[first.unwrap_or(0) + 1..],
        "{point}"
    );
    // The guest has no code there.
    let mut command = guest(machine, "soft", &program)?;
    command
        .args(["--record-from", "0x123", "--record"])
        .arg(&file);
    let run = machine::finish(command)?;
    ensure!(
        run.stderr.contains("no branch has led there"),
        "{}",
        run.stderr
    );
    let never = ["--record-until", "0x123"];
    let run = record(guest(machine, "soft", &program)?, &never, &file)?;
    ensure!(
        run.stderr
            .contains("--record-until 0x123: no branch has led there"),
        "{}",
        run.stderr
    );
    for (point, reason) in [
        ("no_such_function", "no such function"),
        ("no_such_file.c:7", "no code of this line"),
        ("0xyz", "no hexadecimal number"),
        ("kernel_init#0", "from 1 on"),
    ] {
        let mut command = guest(machine, "soft", &program)?;
        command
            .args(["--record-from", point, "--record"])
            .arg(&file);
        let run = machine::finish(command)?.expect(125)?;
        ensure!(run.stderr.contains(reason), "{}", run.stderr);
    }
    Ok(())
}

fn last(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    record(guest(machine, "soft", &program)?, &[], &file)?;
    let (all, _) = contents(&file, 0)?;
    for count in [1_usize, 300_000, all.len() + 1] {
        let options = ["--record-last", &count.to_string()];
        record(guest(machine, "soft", &program)?, &options, &file)?;
        let (kept, events) = contents(&file, 0)?;
        let expected = &all[all.len().saturating_sub(count)..];
        ensure!(kept == expected, "{count}: {} branches", kept.len());
        let is_space = |(_, event): &(u64, Event)| matches!(event, Event::AddressSpace { .. });
        ensure!(events.iter().any(is_space), "{count}: no address space");
    }
    Ok(())
}

/// The kernel's tasks have their numbers and names, and `vbts report` selects by them.
fn tasks(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = traced_child(directory.path())?;
    let file = directory.path().join("a.btrace");
    record(guest(machine, "soft", &program)?, &[], &file)?;
    let (_, events) = contents(&file, 0)?;
    let has = |number: u32, text: &str| {
        events.iter().any(|(_, event)| match event {
            Event::Switch {
                id, process, name, ..
            } => (*id, *process, name.as_slice()) == (number, number, text.as_bytes()),
            _ => false,
        })
    };
    for (number, name) in [
        (0, "swapper/0"),
        (1, "swapper/0"),
        (2, "kthreadd"),
        (1, "init"),
    ] {
        ensure!(has(number, name), "no task {number} {name}");
    }
    let mut command = machine.command(["report", "json", "--task", "1"]);
    command.arg(&file);
    let text = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let user = text.lines().filter(|line| line.contains("\"from\":\"0x40"));
    ensure!(user.count() > 1000, "no branches of the program");
    // A part begins with what was known before it.
    let mut command = machine.command(["report", "json", "--last", "1"]);
    command.arg(&file);
    let part = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    for kind in ["address_space", "switch", "branch", "summary"] {
        let kind = format!("\"kind\":\"{kind}\"");
        ensure!(part.matches(&kind).count() == 1, "{kind}: {part}");
    }
    // The child has another number.
    let (all, _) = contents(&file, 0)?;
    let shown = text.lines().filter(|line| line.contains("\"branch\""));
    ensure!(shown.count() < all.len(), "all branches are of one task");
    Ok(())
}

/// The time limit, signals and panics leave a whole file.
fn ends(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("a.btrace");
    // Linux panics without an init.
    let kernel = |options: &[&str]| {
        let mut command = machine.command(["run", "--accel", "soft", "--kernel"]);
        command.arg(machine.kernel()).args(options);
        command.arg("--record").arg(&file);
        command
    };
    let ended = |end: &str| -> Result<u64> {
        let reader = reader(&file)?;
        let summary = reader.summary().context("the file has no end")?;
        ensure!(summary.end == end, "{} instead of {end}", summary.end);
        ensure!(summary.records == reader.records());
        Ok(summary.records)
    };
    let run = machine::finish(kernel(&["--append", "panic=-1"]))?.expect(255)?;
    let records = ended("panic")?;
    ensure!(records > 1_000_000, "{records} branches");
    let says = format!("{records} branches recorded in ");
    ensure!(run.stderr.contains(&says), "{}", run.stderr);

    // After a panic, it waits for ever.
    let waits = ["--append", "panic=0"];
    let options = [&waits[..], &["--timeout", "2"]].concat();
    let run = machine::finish(kernel(&options))?;
    ensure!(matches!(run.status, Some(124 | 255)), "{run:?}");
    reader(&file)?.summary().context("no end")?;

    let program = {
        let source = directory.path().join("loop.S");
        std::fs::write(&source, ".globl _start\n_start: jmp _start\n")?;
        let flags = ["-nostdlib", "-static", "-no-pie"];
        programs::gcc(&source, &directory.path().join("program"), &flags)?
    };
    let mut command = guest(machine, "soft", &program)?;
    command.args(["--timeout", "3", "--record"]).arg(&file);
    machine::finish(command)?.expect(124)?;
    ensure!(ended("timeout")? > 1_000_000);

    std::fs::remove_file(&file)?;
    let mut command = guest(machine, "soft", &program)?;
    command.arg("--record").arg(&file);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let began = Instant::now();
    while std::fs::metadata(&file).map_or(0, |status| status.len()) < 1000 {
        ensure!(began.elapsed() < PATIENCE, "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
    let status = machine::wait(&mut child, PATIENCE)?;
    let mut text = String::new();
    let stderr = child.stderr.as_mut().context("no standard error")?;
    stderr.read_to_string(&mut text)?;
    ensure!(status == Some(130), "{status:?} {text}");
    let records = ended("interrupted")?;
    ensure!(records > 100_000, "{records} branches");

    // What was complete at a cut can be read.
    let whole = std::fs::read(&file)?;
    std::fs::write(&file, &whole[..whole.len() - 1])?;
    let cut = reader(&file)?;
    ensure!(cut.summary().is_none() && cut.records() == records);

    let mut command = machine.command(["run", "--accel", "soft", "--kernel"]);
    command
        .arg(machine.kernel())
        .args(["--record", "/dev/full"]);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("/dev/full"), "{}", run.stderr);
    Ok(())
}

/// tests/btrace.py prints what the JSON of vbts has.
fn another_reader(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("a.btrace");
    let program = traced_child(directory.path())?;
    // Python is slow.
    let options = ["--smp", "2", "--record-scope", "user"];
    record(guest(machine, "soft", &program)?, &options, &file)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("btrace.py");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", "import zstandard"]);
    if !command.output()?.status.success() {
        bail!(Skip("python3-zstandard is not installed".to_owned()));
    }
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).arg(&file);
    let theirs = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let mut command = machine.command(["report", "json"]);
    command.arg(&file);
    let ours = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let value = |line: &str| serde_json::from_str::<serde_json::Value>(line);
    let (theirs, ours): (Vec<_>, Vec<_>) = (theirs.lines().collect(), ours.lines().collect());
    ensure!(theirs.len() == ours.len() && ours.len() > 1000);
    for (theirs, ours) in theirs.iter().zip(&ours) {
        let (theirs, ours) = (value(theirs)?, value(ours)?);
        match ours["kind"] == "summary" {
            true => ensure!(theirs["records"] == ours["records"], "{theirs} {ours}"),
            false => ensure!(theirs == ours, "{theirs} instead of {ours}"),
        }
    }
    Ok(())
}

/// On KVM, the file has what the software CPU executes, and says where that begins.
fn on_kvm(machine: &Machine) -> Result<()> {
    if machine.accel() != "kvm" {
        bail!(Skip("VBTS_ACCEL is not kvm".to_owned()));
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("a.btrace");
    let program = traced_child(directory.path())?;
    let run = record(guest(machine, "kvm", &program)?, &[], &file)?;
    ensure!(
        run.stderr.contains("KVM executes the guest"),
        "{}",
        run.stderr
    );
    let (all, events) = contents(&file, 0)?;
    ensure!(all.len() > 5000, "{} branches", all.len());
    let is_gap = |(_, event): &&(u64, Event)| matches!(event, Event::Gap { .. });
    ensure!(events.iter().any(|event| is_gap(&event)), "no gap");
    Ok(())
}
