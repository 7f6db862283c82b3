//! Interpreters, and what makes a trace name the functions of the program that one executes.

use vbts_trace::profile::Watch;
use vbts_trace::profile::modules::ModuleKind;
use vbts_trace::profile::tree::{Label, Node};

use super::names::place_name;
use super::{Loaded, Names};

/// Where an interpreter executes a program.
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
    /// Its language.
    language: &'static str,
    /// Where it executes a program.
    at: Loop,
    /// What names the functions of the program.
    help: &'static str,
}

#[rustfmt::skip]
static INTERPRETERS: [Interpreter; 7] = [
    Interpreter { language: "Python", at: Loop::Functions(&["_PyEval_EvalFrameDefault", "PyEval_EvalFrameEx"]),
        help: "from Python 3.12 on, `python3 -X perf` gives each function of the program a frame; of \
               a recording of CPython 3.13, python-frames in `vbts debug` shows them" },
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
    // A version of the symbol, a part of the function, or parameters can follow.
    let name = function.split(['(', '@', '.']).next().unwrap_or(function);
    names.iter().any(|wanted| match wanted.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == *wanted,
    })
}

/// What to type so that a trace names the functions of the program, if an interpreter has executed
/// it most of the time and the trace has no names of code that was made while it ran.
pub(crate) fn hint<W: Watch>(profile: &Loaded<W>, names: &Names) -> Option<String> {
    let function = |node: &Node| match node.label {
        Label::Function(id) => Some(names.function(id)),
        _ => None,
    };
    let made = |node: &Node| {
        let function = function(node)?;
        let module = profile.modules().get(function.module);
        let kinds = [ModuleKind::Generated, ModuleKind::Anonymous];
        // A function without a name has that of its place.
        let place = place_name(module, 0);
        let is_named = !function.name.starts_with(place.trim_end_matches('0'));
        kinds.contains(&module.kind).then_some(is_named)
    };
    let nodes = profile.tree().nodes();
    if nodes.iter().any(|node| made(node) == Some(true)) {
        return None;
    }
    let whole: u64 = nodes.iter().map(|node| node.branches).sum();
    let found = INTERPRETERS.iter().find(|interpreter| {
        let is_loop = |node: &Node| match interpreter.at {
            Loop::Functions(names) => {
                function(node).is_some_and(|function| is_one_of(&function.name, names))
            }
            Loop::CodeOf(_) => made(node).is_some(),
        };
        if let Loop::CodeOf(library) = interpreter.at
            && !(profile.modules().iter()).any(|module| module.name.ends_with(library))
        {
            return false;
        }
        // What the loop calls counts for it. A caller comes before what it calls.
        let mut inside: Vec<bool> = Vec::with_capacity(nodes.len());
        let mut executed: u64 = 0;
        for node in nodes {
            let is_inside = inside.get(node.parent as usize) == Some(&true) || is_loop(node);
            inside.push(is_inside);
            executed += if is_inside { node.branches } else { 0 };
        }
        executed > whole / 100 * LEAST
    });
    let Interpreter { language, help, .. } = found?;
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
    }
}
