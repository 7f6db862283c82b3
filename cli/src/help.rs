//! `vbts help`: the help of a command, or a page of the documentation.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser as _};

use super::{Cli, usage};
use vbts_host::exit::Failure;

/// Makes the table of topics from pages of `docs`.
macro_rules! topics {
    ($($name:literal: $page:literal;)*) => {
        /// The name of each topic, and its page in Markdown.
        const TOPICS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../docs/", $page))),)*
        ];
        /// The page of each topic, relative to `docs`.
        #[cfg(test)]
        const PAGES: &[&str] = &[$($page,)*];
    };
}

topics! {
    "trace-a-program": "guide/trace-a-program.md";
    "what-ran": "guide/what-ran.md";
    "languages": "guide/languages.md";
    "coverage": "guide/coverage.md";
    "where-time-goes": "guide/where-time-goes.md";
    "what-happened": "guide/what-happened.md";
    "compare-runs": "guide/compare-runs.md";
    "optimise": "guide/optimise.md";
    "trace-a-kernel": "guide/trace-a-kernel.md";
    "record-and-replay": "guide/record-and-replay.md";
    "debug-a-recording": "guide/debug-a-recording.md";
    "other-debuggers": "guide/other-debuggers.md";
    "record-a-machine": "guide/record-a-machine.md";
    "test-a-kernel": "guide/test-a-kernel.md";
    "run-debian": "guide/run-debian.md";
    "perf-and-gdb": "guide/perf-and-gdb.md";
    "ci": "guide/ci.md";
    "processor": "processor.md";
    "programs": "programs.md";
    "performance": "performance.md";
    "compatibility": "compatibility.md";
    "security": "security.md";
    "trace-format": "trace-format.md";
}

/// The commands whose help can be asked for.
const COMMANDS: [&str; 12] = [
    "trace",
    "report",
    "stat",
    "record",
    "replay",
    "debug",
    "test",
    "run",
    "probe",
    "setup",
    "completions",
    "help",
];

/// Arguments of `vbts help`.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// The command or the topic (default: the help of vbts, and the names of the topics)
    #[arg(value_name = "TOPIC", value_parser = parser())]
    pub topic: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The text cannot be written.
pub(crate) fn main(args: &HelpArgs) -> Result<u8, Failure> {
    match args.topic.as_deref() {
        None => {
            show(&["vbts", "--help"]);
            super::print(format!("\nTopics of vbts help:\n{}", list()).as_bytes())
        }
        Some(name) => match TOPICS.iter().find(|(topic, _)| *topic == name) {
            Some((_, page)) => super::print(page.as_bytes()),
            None => {
                if let Some(text) = usage::whole(name) {
                    usage::show(&text);
                }
                Ok(0)
            }
        },
    }
}

/// Accepts a command or a topic.
fn parser() -> PossibleValuesParser {
    let commands = COMMANDS.map(PossibleValue::new);
    let topic = |&(name, page)| PossibleValue::new(name).help(title(page));
    PossibleValuesParser::new(commands.into_iter().chain(TOPICS.iter().map(topic)))
}

/// Prints the help for which the command line `words` asks.
fn show(words: &[&str]) {
    if let Err(help) = Cli::try_parse_from(words) {
        let _ = help.print();
    }
}

/// A line for each topic.
fn list() -> String {
    let line = |(name, page)| format!("  {name:<17} {}\n", title(page));
    TOPICS.iter().copied().map(line).collect()
}

/// The heading of a page.
fn title(page: &str) -> &str {
    page.lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("# ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::CommandFactory as _;

    #[test]
    fn each_visible_command_has_help() {
        let cli = Cli::command();
        let visible = cli
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let names: BTreeSet<&str> = visible.map(clap::Command::get_name).collect();
        assert_eq!(names, COMMANDS.into());
    }

    #[test]
    fn each_page_of_the_guide_is_a_topic() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
        let mut pages: BTreeSet<String> = PAGES.iter().map(|page| (*page).into()).collect();
        for entry in std::fs::read_dir(guide).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && name != "README.md" {
                let page = format!("guide/{name}");
                assert!(pages.remove(&page), "{page}");
            }
        }
        assert!(
            pages.iter().all(|page| !page.starts_with("guide/")),
            "{pages:?}"
        );
    }

    #[test]
    fn a_topic_has_the_name_of_its_page_and_a_title() {
        for ((name, text), page) in TOPICS.iter().zip(PAGES) {
            assert_eq!(Path::new(page).file_stem().unwrap(), *name);
            assert!(text.starts_with("# "), "{page}");
        }
    }
}
