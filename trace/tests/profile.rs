//! Profiles of made-up traces: code, branches, and what has to come out.

use proptest::prelude::*;
use vbts_trace::profile::Profile;
use vbts_trace::profile::code::{Files, Symbol, SymbolKind};
use vbts_trace::profile::modules::{Module, ModuleKind};
use vbts_trace::profile::tree::{Label, Tree};
use vbts_trace::{Branch, CodeSource, Crash, Event, Item, Status};

/// One file of code at 0x400000, with functions of 16 bytes.
#[derive(Default)]
struct Code {
    bytes: Vec<u8>,
    kinds: Vec<SymbolKind>,
}

const BASE: u64 = 0x40_0000;
const SIZE: u64 = 16;
/// Address of the same functions as code that the process has made.
const GENERATED: u64 = 0x50_0000;

/// Offset of the first function in a module.
fn first(module: &Module) -> u64 {
    match module.kind {
        ModuleKind::Generated => GENERATED,
        _ => 0,
    }
}

impl Code {
    /// Adds a function with this code, at its beginning, and `nop` after it.
    fn function(self, code: &[u8]) -> Self {
        self.symbol(SymbolKind::Function, code)
    }

    /// As [`Self::function`] for another kind of symbol.
    fn symbol(mut self, kind: SymbolKind, code: &[u8]) -> Self {
        self.bytes.extend_from_slice(code);
        self.kinds.push(kind);
        self.bytes.resize(self.kinds.len() * SIZE as usize, 0x90);
        self
    }
}

impl Files for Code {
    fn read(&mut self, module: &Module, offset: u64, bytes: &mut [u8]) -> usize {
        let at = offset.wrapping_sub(first(module)) as usize;
        let code = self.bytes.get(at..).unwrap_or_default();
        let size = code.len().min(bytes.len());
        bytes[..size].copy_from_slice(&code[..size]);
        size
    }

    fn is_64_bit(&mut self, _: &Module) -> bool {
        true
    }

    fn symbols(&mut self, module: &Module) -> Vec<Symbol> {
        let starts = (first(module)..).step_by(SIZE as usize).zip(&self.kinds);
        let symbol = |(start, kind): (u64, &SymbolKind)| Symbol {
            start,
            end: start + SIZE,
            kind: *kind,
        };
        starts.map(symbol).collect()
    }
}

/// The address of byte `at` of function `function`.
fn at(function: u64, at: u64) -> u64 {
    BASE + function * SIZE + at
}

fn branch(from: (u64, u64), to: (u64, u64)) -> Branch {
    Branch {
        from: at(from.0, from.1),
        to: at(to.0, to.1),
    }
}

fn start(id: u32, parent: u32, process: u32) -> Event {
    Event::Start {
        id,
        parent,
        process,
        time: 0,
    }
}

/// A profile of one task in process 1, whose mappings are known.
fn begin(code: Code) -> Profile<Code> {
    let mut profile = Profile::new(code, b"/bin/program", ());
    event(&mut profile, 0, start(1, 0, 1));
    maps(&mut profile, 1);
    profile
}

fn maps(profile: &mut Profile<Code>, process: u32) {
    let text = b"400000-410000 r-xp 00000000 00:12 5    /bin/program\n".to_vec();
    event(profile, 0, Event::Maps { process, text });
}

fn event(profile: &mut Profile<Code>, task: u64, event: Event) {
    profile.item(Item::Event { task, event });
}

/// The paths in the call tree: functions by their numbers, `S` for a signal, with calls and
/// instructions.
fn paths(profile: &Profile<Code>) -> Vec<String> {
    paths_of(profile.tree(), profile)
}

fn paths_of(tree: &Tree, profile: &Profile<Code>) -> Vec<String> {
    let nodes = tree.nodes();
    let name = |label: Label| match label {
        Label::Program(program) => format!("p{program}"),
        Label::Function(id) => (profile.functions().get(id).start.offset / SIZE).to_string(),
        Label::Inlined(id) => format!("i{id}"),
        Label::Signal => "S".to_owned(),
    };
    let mut paths: Vec<String> = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let mut path = name(node.label);
        let mut at = number;
        while nodes[at].parent as usize != at {
            at = nodes[at].parent as usize;
            path = format!("{};{path}", name(nodes[at].label));
        }
        paths.push(format!("{path} {} {}", node.calls, node.instructions));
    }
    paths.sort();
    paths
}

