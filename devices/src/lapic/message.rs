//! Messages between local APICs, I/O APICs and processors.

/// How a destination handles an interrupt: bits 10:8 of the ICR, an LVT entry or an I/O APIC
/// redirection entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// To every destination, with the given vector.
    Fixed,
    /// To the destination with the lowest priority, with the given vector.
    LowestPriority,
    /// System management interrupt; this machine has no SMM and ignores it.
    Smi,
    /// Non-maskable interrupt; the vector is ignored.
    Nmi,
    /// INIT.
    Init,
    /// Start-up IPI; the vector is the page number of the start address.
    StartUp,
    /// The vector comes from the 8259A.
    ExtInt,
}

impl DeliveryMode {
    /// Decodes bits 10:8; `None` for the reserved value 3.
    pub(crate) fn from_bits(low: u32) -> Option<Self> {
        Some(match low >> 8 & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            2 => Self::Smi,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::StartUp,
            7 => Self::ExtInt,
            _ => return None,
        })
    }
}

/// Which local APICs an interrupt message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The APIC with this ID; 0xFF is all of them.
    Physical(u8),
    /// The APICs whose LDR and DFR match this message destination address.
    Logical(u8),
    /// The sender.
    Oneself,
    /// All local APICs.
    All,
    /// All local APICs except the sender.
    Others,
}

/// An interrupt message on the system bus, from an ICR or from the I/O APIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The local APICs that it is for.
    pub destination: Destination,
    /// How they handle it.
    pub mode: DeliveryMode,
    /// The vector of the interrupt.
    pub vector: u8,
    /// True for a level-triggered interrupt, whose EOI is sent to the I/O APIC.
    pub level: bool,
}

/// The effect of a register write on other interrupt controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Deliver this interprocessor interrupt.
    Ipi(Message),
    /// Report to the I/O APICs that the level-triggered interrupt with this vector has been served.
    EoiBroadcast(u8),
}

/// An event by which one processor starts or stops another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartupEvent {
    /// Reset to the wait-for-SIPI state.
    Init,
    /// Start in real mode at page `vector` (address `vector << 12`).
    StartUp(u8),
}
