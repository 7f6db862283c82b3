//! The host: its files, terminals, signals and timers.

pub mod alarm;
pub mod child;
pub mod descriptors;
pub mod event_loop;
pub mod file_at;
pub mod input;
pub mod output;
pub mod process_group;
pub mod terminal;
pub mod unit;
mod watchdog;
pub mod whole_file;
pub mod workers;
pub mod write_monitor;

pub use alarm::{Alarm, Event, HeldSignals};
pub use event_loop::{EventLoop, Waker};
pub use file_at::FileAt;
pub use input::Input;
pub use output::{Output, OutputError};
pub use terminal::RawTerminal;
pub use unit::Unit;
pub use workers::Workers;
pub use write_monitor::{WriteMonitor, WriteTimeout};
