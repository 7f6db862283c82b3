//! Exceptions and interrupts (SDM Vol. 3A chapter 6).

mod delivery;
mod double_faults;
mod endless;
mod faults;
mod interrupts;
