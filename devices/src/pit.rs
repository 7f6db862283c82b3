//! The 8254 programmable interval timer and its system control port 0x61.
//!
//! Channel 0 drives IRQ 0, channel 2 the speaker gate; channel 1 (memory refresh) only counts.

mod channel;

use serde::{Deserialize, Serialize};

use crate::bus::ByteDevice;
use crate::irqchip::IrqLine;
use crate::state::check;
use crate::{Effects, StateError};
use channel::Channel;

const DEVICE: &str = "the 8254";

/// Input clock in Hz: a twelfth of the 14.31818 MHz oscillator.
pub const PIT_HZ: u64 = 1_193_182;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Input clocks since reset at `now` ns.
fn clocks(now: u64) -> u64 {
    (u128::from(now) * u128::from(PIT_HZ) / NS_PER_SECOND) as u64
}

/// The first ns at which [`clocks`] is `clock`.
fn time_of(clock: u64) -> u64 {
    (u128::from(clock) * NS_PER_SECOND)
        .div_ceil(u128::from(PIT_HZ))
        .try_into()
        .unwrap_or(u64::MAX)
}

const PORT_CONTROL: u64 = 3;

/// State of the timer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PitState {
    channels: [Channel; 3],
    speaker: bool,
    /// The input clock up to which the edges of channel 0 have been delivered.
    seen: u64,
}

/// Ports 0x40 to 0x43.
#[derive(Debug)]
pub struct Pit {
    state: PitState,
    irq: IrqLine,
}

impl Pit {
    /// A timer that counts nothing yet. `irq` is IRQ 0.
    pub fn new(irq: IrqLine) -> Self {
        let channels = [Channel::new(true), Channel::new(true), Channel::new(false)];
        Self {
            state: PitState {
                channels,
                speaker: false,
                seen: 0,
            },
            irq,
        }
    }

    /// The state of the timer.
    pub fn state(&self) -> PitState {
        self.state.clone()
    }

    /// Puts the timer into `state`.
    ///
    /// # Errors
    /// The timer never has such a state.
    pub fn restore(&mut self, state: &PitState) -> Result<(), StateError> {
        state.channels.iter().try_for_each(Channel::check)?;
        for channel in &state.channels[..2] {
            // The gates of channels 0 and 1 are wired to a high level.
            check(DEVICE, "gate", channel.gate, channel.gate)?;
        }
        self.state = state.clone();
        // The line is low between two edges.
        self.irq.restore(false);
        Ok(())
    }

    /// When [`tick`](Self::tick) has to be called next, in ns: the next rising edge of channel 0.
    pub fn next_deadline(&self) -> Option<u64> {
        self.state.channels[0]
            .next_rise(self.state.seen)
            .map(time_of)
    }

    /// Delivers the IRQ 0 edge that is due at `now`. Several edges that were missed are one.
    pub fn tick(&mut self, now: u64) -> Effects {
        let clock = clocks(now);
        let rise = self.state.channels[0].next_rise(self.state.seen);
        self.state.seen = self.state.seen.max(clock);
        match rise {
            Some(at) if at <= clock => self.irq.pulse(),
            _ => Effects::empty(),
        }
    }

    fn write_control(&mut self, clock: u64, value: u8) {
        let select = value >> 6;
        if let Some(channel) = self.state.channels.get_mut(usize::from(select)) {
            if value >> 4 & 3 == 0 {
                channel.latch_count(clock);
            } else {
                channel.set_control(value);
            }
            return;
        }
        for (i, channel) in self.state.channels.iter_mut().enumerate() {
            if value & 2 << i != 0 {
                if value & 0x20 == 0 {
                    channel.latch_count(clock);
                }
                if value & 0x10 == 0 {
                    channel.latch_status(clock);
                }
            }
        }
    }

    /// Reads system control port B (0x61): gate and speaker bits, refresh toggle, OUT of channel 2.
    pub fn read_port61(&self, now: u64) -> u8 {
        // The refresh request toggles every 15.085 us (18 clocks).
        let clock = clocks(now);
        let refresh = (clock / 18) & 1;
        u8::from(self.state.channels[2].gate)
            | u8::from(self.state.speaker) << 1
            | (refresh as u8) << 4
            | u8::from(self.state.channels[2].out(clock)) << 5
    }

    /// Writes system control port B: bit 0 is the gate of channel 2, bit 1 the speaker.
    pub fn write_port61(&mut self, now: u64, value: u8) {
        self.state.channels[2].set_gate(clocks(now), value & 1 != 0);
        self.state.speaker = value & 2 != 0;
    }
}

impl ByteDevice for Pit {
    fn read_byte(&mut self, now: u64, offset: u64) -> (u8, Effects) {
        let effects = self.tick(now);
        let channel = usize::try_from(offset)
            .ok()
            .and_then(|i| self.state.channels.get_mut(i));
        // The control word register cannot be read.
        (channel.map_or(0xFF, |c| c.read(clocks(now))), effects)
    }

    fn write_byte(&mut self, now: u64, offset: u64, value: u8) -> Effects {
        let effects = self.tick(now);
        let clock = clocks(now);
        if offset == PORT_CONTROL {
            self.write_control(clock, value);
        } else if let Some(c) = usize::try_from(offset)
            .ok()
            .and_then(|i| self.state.channels.get_mut(i))
        {
            c.write(clock, value);
        }
        effects
    }
}

/// Port 0x61 on the port bus, next to its [`Pit`] at 0x40.
#[derive(Debug)]
pub struct SystemControlPort(crate::Shared<Pit>);

impl SystemControlPort {
    /// The port that belongs to `pit`.
    pub fn new(pit: crate::Shared<Pit>) -> Self {
        Self(pit)
    }
}

impl ByteDevice for SystemControlPort {
    fn read_byte(&mut self, now: u64, _offset: u64) -> (u8, Effects) {
        (crate::lock(&self.0).read_port61(now), Effects::empty())
    }

    fn write_byte(&mut self, now: u64, _offset: u64, value: u8) -> Effects {
        crate::lock(&self.0).write_port61(now, value);
        Effects::empty()
    }
}

#[cfg(test)]
mod tests;
