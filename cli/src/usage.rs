//! The help of commands with many options: first those that most users need.
//!
//! `-h` fits on a screen of 24 lines, `--help` on two. `vbts help COMMAND` and the manual page have
//! all options.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory as _};

use super::{Cli, colours};

/// The options of a command that its help shows, in this order.
struct Common {
    command: &'static str,
    /// With `-h`.
    brief: &'static [&'static str],
    /// With `--help`, behind those.
    more: &'static [&'static str],
    /// Commands, and what they do.
    examples: &'static [(&'static str, &'static str)],
}

const COMMON: [Common; 7] = [
    Common {
        command: "trace",
        brief: &["output", "report", "follow", "scope", "timeout", "quiet"],
        more: &[
            "format", "against", "start", "stop", "only", "last", "wait", "memory", "smp", "share",
            "root", "accel", "stats",
        ],
        examples: &[
            ("vbts trace -- ls", "a summary, on a terminal"),
            (
                "vbts trace -o ls.btrace -- ls",
                "keeps the trace for vbts report",
            ),
            ("vbts trace --report tail -- ./crashes", "the last calls"),
        ],
    },
    Common {
        command: "stat",
        brief: &["output", "json", "against", "fail-above", "scope", "follow"],
        more: &[
            "memory", "smp", "timeout", "share", "root", "accel", "kernel",
        ],
        examples: &[
            ("vbts stat -- ls", "the counts"),
            ("vbts stat --json -o base.json -- ls", "keeps them"),
            (
                "vbts stat --against base.json --fail-above 1% -- ls",
                "compares",
            ),
        ],
    },
    Common {
        command: "record",
        brief: &["output", "force", "wait", "timeout", "quiet"],
        more: &["max-size", "epoch", "memory", "smp", "share", "root"],
        examples: &[
            (
                "vbts record -o ls.vbts -- ls",
                "keeps what comes in from outside",
            ),
            ("vbts replay ls.vbts", "the same run, on any machine"),
        ],
    },
    Common {
        command: "replay",
        brief: &["check", "format", "output", "scope", "quiet"],
        more: &["timeout"],
        examples: &[("vbts replay ls.vbts", "the same run, on any machine")],
    },
    Common {
        command: "debug",
        brief: &["script", "batch", "listen", "quiet"],
        more: &["gdb", "snapshots"],
        examples: &[
            ("vbts debug crash.vbts", "GDB where the program crashed"),
            ("vbts debug -- ./program", "records it, and starts GDB"),
            (
                "vbts debug --batch -x commands.gdb crash.vbts",
                "a script of GDB",
            ),
        ],
    },
    Common {
        command: "test",
        brief: &["kernel", "filter", "report", "output", "list"],
        more: &[
            "build",
            "shard",
            "retries",
            "matrix",
            "merge",
            "case-timeout",
            "timeout",
            "smp",
            "cpu",
            "memory",
            "accel",
            "console",
        ],
        examples: &[
            ("vbts test --filter 'basic*'", "the kernel of vbts"),
            ("vbts test --kernel ../linux/vmlinux", "another one"),
        ],
    },
    Common {
        command: "run",
        brief: &["kernel", "initrd", "append", "disk", "record", "timeout"],
        more: &[
            "memory",
            "smp",
            "accel",
            "cpu",
            "root",
            "share",
            "console",
            "net",
            "record-scope",
            "record-until",
        ],
        examples: &[
            ("vbts run --kernel vmlinux --disk disk.img", "boots it"),
            (
                "vbts run --kernel vmlinux --record boot.btrace",
                "every branch of it",
            ),
        ],
    },
];

/// Prints the help for which the command line `args` asks, if that is one that this module has.
pub(crate) fn print(args: &[OsString], error: &clap::Error) -> bool {
    if error.kind() != ErrorKind::DisplayHelp {
        return false;
    }
    let of_vbts = args.iter().take_while(|arg| *arg != "--");
    let is_long = of_vbts.skip(1).any(|arg| arg == "--help");
    let name = args.get(1).and_then(|arg| arg.to_str());
    match name.and_then(|name| of(name, is_long)) {
        Some(text) => show(&text),
        None => return false,
    }
    true
}

