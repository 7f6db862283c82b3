//! The oracle against sequences that a person can write down.

use super::*;
use crate::branches::{Symbols, first_difference};
use crate::programs;

/// Assembles `body` behind `_start`, traces it, and compares the branches, given as offsets from
/// `_start`.
fn check(body: &str, expected: &[(u64, u64)]) -> Trace {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("program.S");
    std::fs::write(
        &source,
        format!(".globl _start\n_start:\n{body}\n.section .note.GNU-stack, \"\", @progbits\n"),
    )
    .unwrap();
    let program = programs::compile(&source, &directory.path().join("program"), &[]).unwrap();
    let trace = trace(&program).unwrap();
    let start = object_entry(&program);
    let expected: Vec<Branch> = expected
        .iter()
        .map(|&(from, to)| Branch {
            from: start + from,
            to: start + to,
        })
        .collect();
    if let Some(text) = first_difference(&expected, &trace.branches, &Symbols::default()) {
        panic!("{text}");
    }
    trace
}

fn object_entry(program: &Path) -> u64 {
    use object::Object;
    object::File::parse(&*std::fs::read(program).unwrap())
        .unwrap()
        .entry()
}

/// mov $231, %eax; syscall: SYS_exit_group.
const EXIT: &str = "mov $231, %eax\nsyscall\n";

#[test]
fn no_branch() {
    let trace = check(&format!("mov $9, %edi\n{EXIT}"), &[]);
    assert_eq!((trace.status, trace.steps), (9, 3));
    assert_eq!((trace.instructions, trace.branch_instructions), (3, 1));
}

#[test]
fn branches_to_the_next_instruction() {
    // 0: call 5; 5: pop; 6: jmp 8; 8: xor; 10: jz 12; 12: jnz 14
    check(
        &format!("call 1f\n1: pop %rax\njmp 1f\n1: xor %edi, %edi\njz 1f\n1: jnz 1f\n1: {EXIT}"),
        &[(0, 5), (6, 8), (10, 12)],
    );
}

#[test]
fn a_loop_to_itself_and_a_repeated_string_instruction() {
    // 0: mov; 5: loop 5, twice; 7: mov; 12: lea 0(%rsp); 16: mov; 19: rep lodsb, four iterations
    let trace = check(
        &format!(
            "mov $3, %ecx\n1: loop 1b\nmov $4, %ecx\nlea 0(%rsp), %rsi\nmov %rsi, %rdi\nrep lodsb\nxor %edi, %edi\n{EXIT}"
        ),
        &[(5, 5), (5, 5)],
    );
    assert_eq!(trace.steps, 1 + 3 + 3 + 4 + 3);
    assert_eq!(trace.instructions, 1 + 3 + 3 + 1 + 3);
    assert_eq!(trace.branch_instructions, 3 + 1);
}

#[test]
fn calls_returns_and_indirect_jumps() {
    // 0: call 9; 5: xor; 7: jmp 17; 9: lea 16(%rip); 16: ret
    check(
        &format!("call 1f\nxor %edi, %edi\njmp 3f\n1: lea 2f(%rip), %rax\n2: ret\n3: {EXIT}"),
        &[(0, 9), (16, 5), (7, 17)],
    );
}

#[test]
fn far_return() {
    // 0: push $0x33; 2: lea 12(%rip), %rax; 9: push %rax; 10: lretq; 12: xor
    check(
        &format!("push $0x33\nlea 1f(%rip), %rax\npush %rax\nlretq\n1: xor %edi, %edi\n{EXIT}"),
        &[(10, 12)],
    );
}

#[test]
fn system_calls_are_no_user_branches() {
    // getpid; 7: jmp 9
    check(
        &format!("mov $39, %eax\nsyscall\njmp 1f\n1: xor %edi, %edi\n{EXIT}"),
        &[(7, 9)],
    );
}

