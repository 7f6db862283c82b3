//! The 8259A interrupt controllers: a master and a slave on its IR2, with the ELCR of the 82371.

/// The initialization command word expected next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Ocw1,
    Icw2,
    Icw3,
    Icw4,
}

/// What a read of the command port gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadSelect {
    Irr,
    Isr,
    Poll,
}

#[derive(Debug)]
struct Controller {
    /// Levels of the inputs, for edge detection.
    lines: u8,
    irr: u8,
    isr: u8,
    imr: u8,
    /// Edge/level control: a set bit makes that input level-triggered.
    elcr: u8,
    elcr_writable: u8,
    vector_base: u8,
    expect: Expect,
    needs_icw4: bool,
    single: bool,
    /// The input with the lowest priority; the one after it has the highest.
    lowest: u8,
    auto_eoi: bool,
    rotate_on_auto_eoi: bool,
    special_mask: bool,
    special_fully_nested: bool,
    read_select: ReadSelect,
}

impl Controller {
    fn new(elcr_writable: u8) -> Self {
        Self {
            lines: 0,
            irr: 0,
            isr: 0,
            // A BIOS leaves every input masked; the pair must not interrupt before it has vectors.
            imr: 0xFF,
            elcr: 0,
            elcr_writable,
            vector_base: 0,
            expect: Expect::Ocw1,
            needs_icw4: false,
            single: false,
            lowest: 7,
            auto_eoi: false,
            rotate_on_auto_eoi: false,
            special_mask: false,
            special_fully_nested: false,
            read_select: ReadSelect::Irr,
        }
    }

    fn set_line(&mut self, input: u8, level: bool) {
        let bit = 1 << input;
        let rising = level && self.lines & bit == 0;
        if level {
            self.lines |= bit
        } else {
            self.lines &= !bit
        }
        if self.elcr & bit != 0 {
            self.irr = self.irr & !bit | self.lines & bit;
        } else if rising {
            self.irr |= bit;
        }
    }

    /// The inputs from the highest priority to the lowest.
    fn by_priority(&self) -> impl Iterator<Item = u8> + use<> {
        let first = self.lowest + 1;
        (0..8).map(move |i| (first + i) & 7)
    }

    /// The request that INT announces: the highest unmasked one above everything in service.
    fn request(&self) -> Option<u8> {
        let pending = self.irr & !self.imr;
        let in_service = if self.special_mask {
            self.isr & !self.imr
        } else {
            self.isr
        };
        for input in self.by_priority() {
            let bit = 1 << input;
            let cascade = self.special_fully_nested && input == 2;
            if pending & bit != 0 && (in_service & bit == 0 || cascade) {
                return Some(input);
            }
            if in_service & bit != 0 {
                return None;
            }
        }
        None
    }

    fn acknowledge(&mut self, input: u8) {
        let bit = 1 << input;
        if self.auto_eoi {
            if self.rotate_on_auto_eoi {
                self.lowest = input;
            }
        } else {
            self.isr |= bit;
        }
        if self.elcr & bit == 0 {
            self.irr &= !bit;
        }
    }

    fn vector(&self, input: u8) -> u8 {
        self.vector_base | input
    }

    fn write_command(&mut self, value: u8) {
        if value & 0x10 != 0 {
            // ICW1 clears the mask, the edge sense and the modes.
            *self = Self {
                lines: self.lines,
                irr: self.lines & self.elcr,
                imr: 0,
                elcr: self.elcr,
                vector_base: self.vector_base,
                expect: Expect::Icw2,
                needs_icw4: value & 1 != 0,
                single: value & 2 != 0,
                ..Self::new(self.elcr_writable)
            };
        } else if value & 8 != 0 {
            // OCW3
            match value & 3 {
                2 => self.read_select = ReadSelect::Irr,
                3 => self.read_select = ReadSelect::Isr,
                _ => {}
            }
            if value & 4 != 0 {
                self.read_select = ReadSelect::Poll;
            }
            match value >> 5 & 3 {
                2 => self.special_mask = false,
                3 => self.special_mask = true,
                _ => {}
            }
        } else {
            self.write_ocw2(value);
        }
    }

    fn write_ocw2(&mut self, value: u8) {
        let level = value & 7;
        match value >> 5 {
            0 => self.rotate_on_auto_eoi = false,
            4 => self.rotate_on_auto_eoi = true,
            // Non-specific EOI, also with rotation.
            1 | 5 => {
                let top = self.by_priority().find(|input| self.isr & 1 << input != 0);
                if let Some(input) = top {
                    self.isr &= !(1 << input);
                    if value & 0x80 != 0 {
                        self.lowest = input;
                    }
                }
            }
            // Specific EOI, also with rotation.
            3 | 7 => {
                self.isr &= !(1 << level);
                if value & 0x80 != 0 {
                    self.lowest = level;
                }
            }
            6 => self.lowest = level,
            _ => {}
        }
    }

