//! Messages about what a report lacks, on standard error.

use vbts_analysis::Loaded;
use vbts_host::exit::say;
use vbts_symbols::Problem;
use vbts_trace::profile::{Counts, Watch};

use super::files::{say_file_problems, say_files, say_unnamed};

/// Says what the answer lacks. Each message begins with `of`.
pub(super) fn say_problems<W: Watch>(profile: &mut Loaded<W>, of: &str) {
    let Counts {
        no_code,
        gaps,
        lost,
        unexplained,
        too_deep,
        uncounted,
        ..
    } = *profile.counts();
    let cut = profile.tree().cut();
    let lacks = [
        (lost, "records are missing in the trace"),
        (
            gaps,
            "times the code does not lead from one branch to the next",
        ),
        (
            no_code,
            "branches are in code that cannot be read: their instructions are not counted",
        ),
        (
            unexplained,
            "transfers into functions that nothing has called begin a new stack",
        ),
        (
            too_deep,
            "times a stack was too deep, and its outer functions are forgotten",
        ),
        (
            cut,
            "calls count for their callers, because the call tree is full",
        ),
        (
            uncounted,
            "branches are not counted, because there are too many different ones",
        ),
    ];
    for (count, message) in lacks.iter().filter(|(count, _)| *count > 0) {
        say(format_args!("{of}{count} {message}"));
    }
    let (code, _) = profile.code();
    let (changed, replaced) = (
        "changed after the trace, so that its counts can be wrong",
        "is not the file that was traced, by its build ID: its code is shown by address, without \
         instructions",
    );
    say_file_problems(of, code.files.symbols.mapped(), changed, replaced);
    for (problem, message) in [
        (
            Problem::Changed,
            "changed after the trace, so that its lines can be other ones",
        ),
        (Problem::Missing, "cannot be read"),
    ] {
        say_files(of, code.files.source_problems().with(problem), message);
    }
    let replaced = code.files.replaced();
    if replaced > 0 {
        say(format_args!(
            "{of}{replaced} functions of JIT compilers were replaced while the program ran: \
             what was executed at their addresses counts for the last ones"
        ));
    }
    say_unnamed(of, code.files.symbols.unnamed());
}