// call rel32: E8; ret: C3; jmp rel8: EB; jmp rax: FF E0; call rax: FF D0; syscall: 0F 05.

#[test]
fn calls_and_returns_make_a_tree() {
    // 0: nop; call rax; nop; ret. 1: nop; nop; ret.
    let code = Code::default()
        .function(&[0x90, 0xFF, 0xD0, 0x90, 0xC3])
        .function(&[0x90, 0x90, 0xC3]);
    let mut profile = begin(code);
    let call = branch((0, 1), (1, 0));
    let ret = branch((1, 2), (0, 3));
    // The first line begins where the function does.
    let again = branch((0, 4), (0, 0));
    profile.branches(0, &[call, ret, again, call, ret]);
    profile.finish();
    assert_eq!(paths(&profile), ["p0 0 0", "p0;0 2 6", "p0;0;1 2 6"]);
    assert_eq!(profile.counts().instructions, 12);
    assert_eq!(profile.counts().unexplained, 0);
}

/// An interpreter calls itself through code that a compiler has made and removed.
#[test]
fn a_recursion_through_unknown_code_is_no_return() {
    // 0: jz 4; call rax; ret. 1: call rax; ret.
    let code = Code::default()
        .function(&[0x74, 0x02, 0xFF, 0xD0, 0xC3])
        .function(&[0xFF, 0xD0, 0xC3]);
    let mut profile = begin(code);
    let unknown = |from: u64, to: u64| Branch { from, to };
    let made = 0x50_0000;
    for _ in 0..3 {
        profile.branches(
            0,
            &[
                branch((1, 0), (0, 0)),
                unknown(at(0, 2), made),
                unknown(made + 5, at(0, 0)),
                branch((0, 0), (0, 4)),
                unknown(at(0, 4), made + 7),
                unknown(made + 8, at(0, 4)),
                branch((0, 4), (1, 2)),
                // The caller begins again.
                branch((1, 2), (1, 0)),
            ],
        );
    }
    profile.finish();
    let made = made / SIZE;
    assert_eq!(
        paths(&profile)
            .iter()
            .map(|path| path.rsplit_once(' ').unwrap().0)
            .collect::<Vec<_>>(),
        [
            "p0 0".to_owned(),
            "p0;1 4".to_owned(),
            "p0;1;0 3".to_owned(),
            format!("p0;1;0;{made} 3"),
            format!("p0;1;0;{made};0 3"),
        ]
    );
    assert_eq!(profile.counts().unexplained, 0);
}

#[test]
fn a_jump_to_a_function_is_a_call_that_returns_to_the_caller() {
    // 0: call rax; ret. 1: jmp rax. 2: jmp rax. 3: ret.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0xC3])
        .function(&[0xFF, 0xE0])
        .function(&[0xFF, 0xE0])
        .function(&[0xC3]);
    let mut profile = begin(code);
    profile.branches(
        0,
        &[
            branch((0, 0), (1, 0)),
            branch((1, 0), (2, 0)),
            // They jump to each other: the stack does not grow.
            branch((2, 0), (1, 0)),
            branch((1, 0), (2, 0)),
            branch((2, 0), (3, 0)),
            branch((3, 0), (0, 2)),
            branch((0, 2), (0, 0)),
        ],
    );
    profile.finish();
    let paths = paths(&profile);
    assert_eq!(
        paths,
        [
            "p0 0 0",
            "p0;0 2 2",
            "p0;0;1 2 2",
            "p0;0;1;2 2 2",
            "p0;0;1;2;3 1 1"
        ]
    );
}