    fn write_data(&mut self, value: u8) {
        let after_icw3 = if self.needs_icw4 {
            Expect::Icw4
        } else {
            Expect::Ocw1
        };
        match self.expect {
            Expect::Ocw1 => self.imr = value,
            Expect::Icw2 => {
                self.vector_base = value & 0xF8;
                self.expect = if self.single {
                    after_icw3
                } else {
                    Expect::Icw3
                };
            }
            // The cascade is wired, not programmed.
            Expect::Icw3 => self.expect = after_icw3,
            Expect::Icw4 => {
                self.auto_eoi = value & 2 != 0;
                self.special_fully_nested = value & 0x10 != 0;
                self.expect = Expect::Ocw1;
            }
        }
    }

    fn read_command(&mut self) -> u8 {
        match self.read_select {
            ReadSelect::Irr => self.irr,
            ReadSelect::Isr => self.isr,
            ReadSelect::Poll => {
                self.read_select = ReadSelect::Irr;
                match self.request() {
                    Some(input) => {
                        self.acknowledge(input);
                        0x80 | input
                    }
                    None => 0,
                }
            }
        }
    }
}

/// Which port of the pair an access is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PicPort {
    /// 0x20
    MasterCommand,
    /// 0x21
    MasterData,
    /// 0xA0
    SlaveCommand,
    /// 0xA1
    SlaveData,
    /// 0x4D0
    MasterElcr,
    /// 0x4D1
    SlaveElcr,
}

/// The pair: inputs 0 to 15, of which 2 is the cascade.
#[derive(Debug)]
pub struct DualPic {
    master: Controller,
    slave: Controller,
}

impl DualPic {
    /// After power-up: not initialized, everything masked.
    pub fn new() -> Self {
        // IRQ 0, 1, 2, 8 and 13 are always edge-triggered.
        Self {
            master: Controller::new(0xF8),
            slave: Controller::new(0xDE),
        }
    }

    /// The slave's INT output follows its requests and is the master's IR2, whatever the edge
    /// sense.
    fn cascade(&mut self) {
        if self.slave.request().is_some() {
            self.master.irr |= 1 << 2;
        } else {
            self.master.irr &= !(1 << 2);
        }
    }

    /// Drives an input.
    pub fn set_line(&mut self, input: u8, level: bool) {
        match input {
            2 => {}
            0..8 => self.master.set_line(input, level),
            8..16 => self.slave.set_line(input - 8, level),
            _ => {}
        }
        self.cascade();
    }

    /// The level of the master's INT output, the INTR line.
    pub fn intr(&self) -> bool {
        self.master.request().is_some()
    }

    /// The interrupt-acknowledge cycle. If the request has gone away the answer is the spurious
    /// vector, that of IR7 of the controller that was asked.
    pub fn acknowledge(&mut self) -> u8 {
        let vector = match self.master.request() {
            Some(2) => {
                self.master.acknowledge(2);
                match self.slave.request() {
                    Some(input) => {
                        self.slave.acknowledge(input);
                        self.slave.vector(input)
                    }
                    None => self.slave.vector(7),
                }
            }
            Some(input) => {
                self.master.acknowledge(input);
                self.master.vector(input)
            }
            None => self.master.vector(7),
        };
        self.cascade();
        vector
    }

    /// Reads a port; polling acknowledges an interrupt.
    pub fn read(&mut self, port: PicPort) -> u8 {
        let value = match port {
            PicPort::MasterCommand => self.master.read_command(),
            PicPort::SlaveCommand => self.slave.read_command(),
            PicPort::MasterData => self.master.imr,
            PicPort::SlaveData => self.slave.imr,
            PicPort::MasterElcr => self.master.elcr,
            PicPort::SlaveElcr => self.slave.elcr,
        };
        self.cascade();
        value
    }

    /// Writes a port.
    pub fn write(&mut self, port: PicPort, value: u8) {
        match port {
            PicPort::MasterCommand => self.master.write_command(value),
            PicPort::SlaveCommand => self.slave.write_command(value),
            PicPort::MasterData => self.master.write_data(value),
            PicPort::SlaveData => self.slave.write_data(value),
            PicPort::MasterElcr => self.master.elcr = value & self.master.elcr_writable,
            PicPort::SlaveElcr => self.slave.elcr = value & self.slave.elcr_writable,
        }
        self.cascade();
    }
}

impl Default for DualPic {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