#[test]
fn a_fault_and_its_handler() {
    let source = "
        xor %edi, %edi              # 0
        jmp setup                   # 2
handler:
        jmp 1f                      # 4
1:      movq $resume, 0xa8(%rdx)    # 6: gregs[REG_RIP]
        ret                         # 17
restorer:
        mov $15, %eax               # 18: rt_sigreturn
        syscall                     # 23
setup:
        mov $13, %eax               # 25: rt_sigaction(SIGILL, action, 0, 8)
        mov $4, %edi                # 30
        mov $action, %esi           # 35
        xor %edx, %edx              # 40
        mov $8, %r10d               # 42
        syscall                     # 48
        jmp fault                   # 50
fault:  ud2                         # 52
resume: jmp 1f                      # 54
1:      xor %edi, %edi              # 56
";
    let data = ".data\naction: .quad handler, 0x04000004, restorer, 0\n";
    check(
        &format!("{source}{EXIT}{data}"),
        &[(2, 25), (50, 52), (4, 6), (17, 18), (54, 56)],
    );
}

#[test]
fn a_signal_from_itself_comes_between_two_instructions() {
    let source = "
        jmp setup                   # 0
handler:
        ret                         # 2
restorer:
        mov $15, %eax               # 3: rt_sigreturn
        syscall                     # 8
setup:
        mov $13, %eax               # 10: rt_sigaction(SIGUSR1, action, 0, 8)
        mov $10, %edi               # 15
        mov $action, %esi           # 20
        xor %edx, %edx              # 25
        mov $8, %r10d               # 27
        syscall                     # 33
        mov $39, %eax               # 35: getpid
        syscall                     # 40
        mov %eax, %edi              # 42
        mov $62, %eax               # 44: kill(pid, SIGUSR1)
        mov $10, %esi               # 49
        syscall                     # 54
        jmp 1f                      # 56
1:      xor %edi, %edi              # 58
";
    let data = ".data\naction: .quad handler, 0x04000004, restorer, 0\n";
    check(
        &format!("{source}{EXIT}{data}"),
        &[(0, 10), (2, 3), (56, 58)],
    );
}

#[test]
fn threads_and_processes() {
    let directory = tempfile::tempdir().unwrap();
    let program = programs::TASKS.build(directory.path()).unwrap();
    let [first, second] = [(); 2].map(|()| trace_tasks(&program).unwrap());
    // Tasks of different parents can start in any order. Which status a thread has depends on
    // whether it ends before its process.
    let summary = |tasks: &Tasks| {
        let tasks = tasks.tasks.iter();
        let mut summary: Vec<_> = tasks.map(|task| task.branches.len()).collect();
        summary.sort_unstable();
        summary
    };
    assert_eq!(summary(&first), summary(&second));
    assert_eq!(first.tasks.len(), 13);
    assert_eq!(first.tasks[0].status, programs::TASKS.status);
    assert!(first.tasks.iter().all(|task| task.branches.len() > 200));
    assert_eq!(first.stdout, second.stdout);
}

#[test]
fn a_jump_into_nowhere_is_taken_before_it_faults() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("program.S");
    std::fs::write(&source, ".globl _start\n_start: mov $64, %eax\njmp *%rax\n").unwrap();
    let program = programs::compile(&source, &directory.path().join("program"), &[]).unwrap();
    let error = format!("{:#}", trace(&program).unwrap_err());
    assert!(error.contains("SIGSEGV"), "{error}");
}

#[test]
fn every_test_program_runs() {
    let directory = tempfile::tempdir().unwrap();
    for program in programs::ALL {
        let trace = trace(&program.build(directory.path()).unwrap()).unwrap();
        assert_eq!(trace.status, program.status, "{}", program.source);
        assert!(
            trace.branches.iter().all(Branch::is_user),
            "{}",
            program.source
        );
        println!(
            "{:16} {:7} steps {:6} branches",
            program.name(),
            trace.steps,
            trace.branches.len()
        );
    }
}
