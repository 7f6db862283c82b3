//! The host's side: standard input, the terminal, signals and the clock on the wall.

pub mod alarm;
pub mod input;
pub mod output;
pub mod terminal;

pub use alarm::{Alarm, Event};
pub use input::Input;
pub use output::{Output, OutputError};
pub use terminal::RawTerminal;
