//! Compares the manual pages in `docs` with the command line.

use std::collections::BTreeSet;

use clap::CommandFactory as _;

use super::Cli;

/// The page of what the commands have in common.
const COMMON: &str = include_str!("../docs/vbts.1");
/// A visible command and its page.
const PAGES: [(&str, &str); 10] = [
    ("debug", include_str!("../docs/vbts-debug.1")),
    ("probe", include_str!("../docs/vbts-probe.1")),
    ("record", include_str!("../docs/vbts-record.1")),
    ("replay", include_str!("../docs/vbts-replay.1")),
    ("report", include_str!("../docs/vbts-report.1")),
    ("run", include_str!("../docs/vbts-run.1")),
    ("setup", include_str!("../docs/vbts-setup.1")),
    ("stat", include_str!("../docs/vbts-stat.1")),
    ("test", include_str!("../docs/vbts-test.1")),
    ("trace", include_str!("../docs/vbts-trace.1")),
];
/// Visible commands without options, which the common page describes.
const SMALL: [&str; 2] = ["completions", "help"];

/// The text of a line of roff, without its fonts.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let (macro_name, arguments) = line.split_once(' ').unwrap_or((line, ""));
    let mut quoted = false;
    let mut rest = arguments.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => quoted = !quoted,
            // The macros for two fonts join their arguments.
            ' ' if !quoted && macro_name.len() == 3 => {}
            '\\' => match rest.next() {
                Some('f') => drop(rest.next()),
                escaped => text.extend(escaped),
            },
            c => text.push(c),
        }
    }
    text
}

/// The forms that the head of an option's description may have: with the name of its value, or with
/// all values.
fn heads(option: &clap::Arg) -> Vec<String> {
    let name = format!("--{}", option.get_long().unwrap_or_default());
    if !option.get_action().takes_values() {
        return vec![name];
    }
    let values = option.get_possible_values();
    let values: Vec<&str> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(clap::builder::PossibleValue::get_name)
        .collect();
    let value_name = match option.get_value_names() {
        Some([value_name, ..]) => value_name.to_string(),
        _ => option.get_id().as_str().to_uppercase(),
    };
    let more = option
        .get_num_args()
        .is_some_and(|args| args.max_values() > 1);
    let several = if more { "..." } else { "" };
    vec![
        format!("{name} {value_name}{several}"),
        format!("{name} {}", values.join("|")),
    ]
}

#[test]
fn the_page_on_compatibility_has_the_version_of_traces() {
    const PAGE: &str = include_str!("../docs/compatibility.md");
    let mut writer = vbts_trace::Writer::new(Vec::new(), &vbts_trace::Run::default())
        .expect("memory for a trace");
    // It is behind eight bytes.
    let bytes = writer.output().get(8..12).and_then(<[u8]>::first_chunk);
    let version = u32::from_le_bytes(*bytes.expect("a header"));
    assert!(PAGE.contains(&format!("A file has a version, {version} now.")));
}

/// The README, with one space between words; `None` in the crate's package, which does not have it.
fn readme() -> Option<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn the_readme_has_the_address_of_releases_and_the_version() {
    let Some(readme) = readme() else { return };
    let address = concat!(
        env!("CARGO_PKG_REPOSITORY"),
        "/releases/latest/download/install.sh"
    );
    assert!(readme.contains(address));
    let package = concat!("./vbts_", env!("CARGO_PKG_VERSION"), "_amd64.deb");
    assert!(readme.contains(package));
}