/// A method of a virtual machine is called through a stub, which jumps behind its beginning, and
/// returns by a jump.
#[test]
fn a_jump_between_generated_functions_is_a_call_or_a_return() {
    // 0: call rax; nop; ret. 1, a method: nop; call rax; call rax; ret. 2, a stub: jmp rax.
    // 3, a method: nop; jmp rax.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0x90, 0xC3])
        .function(&[0x90, 0xFF, 0xD0, 0xFF, 0xD0, 0xC3])
        .function(&[0xFF, 0xE0])
        .function(&[0x90, 0xFF, 0xE0]);
    let mut profile = Profile::new(code, b"/bin/program", ());
    event(&mut profile, 0, start(1, 0, 1));
    let (source, bytes) = (CodeSource::PerfMap, Vec::new());
    let generated = Event::Code {
        process: 1,
        source,
        at: 0,
        bytes,
    };
    event(&mut profile, 0, generated);
    let text = b"400000-410000 r-xp 00000000 00:12 5    /bin/program\n\
        500000-501000 rwxp 00000000 00:00 0\n";
    let text = text.to_vec();
    event(&mut profile, 0, Event::Maps { process: 1, text });
    let generated = |from: u64, to: u64| Branch {
        from: GENERATED + from,
        to: GENERATED + to,
    };
    let (method, other) = (SIZE, 3 * SIZE);
    profile.branches(
        0,
        &[
            Branch {
                from: at(0, 0),
                to: GENERATED + method,
            },
            generated(method + 1, 2 * SIZE),
            generated(2 * SIZE, other + 1),
            generated(other + 1, method + 3),
            generated(method + 3, other + 1),
            generated(other + 1, method + 5),
            Branch {
                from: GENERATED + method + 5,
                to: at(0, 2),
            },
        ],
    );
    profile.finish();
    let (method, stub, other) = (
        GENERATED / SIZE + 1,
        GENERATED / SIZE + 2,
        GENERATED / SIZE + 3,
    );
    assert_eq!(
        paths(&profile),
        [
            "p0 0 0".to_owned(),
            "p0;0 1 1".to_owned(),
            format!("p0;0;{method} 1 4"),
            format!("p0;0;{method};{stub} 1 1"),
            format!("p0;0;{method};{stub};{other} 1 1"),
            format!("p0;0;{method};{other} 1 1"),
        ]
    );
    assert_eq!(profile.counts().unexplained, 0);
}

#[test]
fn the_linkage_is_no_caller() {
    // 0: call rax; call rax; ret. 1, a stub: jmp rax. 2, the header: jmp rax. 3, the resolver:
    // call rax; jmp rax. 4: ret. 5: call rax; ret. 6: ret.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0xFF, 0xD0, 0xC3])
        .symbol(SymbolKind::Linkage, &[0xFF, 0xE0])
        .symbol(SymbolKind::LinkageHeader, &[0xFF, 0xE0])
        .function(&[0xFF, 0xD0, 0xFF, 0xE0])
        .function(&[0xC3])
        .function(&[0xFF, 0xD0, 0xC3])
        .function(&[0xC3]);
    let mut profile = begin(code);
    let call = [
        branch((5, 0), (6, 0)),
        branch((6, 0), (5, 2)),
        branch((5, 2), (0, 2)),
        branch((0, 2), (1, 0)),
    ];
    let first = [
        branch((0, 0), (1, 0)),
        branch((1, 0), (2, 0)),
        branch((2, 0), (3, 0)),
        branch((3, 0), (4, 0)),
        branch((4, 0), (3, 2)),
        branch((3, 2), (5, 0)),
    ];
    profile.branches(0, &first);
    profile.branches(0, &call);
    profile.branches(0, &[branch((1, 0), (5, 0))]);
    profile.branches(0, &call[..3]);
    profile.finish();
    let all = ["p0 0 0", "p0;0 1 2", "p0;0;1 2 2", "p0;0;2 1 1"];
    let rest = ["p0;0;3 1 2", "p0;0;3;4 1 1", "p0;0;5 2 4", "p0;0;5;6 2 2"];
    assert_eq!(paths(&profile), [all, rest].concat());
    let shown = profile.shown_tree();
    let shown = paths_of(&shown, &profile);
    let expected = ["p0 0 0", "p0;0 1 7", "p0;0;4 1 1"];
    assert_eq!(shown, [&expected[..], &rest[2..]].concat());
    profile.set_raw_frames(true);
    assert_eq!(paths_of(&profile.shown_tree(), &profile), paths(&profile));
}

