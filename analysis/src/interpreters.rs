//! Interpreters, and what makes a trace name the functions of the program that one executes.

use vbts_trace::profile::Watch;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::ModuleKind;
use vbts_trace::profile::tree::Label;

use super::names::place_name;
use super::{Loaded, Names};

/// The code in which an interpreter executes a program.
#[derive(Debug)]
enum Loop {
    /// In functions with these names, or beginnings of names (`*`).
    Functions(&'static [&'static str]),
    /// In code that it has made, without names. The interpreter is in this library.
    CodeOf(&'static str),
}

/// An interpreter.
#[derive(Debug)]
struct Interpreter {
    /// Language of the program.
    language: &'static str,
    /// The code in which it executes a program.
    at: Loop,
    /// Advice: the option that gives the functions of the program names.
    help: &'static str,
}

/// Functions in which CPython executes a program.
const PYTHON: &[&str] = &["_PyEval_EvalFrameDefault", "PyEval_EvalFrameEx"];

#[rustfmt::skip]
static INTERPRETERS: [Interpreter; 7] = [
    Interpreter { language: "Python", at: Loop::Functions(PYTHON),
        help: "from Python 3.12 on, `python3 -X perf` gives each function of the program a frame; of \
               a recording of CPython 3.13, `vbts report where` and python-frames in `vbts debug` \
               show them" },
    Interpreter { language: "JavaScript", at: Loop::Functions(&["Builtins_*"]),
        help: "`node --perf-prof --interpreted-frames-native-stack` names the functions of the program" },
    Interpreter { language: "Java", at: Loop::CodeOf("libjvm.so"),
        help: "`java -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit` names the methods of \
               the program" },
    Interpreter { language: "Ruby", at: Loop::Functions(&["vm_exec_core", "vm_exec"]),
        help: "from Ruby 3.3 on, `ruby --yjit --yjit-perf` names the methods that are compiled" },
    Interpreter { language: "PHP", at: Loop::Functions(&["execute_ex"]),
        help: "from PHP 8.0 on, `php -d opcache.enable_cli=1 -d opcache.jit=tracing \
               -d opcache.jit_buffer_size=64M -d opcache.jit_debug=0x10` names the functions that \
               are compiled" },
    Interpreter { language: "Perl", at: Loop::Functions(&["Perl_runops_standard", "Perl_pp_*"]),
        help: "Perl has no option that names them; its profiler Devel::NYTProf (`perl -d:NYTProf`) \
               counts them" },
    Interpreter { language: "Lua", at: Loop::Functions(&["luaV_execute"]),
        help: "Lua has no option that names them" },
];

/// Share of the branches, in percent, from which on an interpreter is what the report shows.
const LEAST: u64 = 30;

/// Returns whether a function has one of these names.
fn is_one_of(function: &str, names: &[&str]) -> bool {
    // A version of the symbol, a part of the function, parameters or an offset can follow.
    let name = function
        .split(['(', '@', '.', '+'])
        .next()
        .unwrap_or(function);
    names.iter().any(|wanted| match wanted.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == *wanted,
    })
}

/// Returns whether a text, such as a stack, has a function in which CPython executes a program.
pub fn names_python(text: &str) -> bool {
    text.split_whitespace().any(|word| is_one_of(word, PYTHON))
}

/// Facts about a function.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// A bit for each of [`INTERPRETERS`] that executes a program there.
    loops: u8,
    /// The function was made while the program ran, and has a name.
    is_made_and_named: bool,
}

/// Facts about each function, by number.
fn facts<W: Watch>(profile: &Loaded<W>, names: &Names) -> Vec<Facts> {
    let has = |library| (profile.modules().iter()).any(|module| module.name.ends_with(library));
    let is_present = INTERPRETERS
        .each_ref()
        .map(|interpreter| match interpreter.at {
            Loop::Functions(_) => true,
            Loop::CodeOf(library) => has(library),
        });
    let facts = (0..profile.functions().len() as FunctionId).map(|id| {
        let function = names.function(id);
        let module = profile.modules().get(function.module);
        let is_made = [ModuleKind::Generated, ModuleKind::Anonymous].contains(&module.kind);
        // A function without a name has that of its place.
        let place = place_name(module, 0);
        let is_named = !function.name.starts_with(place.trim_end_matches('0'));
        let mut loops = 0;
        for (number, interpreter) in INTERPRETERS.iter().enumerate() {
            let is_loop = match interpreter.at {
                Loop::Functions(names) => is_one_of(&function.name, names),
                Loop::CodeOf(_) => is_made && is_present[number],
            };
            loops |= u8::from(is_loop) << number;
        }
        Facts {
            loops,
            is_made_and_named: is_made && is_named,
        }
    });
    facts.collect()
}

/// The advice for a program that an interpreter has executed most of the time, if the trace has no
/// names of code that was made while it ran: the option that gives its functions names.
pub(crate) fn hint<W: Watch>(profile: &Loaded<W>, names: &Names) -> Option<String> {
    let facts = facts(profile, names);
    let nodes = profile.tree().nodes();
    let mut whole: u64 = 0;
    let mut executed = INTERPRETERS.each_ref().map(|_| 0_u64);
    let mut loops: Vec<u8> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let function = match node.label {
            Label::Function(id) => facts.get(id as usize).copied().unwrap_or_default(),
            _ => Facts::default(),
        };
        if function.is_made_and_named {
            return None;
        }
        // What the loop calls counts for it. A caller comes before what it calls.
        let of_caller = loops.get(node.parent as usize).copied().unwrap_or(0);
        let of_node = of_caller | function.loops;
        loops.push(of_node);
        whole += node.branches;
        for (number, executed) in executed.iter_mut().enumerate() {
            *executed += u64::from(of_node >> number & 1) * node.branches;
        }
    }
    let mut found = INTERPRETERS.iter().zip(executed);
    let found = found.find(|(_, executed)| *executed > whole / 100 * LEAST);
    let (Interpreter { language, help, .. }, _) = found?;
    Some(format!(
        "the functions of the {language} program have no names here, because an interpreter \
         executes it: {help}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_known_by_its_name() {
        let of = |function: &str| {
            let found = INTERPRETERS
                .iter()
                .find(|interpreter| match interpreter.at {
                    Loop::Functions(names) => is_one_of(function, names),
                    Loop::CodeOf(_) => false,
                });
            found.map(|interpreter| interpreter.language)
        };
        assert_eq!(of("_PyEval_EvalFrameDefault"), Some("Python"));
        assert_eq!(of("_PyEval_EvalFrameDefault.cold"), Some("Python"));
        assert_eq!(of("Builtins_LdaZeroHandler"), Some("JavaScript"));
        assert_eq!(of("Perl_pp_add"), Some("Perl"));
        assert_eq!(of("vm_execute"), None);
        assert_eq!(of("main"), None);
        assert!(names_python(
            "   0  _PyEval_EvalFrameDefault.cold ceval.c:5\n   1  main\n"
        ));
        assert!(names_python("   1  _PyEval_EvalFrameDefault+0x25db\n"));
        assert!(!names_python("   0  _PyEval_Vector\n"));
    }
}