#[test]
fn the_readme_has_the_figures_of_the_page_on_performance() {
    const PAGE: &str = include_str!("../docs/performance.md");
    let Some(readme) = readme() else { return };
    // The first table has the time divided by that of the host.
    let row = |name: &str| -> [f64; 6] {
        let of = |line: &&str| {
            line.starts_with("| ")
                && line
                    .split(" | ")
                    .next()
                    .is_some_and(|first| first.trim_start_matches("| ").trim() == name)
        };
        let line = PAGE
            .lines()
            .filter(of)
            .find(|line| line.matches('|').count() == 8);
        let cells = line.expect("a row").split('|').skip(2).take(6);
        let values: Vec<f64> = cells
            .map(|cell| cell.split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        values.try_into().unwrap()
    };
    let [hot, gzip, python, calls, switches, compiler] = row("vbts, kept as btrace");
    let others = [hot, gzip, calls, switches];
    let least = others.into_iter().fold(f64::INFINITY, f64::min);
    let most = others.into_iter().fold(0.0, f64::max);
    let kept = format!(
        "takes {least:.0} to {most:.0} times as long as on the host if it is a hot loop, gzip or \
         system calls, {python:.0} times if it is a Python script, and {compiler:.0} times"
    );
    assert!(readme.contains(&kept), "{kept}");
    let untraced = row("vbts, untraced");
    let least = untraced.into_iter().fold(f64::INFINITY, f64::min);
    let most = untraced.into_iter().fold(0.0, f64::max);
    let untraced = format!("Without a trace it is {least:.0} to {most:.0} times.");
    assert!(readme.contains(&untraced), "{untraced}");
}

#[test]
fn the_head_of_each_description_is_that_of_the_option() {
    let cli = Cli::command();
    let mut stale = Vec::new();
    for (name, page) in PAGES.into_iter().chain([("trace", COMMON)]) {
        let mut command = cli.find_subcommand(name).expect("a command").clone();
        command.build();
        for tag in page.lines().zip(page.lines().skip(1)) {
            let (".TP", tag) = tag else { continue };
            let tag = plain(tag);
            let Some(long) = tag.strip_prefix("--") else {
                continue;
            };
            let long = long.split_whitespace().next().unwrap_or_default();
            // Some stand before the command.
            let all = command.get_arguments().chain(cli.get_arguments());
            let option = all.into_iter().find(|arg| arg.get_long() == Some(long));
            let heads = option.map(heads).unwrap_or_default();
            if !heads.contains(&tag) {
                stale.push(format!(
                    "vbts {name}: \"{tag}\", which is now one of {heads:?}"
                ));
            }
        }
    }
    assert!(stale.is_empty(), "the manual pages are stale: {stale:#?}");
}

/// The long options that a page describes: those in the line after each `.TP`.
fn described(page: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line != ".TP" {
            continue;
        }
        let tag = lines.next().unwrap_or_default().replace("\\-", "-");
        for word in tag.split_whitespace() {
            if let Some(name) = word.trim_matches('"').strip_prefix("--") {
                let new = options.insert(name.to_owned());
                assert!(new, "--{name} is described twice on one page");
            }
        }
    }
    options
}

/// The visible long options of a command, except `--help` and `--version`.
fn options(command: &clap::Command) -> BTreeSet<String> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| argument.get_long())
        .filter(|name| !["help", "version"].contains(name))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_visible_command_has_a_page() {
    let cli = Cli::command();
    let commands: BTreeSet<&str> = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(clap::Command::get_name)
        .collect();
    let described: BTreeSet<&str> = PAGES
        .map(|(name, _)| name)
        .into_iter()
        .chain(SMALL)
        .collect();
    assert_eq!(commands, described);
    for name in SMALL {
        assert!(
            COMMON.contains(&format!("\n.BI \"vbts {name}")),
            "vbts.1 does not describe vbts {name}"
        );
        let command = cli.find_subcommand(name).expect("a command of vbts.1");
        assert_eq!(options(command), BTreeSet::new(), "vbts {name}");
    }
}

#[test]
fn pages_have_the_version_of_the_program() {
    let version = concat!("\"vbts ", env!("CARGO_PKG_VERSION"), "\"");
    let library = include_str!("../man/ptrace_bts.2");
    for page in PAGES
        .map(|(_, page)| page)
        .into_iter()
        .chain([COMMON, library])
    {
        let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(title.contains(version), "{title}");
    }
}

#[test]
fn the_values_of_each_option_are_described() {
    let cli = Cli::command();
    let report = include_str!("../docs/vbts-report.1");
    for (name, page) in PAGES {
        // That page has the answers of `--report`, too.
        let has_reports = ["trace", "replay"].contains(&name);
        let text = format!("{COMMON}{page}{}", if has_reports { report } else { "" });
        let text = text.replace("\\-", "-");
        let words: BTreeSet<&str> = text.split(|c: char| !is_of_word(c)).collect();
        let command = cli.find_subcommand(name).expect("the page of a command");
        for option in command
            .get_arguments()
            .filter(|option| !option.is_hide_set())
        {
            for value in option.get_possible_values() {
                let takes_value = option.get_action().takes_values() && !value.is_hide_set();
                assert!(
                    !takes_value || words.contains(value.get_name()),
                    "vbts {name}, {}: {} is not described",
                    option.get_id(),
                    value.get_name()
                );
            }
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._".contains(c)
}

#[test]
fn each_option_is_described_on_one_page() {
    let cli = Cli::command();
    let mut common = described(COMMON);
    for name in ["help", "version", "no-pager"] {
        assert!(common.remove(name), "vbts.1 does not describe --{name}");
    }
    for (name, page) in PAGES {
        let command = cli.find_subcommand(name).expect("the page of a command");
        let mut all = described(page);
        // These start no guest, so they have no machine options.
        if !["probe", "report", "setup"].contains(&name) {
            let both: Vec<_> = all.intersection(&common).collect();
            assert!(
                both.is_empty(),
                "vbts.1 and vbts-{name}.1 describe {both:?}"
            );
            let own = options(command);
            // A replay has those that do not change the guest.
            let is_replay = ["replay", "debug"].contains(&name);
            let has = |option: &&String| !is_replay || own.contains(*option);
            all.extend(common.iter().filter(has).cloned());
        }
        assert_eq!(options(command), all, "vbts {name} and its pages");
    }
}
