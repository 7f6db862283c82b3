//! `vbts completions`: prints the script with which a shell completes the command line.

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use vbts_host::exit::Failure;

/// Arguments of `vbts completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// The script cannot be written.
pub(crate) fn main(args: &CompletionsArgs) -> Result<u8, Failure> {
    super::print(&script(args.shell))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&Cli::command()), "vbts", &mut script);
    script
}

/// `command` without its hidden options and commands, which the library would complete, too.
fn visible(command: &Command) -> Command {
    let options = command
        .get_arguments()
        .filter(|option| !option.is_hide_set());
    let commands = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    Command::new(command.get_name().to_owned())
        .version(command.get_version().unwrap_or_default().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .args(options.cloned())
        .subcommands(commands.map(visible))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn scripts_have_what_is_visible() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for command in Cli::command().get_subcommands() {
                let options = command.get_arguments();
                let hidden = options.filter(|option| option.is_hide_set());
                for name in hidden.filter_map(|option| option.get_long()) {
                    assert!(!script.contains(&format!("{name} ")), "{shell}: {name}");
                }
            }
            assert!(!script.contains(vbts_symbols::COMMAND), "{shell}");
            if matches!(shell, Shell::Bash | Shell::Zsh) {
                assert!(script.contains("trace-format"), "{shell} has the topics");
            }
            for word in ["case-timeout", "record-scope", "until-signal"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
