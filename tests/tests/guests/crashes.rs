//! What a report says about the instruction that a program crashes with.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use vbts_tests::machine::{self, Machine, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("an_illegal_instruction_names_processors", illegal),
            ("code_of_32_bits_is_disassembled_as_such", compatibility),
            ("an_abort_names_what_has_called_it", abort),
            ("a_program_cannot_use_the_agents_port", exit_port),
        ],
    )
}

/// Runs a program that begins with `code`, and expects it to be killed by `signal`. Returns what
/// was printed on standard error.
fn crash(machine: &Machine, code: &str, flag: &str, cpu: &str, signal: Signal) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("program.S");
    let text =
        format!(".globl _start\n_start:\n{code}\n.section .note.GNU-stack, \"\", @progbits\n");
    std::fs::write(&source, text)?;
    let program = programs::compile(&source, &directory.path().join("program"), &[flag])?;
    let output = directory.path().join("trace");
    let run = machine.trace("raw", &output, &["--cpu", cpu], &[program])?;
    Ok(run.expect(128 + signal as i32)?.stderr)
}

fn illegal(machine: &Machine) -> Result<()> {
    for (code, cpu, report) in [
        (
            "popcnt %ecx, %eax",
            "core2",
            ": popcnt eax,ecx\n  it needs POPCNT: use --cpu x86-64-v2 or nehalem or x86-64-v3-basic or x86-64-v3 or haswell or skylake or max\n",
        ),
        (
            "vpaddd %ymm1, %ymm0, %ymm0",
            "x86-64-v2",
            ": vpaddd ymm0,ymm0,ymm1\n  it needs AVX2: use --cpu x86-64-v3-basic or x86-64-v3 or haswell or skylake or max\n",
        ),
        ("ud2", "core2", ": ud2\n  rax "),
    ] {
        let stderr = crash(machine, code, "-m64", cpu, Signal::SIGILL)?;
        ensure!(stderr.contains(report), "{code}: {stderr}");
    }
    Ok(())
}

fn compatibility(machine: &Machine) -> Result<()> {
    // In 64-bit code the address would have eight bytes.
    let stderr = crash(machine, "movl 16, %eax", "-m32", "core2", Signal::SIGSEGV)?;
    for wanted in [": mov eax,[0x10]\n", "cs     0000000000000023"] {
        ensure!(stderr.contains(wanted), "no {wanted}: {stderr}");
    }
    Ok(())
}

/// The branches before a program ends itself are its own, and not those with which the dynamic
/// linker finds `abort` and the C library executes it.
fn abort(machine: &Machine) -> Result<()> {
    const SOURCE: &str = r"
        #include <stdlib.h>
        volatile int count;
        __attribute__((noinline)) static void check(int number)
        {
            if (number > 20)
                abort();
            count += number;
        }
        int main(void)
        {
            for (int number = 0; number < 40; number++)
                check(number);
            return 0;
        }";
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("aborts.c");
    std::fs::write(&source, SOURCE)?;
    let flags = ["-O1", "-g", "-Wl,-z,lazy"];
    let program = programs::gcc(&source, &directory.path().join("aborts"), &flags)?;
    let output = directory.path().join("trace");
    let run = machine.trace("raw", &output, &[], &[program])?;
    let stderr = run.expect(128 + Signal::SIGABRT as i32)?.stderr;
    let lines: Vec<&str> = stderr.lines().collect();
    let position = |text: &str| {
        let found = lines.iter().position(|line| line.contains(text));
        found.with_context(|| format!("no {text}: {stderr}"))
    };
    let callers = position("  called from:")?;
    let abort = position("abort+0x")?;
    let [check, main] = lines.get(abort + 1..abort + 3).unwrap_or_default() else {
        anyhow::bail!("{stderr}");
    };
    ensure!(callers < abort, "{stderr}");
    ensure!(
        check.contains(" check+0x") && check.contains("aborts.c:7)"),
        "{stderr}"
    );
    ensure!(
        main.contains(" main+0x") && main.contains("aborts.c:13)"),
        "{stderr}"
    );
    let branches = position("  its last 12 branches up to its call of abort:")?;
    let shown = lines.get(branches + 1..branches + 13).unwrap_or_default();
    let is_own = |line: &&&str| line.contains("aborts");
    ensure!(shown.iter().filter(is_own).count() == 12, "{stderr}");
    ensure!(
        shown
            .last()
            .is_some_and(|last| last.contains("-> ") && last.contains("abort@plt"))
    );
    Ok(())
}

fn exit_port(machine: &Machine) -> Result<()> {
    for width in ["al", "ax", "eax"] {
        let code = format!("movb $3, %al\nmovw $0xf4, %dx\nout %{width}, %dx");
        let stderr = crash(machine, &code, "-m64", "core2", Signal::SIGSEGV)?;
        ensure!(stderr.contains(&format!(": out dx,{width}\n")), "{stderr}");
    }
    Ok(())
}