#[test]
fn a_longjmp_leaves_frames_behind() {
    // 0: call rax; nop; ret. 1: call rax; ret. 2: jmp rax.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0x90, 0xC3])
        .function(&[0xFF, 0xD0, 0xC3])
        .function(&[0xFF, 0xE0]);
    let mut profile = begin(code);
    profile.branches(
        0,
        &[
            branch((0, 0), (1, 0)),
            branch((1, 0), (1, 0)),
            branch((1, 0), (2, 0)),
            branch((2, 0), (0, 2)),
            branch((0, 3), (0, 0)),
            branch((0, 0), (1, 0)),
        ],
    );
    profile.finish();
    let paths = paths(&profile);
    assert!(paths.contains(&"p0;0;1 2 1".to_owned()), "{paths:?}");
    assert_eq!(profile.counts().unwound, 1);
    assert_eq!(profile.counts().unexplained, 0);
}

#[test]
fn a_signal_interrupts_and_what_it_has_interrupted_counts_once() {
    // 0: nop ×4; call rax; ret. 1, the handler: nop; ret. 2: nop; syscall. 3: ret.
    let code = Code::default()
        .function(&[0x90, 0x90, 0x90, 0x90, 0xFF, 0xD0, 0xC3])
        .function(&[0x90, 0xC3])
        .function(&[0x90, 0x0F, 5])
        .function(&[0xC3]);
    let mut profile = begin(code);
    profile.branches(
        0,
        &[
            branch((0, 4), (3, 0)),
            branch((3, 0), (0, 6)),
            branch((0, 6), (0, 0)),
            // The line that begins at 0 is interrupted. The kernel's branches have no records.
            branch((1, 1), (2, 0)),
            branch((0, 4), (3, 0)),
            branch((3, 0), (0, 6)),
        ],
    );
    profile.finish();
    let paths = paths(&profile);
    assert_eq!(
        paths,
        [
            "p0 0 0",
            "p0;0 2 11",
            "p0;0;3 2 2",
            "p0;0;S 1 0",
            "p0;0;S;1 1 2"
        ]
    );
    assert_eq!((profile.counts().signals, profile.counts().gaps), (1, 0));
}

/// Coroutines. 0, 1 and 3: call rax; nop; ret. 2, which switches: ret.
fn coroutines() -> Profile<Code> {
    let call = [0xFF, 0xD0, 0x90, 0xC3];
    let code = Code::default()
        .function(&call)
        .function(&call)
        .function(&[0xC3])
        .function(&call);
    begin(code)
}

#[test]
fn coroutines_exchange_their_stacks() {
    let mut profile = coroutines();
    let (calls, switches) = (branch((1, 0), (2, 0)), branch((3, 0), (2, 0)));
    let mut branches = vec![
        branch((0, 0), (1, 0)),
        calls,
        // To a stack whose function 3 has called the switch before the trace.
        branch((2, 0), (3, 2)),
        branch((3, 3), (3, 0)),
    ];
    for _ in 0..3 {
        branches.push(switches);
        // Back to function 1.
        branches.push(branch((2, 0), (1, 2)));
        branches.push(branch((1, 3), (0, 2)));
        branches.push(branch((0, 3), (0, 0)));
        branches.push(branch((0, 0), (1, 0)));
        branches.push(calls);
        branches.push(branch((2, 0), (3, 2)));
        branches.push(branch((3, 3), (3, 0)));
    }
    profile.branches(0, &branches);
    profile.finish();
    assert_eq!(profile.counts().switches, 6, "{:?}", profile.counts());
    assert_eq!(profile.counts().unexplained, 1, "{:?}", profile.counts());
}