/// Prints a help text, with colours on a terminal whose user has not forbidden them.
pub(crate) fn show(text: &StyledStr) {
    let text = match colours::are_wanted() {
        true => text.ansi().to_string(),
        false => text.to_string(),
    };
    // As a help of clap's that cannot be written.
    let _ = super::print(text.as_bytes());
}

/// The help of a command with all options.
pub(crate) fn whole(name: &str) -> Option<StyledStr> {
    Some(command(name)?.render_long_help())
}

/// The command, as a part of vbts.
fn command(name: &str) -> Option<Command> {
    let mut cli = Cli::command();
    cli.build();
    let command = cli
        .find_subcommand(name)
        .filter(|found| !found.is_hide_set());
    command.cloned()
}

/// The help of a command, in short or not; `None` if it has not many options.
fn of(name: &str, is_long: bool) -> Option<StyledStr> {
    let common = COMMON.iter().find(|common| common.command == name)?;
    let more: &[&str] = if is_long { common.more } else { &[] };
    let order: Vec<&str> = common.brief.iter().chain(more).copied().collect();
    let mut end = String::new();
    if is_long {
        end.push_str("Examples:\n");
        for (example, purpose) in common.examples {
            end.push_str(&format!("  {example:<52} {purpose}\n"));
        }
        end.push('\n');
    } else {
        end.push_str(&format!("More options and examples: vbts {name} --help. "));
    }
    end.push_str(&format!("All options: vbts help {name}"));
    let command = command(name)?.mut_args(|arg| as_shown(arg, &order));
    Some(command.after_help(end).render_help())
}

/// An option as the help shows it: hidden, if it is not in `order`, and else in its first sentence.
fn as_shown(arg: Arg, order: &[&str]) -> Arg {
    if arg.is_positional() || arg.get_long() == Some("help") {
        return arg.help_heading(None::<&str>).display_order(usize::MAX);
    }
    let long = arg.get_long().unwrap_or_default();
    let Some(at) = order.iter().position(|name| *name == long) else {
        return arg.hide(true);
    };
    let help = arg.get_help().map(StyledStr::to_string).unwrap_or_default();
    let first = help.split(". ").next().unwrap_or_default().to_owned();
    // A list of a dozen values is for the manual page.
    let hides_values = arg.get_possible_values().len() > 8;
    arg.help(first)
        .help_heading(None::<&str>)
        .hide_possible_values(hides_values)
        .display_order(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_on_one_screen_or_on_two() {
        for common in &COMMON {
            for (is_long, most) in [(false, 24), (true, 48)] {
                let text = of(common.command, is_long).unwrap().to_string();
                let lines = text.lines().count();
                assert!(lines <= most, "{}: {lines} lines\n{text}", common.command);
                let width = text.lines().map(|line| line.chars().count()).max();
                assert!(width <= Some(100), "{text}");
            }
        }
        let mut cli = Cli::command();
        assert!(cli.render_help().to_string().lines().count() <= 24);
        assert!(cli.render_long_help().to_string().lines().count() <= 48);
    }

    #[test]
    fn the_options_exist_and_are_shown_in_order() {
        for common in &COMMON {
            let command = command(common.command).unwrap();
            let text = of(common.command, true).unwrap().to_string();
            let mut rest = text.as_str();
            for name in common.brief.iter().chain(common.more) {
                let found = command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(name));
                assert!(found, "{}: --{name}", common.command);
                let (_, after) = rest.split_once(&format!("--{name}")).unwrap();
                rest = after;
            }
        }
    }

    #[test]
    fn examples_are_accepted() {
        for (example, _) in COMMON.iter().flat_map(|common| common.examples) {
            let words = shlex::split(example).unwrap();
            let parsed = Cli::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{example}: {parsed:?}");
        }
    }

    #[test]
    fn the_whole_help_has_every_option() {
        let text = whole("trace").unwrap().to_string();
        for arg in command("trace").unwrap().get_arguments() {
            let shown = arg
                .get_long()
                .is_none_or(|long| text.contains(&format!("--{long}")));
            assert!(shown || arg.is_hide_set(), "{arg:?}");
        }
    }
}
