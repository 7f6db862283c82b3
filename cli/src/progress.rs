//! Progress of long work, on standard error.

use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(250);

/// Shows progress as `template` says, if standard error is a terminal and the output that is
/// `elsewhere` does not go there. A template with a spinner moves by itself.
pub(crate) fn progress(template: &str, elsewhere: bool) -> ProgressBar {
    if !elsewhere || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    if template.contains("{spinner}") {
        bar.enable_steady_tick(TICK);
    }
    bar
}