#[test]
fn a_stack_that_was_left_gets_the_name_that_the_thread_has_got_since() {
    let mut profile = coroutines();
    let before = [
        branch((0, 0), (1, 0)),
        branch((1, 0), (2, 0)),
        branch((2, 0), (3, 2)),
        branch((3, 3), (3, 0)),
    ];
    profile.branches(0, &before);
    event(&mut profile, 0, Event::ThreadName(b"worker".into()));
    let after = [
        branch((3, 0), (2, 0)),
        branch((2, 0), (1, 2)),
        branch((1, 3), (0, 2)),
        branch((0, 3), (0, 0)),
        branch((0, 0), (1, 0)),
        branch((1, 0), (2, 0)),
    ];
    profile.branches(0, &after);
    profile.finish();
    assert_eq!(profile.counts().switches, 1, "{:?}", profile.counts());
    let paths = paths(&profile);
    let has = |path: &str| paths.iter().any(|found| found.starts_with(path));
    assert!(
        has("p0;0;1 1 ") && has("p1;0;1 1 ") && has("p1;0;1;2 1 "),
        "{paths:?}"
    );
}

#[test]
fn a_fork_continues_behind_the_system_call_on_the_stack_of_its_parent() {
    // 0: call rax; ret. 1: nop; syscall; nop; nop; ret.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0xC3])
        .function(&[0x90, 0x0F, 5, 0x90, 0x90, 0xC3]);
    let mut profile = begin(code);
    profile.branches(0, &[branch((0, 0), (1, 0))]);
    event(&mut profile, 1, start(2, 1, 2));
    profile.branches(0, &[branch((1, 5), (0, 2))]);
    profile.branches(1, &[branch((1, 5), (0, 2))]);
    let status = Status::Exited(0);
    event(&mut profile, 1, Event::End { time: 0, status });
    profile.finish();
    assert_eq!(paths(&profile), ["p0 0 0", "p0;0 1 1", "p0;0;1 1 8"]);
    let tasks: Vec<(u32, u64)> = profile
        .tasks()
        .iter()
        .map(|(_, task)| (task.id, task.instructions))
        .collect();
    assert_eq!(tasks, [(1, 6), (2, 3)]);
}

#[test]
fn the_last_line_ends_at_the_system_call_or_at_the_fault() {
    // 0: jmp +0; nop; nop; syscall; hlt.
    let code = || Code::default().function(&[0xEB, 0, 0x90, 0x90, 0x0F, 5, 0xF4]);
    let jump = branch((0, 0), (0, 2));
    let mut profile = begin(code());
    profile.branches(0, &[jump]);
    let status = Status::Exited(0);
    event(&mut profile, 0, Event::End { time: 0, status });
    profile.finish();
    assert_eq!(profile.counts().instructions, 4);
    let mut profile = begin(code());
    profile.branches(0, &[jump]);
    let mut registers = vec![0; 19];
    registers[16] = at(0, 3);
    let crash = Event::Crash(Box::new(Crash {
        signal: 11,
        code: 1,
        address: 0,
        registers,
        instruction: Vec::new(),
    }));
    event(&mut profile, 0, crash);
    profile.finish();
    assert_eq!(profile.counts().instructions, 2);
}

#[test]
fn a_processor_executes_tasks_with_stacks_of_their_own() {
    // 0, which switches: call rax; ret. 1: ret. 2: call rax; ret.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0xC3])
        .function(&[0xC3])
        .function(&[0xFF, 0xD0, 0xC3]);
    let mut profile = Profile::new(code, b"kernel", ());
    let switch = |id| Event::Switch {
        id,
        process: 1,
        time: 0,
        name: id.to_string().into_bytes(),
    };
    maps(&mut profile, 1);
    event(&mut profile, 0, switch(7));
    profile.branches(0, &[branch((2, 0), (0, 0)), branch((0, 0), (1, 0))]);
    event(&mut profile, 0, switch(8));
    // A new task returns from a call that nothing has seen.
    profile.branches(
        0,
        &[
            branch((1, 0), (0, 2)),
            branch((0, 2), (0, 0)),
            branch((0, 0), (1, 0)),
        ],
    );
    event(&mut profile, 0, switch(7));
    profile.branches(
        0,
        &[
            branch((1, 0), (0, 2)),
            branch((0, 2), (2, 2)),
            branch((2, 2), (2, 0)),
            branch((2, 0), (0, 0)),
            branch((0, 0), (1, 0)),
        ],
    );
    event(&mut profile, 0, switch(8));
    profile.branches(0, &[branch((1, 0), (0, 2))]);
    profile.finish();
    assert_eq!(
        (profile.counts().unexplained, profile.counts().unwound),
        (0, 0),
        "{:?}",
        paths(&profile)
    );
    let paths = paths(&profile);
    assert!(paths.contains(&"p1;2;0;1 2 1".to_owned()), "{paths:?}");
    let tasks = profile
        .tasks()
        .iter()
        .map(|(_, task)| (task.id, task.branches));
    assert_eq!(tasks.collect::<Vec<_>>(), [(8, 4), (7, 7)]);
}

#[test]
fn lost_records_are_no_error() {
    // 0: call rax; nop; ret. 1: nop; ret.
    let code = Code::default()
        .function(&[0xFF, 0xD0, 0x90, 0xC3])
        .function(&[0x90, 0xC3]);
    let mut profile = begin(code);
    let call = branch((0, 0), (1, 0));
    profile.branches(0, &[call]);
    event(&mut profile, 0, Event::Lost(7));
    profile.branches(0, &[branch((0, 3), (0, 0)), call, branch((1, 1), (0, 2))]);
    profile.finish();
    assert_eq!(profile.counts().lost, 7);
    assert_eq!(paths(&profile)[1], "p0;0 2 3");
}

#[test]
fn branches_in_unknown_code_count_without_instructions() {
    let mut profile = Profile::new(Code::default(), b"", ());
    profile.branches(5, &[branch((0, 0), (1, 0)), branch((1, 3), (2, 0))]);
    profile.finish();
    assert_eq!(
        (profile.counts().branches, profile.counts().instructions),
        (2, 0)
    );
    assert_eq!(profile.counts().no_code, 2);
}

fn any_address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => BASE..BASE + 64,
        1 => any::<u64>(),
        1 => prop::sample::select(vec![0, u64::MAX, 1 << 63, BASE + 0xFFFF, BASE + 0x10000]),
    ]
}

proptest! {
    /// Whatever a file says, each branch counts once, and nothing panics.
    #[test]
    fn any_trace_of_any_code_is_counted(
        code in prop::collection::vec(any::<u8>(), 0..64),
        parts in prop::collection::vec(
            (0..3_u64, 0..8_u8, prop::collection::vec((any_address(), any_address()), 0..40)),
            0..20,
        ),
    ) {
        let code = code.chunks(SIZE as usize).fold(Code::default(), Code::function);
        let mut profile = begin(code);
        let mut count = 0;
        for (task, kind, branches) in parts {
            let branches: Vec<Branch> =
                branches.iter().map(|(from, to)| Branch { from: *from, to: *to }).collect();
            profile.branches(task, &branches);
            count += branches.len() as u64;
            let (time, id) = (0, task as u32 + 1);
            let status = Status::Killed(9);
            let registers = vec![BASE + 5; 19];
            let (name, former) = (b"x".to_vec(), id);
            match kind {
                0 => event(&mut profile, task, Event::Lost(1)),
                1 => event(&mut profile, task, Event::Exec { id, former, time, name }),
                2 => event(&mut profile, task + 3, start(id + 3, id, id % 2 + 1)),
                3 => event(&mut profile, task, Event::End { time, status }),
                4 => maps(&mut profile, id % 2 + 1),
                5 => event(&mut profile, task, Event::ProcessEnd { process: 1 }),
                6 => event(&mut profile, task, Event::Crash(Box::new(Crash {
                    signal: 11, code: 1, address: 0, registers, instruction: Vec::new(),
                }))),
                _ => {}
            }
        }
        profile.finish();
        prop_assert_eq!(profile.counts().branches, count);
        let nodes = profile.tree().nodes();
        let branches: u64 = nodes.iter().map(|node| node.branches).sum();
        prop_assert_eq!(branches, count);
        let instructions: u64 = nodes.iter().map(|node| node.instructions).sum();
        prop_assert_eq!(instructions, profile.counts().instructions);
        for (at, node) in nodes.iter().enumerate() {
            prop_assert!(node.parent as usize <= at);
        }
    }
}
