//! Behaviour in which processors differ, as data. The software CPU models one of Intel's. Where
//! Intel's processors differ from a host of another vendor, that host's outcome is not compared.
//! Behaviour that the manual leaves to the processor is not compared on any host.

use std::arch::x86_64::__cpuid;

use anyhow::{Result, bail};

/// Who made a processor (CPUID.0: EBX, EDX, ECX).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// "GenuineIntel".
    Intel,
    /// "AuthenticAMD".
    Amd,
}

impl Vendor {
    /// The vendor of the host's processor.
    ///
    /// # Errors
    /// If the table has no column for it.
    pub fn host() -> Result<Self> {
        let id = __cpuid(0);
        match [id.ebx, id.edx, id.ecx]
            .map(u32::to_le_bytes)
            .as_flattened()
        {
            b"GenuineIntel" => Ok(Self::Intel),
            b"AuthenticAMD" => Ok(Self::Amd),
            other => bail!(
                "no table of differences for a processor of '{}'",
                String::from_utf8_lossy(other)
            ),
        }
    }

    /// Whether a processor of this vendor may do something else than the software CPU.
    #[must_use]
    pub fn may_differ(self, behaviour: Behaviour) -> bool {
        DIFFERENCES
            .iter()
            .any(|d| d.behaviour == behaviour && d.vendors.contains(&self))
    }
}

/// Something that processors do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Flags after a fault or trap in the middle of REP CMPS or SCAS.
    FlagsInsideRepeat,
    /// Which operand's fault CMPS raises if both fault.
    CmpsOrder,
    /// Whether BOUND loads the upper bound if the index is below the lower one.
    BoundOrder,
    /// Upper halves of RCX, RSI and RDI after a repeated string instruction with 32-bit addressing
    /// that completes no iteration.
    UpperHalvesOfRepeat,
    /// Upper half of the stack slot when a 32-bit PUSH stores a segment register.
    PushSegment,
    /// Whether an x87 store that an unmasked exception cancels accesses memory.
    CancelledStore,
    /// Bytes that a store of ten bytes leaves in its first page if it faults in the second.
    PartialStore,
    /// TOP after an MMX store that faults.
    FaultingMmxStore,
    /// x87 registers after a conversion to or from MMX that raises #XM.
    FaultingMmxConversion,
    /// Whether a result that an unmasked overflow or underflow suppresses counts as inexact.
    SuppressedInexact,
    /// Accesses across the limit of a segment of 4 GBytes, and which fault they raise if something
    /// else forbids them, too.
    LimitOf4GBytes,
    /// Near branches with an operand-size prefix, in 64-bit mode.
    NarrowBranch,
    /// LOOPE and LOOPNE with a repeat prefix.
    RepeatedLoop,
    /// PAUSE with REX.B.
    PauseR8,
    /// MOVSXD with a 16-bit operand size.
    Movsxd16,
    /// Which bits of MXCSR exist.
    MisalignedMode,
    /// MOV to and from a control register with LOCK.
    LockMovCr,
    /// VERW of a selector in memory with LOCK.
    LockVerw,
    /// Whether a CALL whose target is not canonical has stored the return address.
    FaultingCall,
    /// Whether a reserved opcode with operands that would make it longer than 15 bytes is that
    /// first, or undefined.
    LengthOfReserved,
    /// What a gather that faults leaves of its mask and of its destination.
    FaultingGather,
    /// Which address a VMASKMOV that faults reports.
    MaskedAddress,
    /// Addresses of a VMASKMOV across the end of 64 KBytes with 16-bit addressing, or of 4 GBytes
    /// with 32-bit addressing in 64-bit mode.
    WrappedMaskedMove,
    /// Whether the SHA instructions check the alignment of their operand in memory.
    MisalignedSha,
    /// Whether a VCVTPS2PH whose store faults has set flags of MXCSR, or raised #XM instead.
    FaultingConversion,
    /// VPEXTRD and VPINSRD with VEX.W set, in 32-bit code.
    WideVexIn32Bits,
    /// VPERMQ and VPERMPD with VEX.W clear.
    NarrowPermute,
}

/// MXCSR.MM, see [`Behaviour::MisalignedMode`].
pub const MISALIGNED_MODE: u32 = 1 << 17;

/// One row of the table.
#[derive(Debug)]
pub struct Difference {
    /// What differs.
    pub behaviour: Behaviour,
    /// On which hosts it is not compared.
    pub vendors: &'static [Vendor],
    /// Where the software CPU's way, or the freedom of choice, is written. "Observed": no manual
    /// says it; the software CPU does as the vendor's processors that are not listed do.
    pub source: &'static str,
}

const AMD: &[Vendor] = &[Vendor::Amd];
const INTEL: &[Vendor] = &[Vendor::Intel];
const BOTH: &[Vendor] = &[Vendor::Intel, Vendor::Amd];

/// The table. SDM is Intel's manual, APM is AMD's.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        behaviour: Behaviour::FlagsInsideRepeat,
        vendors: AMD,
        source: "SDM Vol. 2B, REP: EFLAGS is restored to the state prior to the execution of the instruction",
    },
    Difference {
        behaviour: Behaviour::CmpsOrder,
        vendors: AMD,
        source: "observed: Intel's load ES:rDI first, AMD's the other operand",
    },
    Difference {
        behaviour: Behaviour::BoundOrder,
        vendors: AMD,
        source: "observed: Intel's do not",
    },
    Difference {
        behaviour: Behaviour::UpperHalvesOfRepeat,
        vendors: AMD,
        source: "SDM Vol. 2B, REP: a count of zero does not say; observed: Intel's clear that of RCX, MOVS and STOS also those of their pointers (as KVM's string_registers_quirk), AMD's none",
    },
    Difference {
        behaviour: Behaviour::PushSegment,
        vendors: AMD,
        source: "SDM Vol. 2B, PUSH: Core processors move 16 bits; APM Vol. 3, PUSH: zero-extended",
    },
    Difference {
        behaviour: Behaviour::CancelledStore,
        vendors: AMD,
        source: "SDM Vol. 1 8.5.1: the destination operand is unchanged; observed: AMD's check that it is writable",
    },
    Difference {
        behaviour: Behaviour::PartialStore,
        vendors: INTEL,
        source: "SDM Vol. 3A 8.1.1: accesses larger than a quadword may complete in part",
    },
    Difference {
        behaviour: Behaviour::FaultingMmxStore,
        vendors: INTEL,
        source: "SDM Vol. 1 9.5.1: TOP is 0 after an MMX instruction; observed: also after one that faulted",
    },
    Difference {
        behaviour: Behaviour::FaultingMmxConversion,
        vendors: BOTH,
        source: "SDM Vol. 1 11.5.2 does not order the transition to MMX and #XM",
    },
    Difference {
        behaviour: Behaviour::SuppressedInexact,
        vendors: BOTH,
        source: "SDM Vol. 1 11.5.2.4 and 11.5.2.5 do not say",
    },
    Difference {
        behaviour: Behaviour::LimitOf4GBytes,
        vendors: BOTH,
        source: "SDM Vol. 3A 5.3: with a limit of FFFFFFFFH, whether accesses across it fault is implementation-specific",
    },
    Difference {
        behaviour: Behaviour::NarrowBranch,
        vendors: AMD,
        source: "SDM Vol. 2A, JMP and 2.2.1.7: near branches have 64 bits; APM Vol. 3, JMP: the prefix truncates RIP",
    },
    Difference {
        behaviour: Behaviour::RepeatedLoop,
        vendors: AMD,
        source: "SDM Vol. 2A 2.1.1: reserved; observed: Intel's ignore the prefix",
    },
    Difference {
        behaviour: Behaviour::PauseR8,
        vendors: AMD,
        source: "SDM Vol. 2B, PAUSE and XCHG; observed: XCHG on Intel's",
    },
    Difference {
        behaviour: Behaviour::Movsxd16,
        vendors: AMD,
        source: "SDM Vol. 2B, MOVSXD: 16 bits are read; APM Vol. 3, MOVSXD: 32 bits",
    },
    Difference {
        behaviour: Behaviour::MisalignedMode,
        vendors: AMD,
        source: "SDM Vol. 1 10.2.3: bit 17 is reserved; APM Vol. 1 4.2.2: MM",
    },
    Difference {
        behaviour: Behaviour::LockMovCr,
        vendors: AMD,
        source: "SDM Vol. 2A, LOCK: #UD; APM Vol. 3, MOV CRn: CR8",
    },
    Difference {
        behaviour: Behaviour::LockVerw,
        vendors: AMD,
        source: "SDM Vol. 2A, LOCK: #UD with an instruction that is not in its list; observed: AMD's with a microcode VERW of memory ignore the prefix",
    },
    Difference {
        behaviour: Behaviour::FaultingCall,
        vendors: BOTH,
        source: "SDM Vol. 2A, CALL: the target is checked before the push; observed: Intel's store, and leave RSP",
    },
    Difference {
        behaviour: Behaviour::LengthOfReserved,
        vendors: BOTH,
        source: "SDM Vol. 3A table 6-2: one class; a reserved opcode has no length; observed: Intel's decode its operands",
    },
    Difference {
        behaviour: Behaviour::FaultingGather,
        vendors: AMD,
        source: "SDM Vol. 2C, VGATHERDPS: the signs fill the mask first; observed: not on AMD's",
    },
    Difference {
        behaviour: Behaviour::MaskedAddress,
        vendors: INTEL,
        source: "SDM Vol. 2C, VMASKMOV does not say; observed: Intel's report the last byte of an element",
    },
    Difference {
        behaviour: Behaviour::WrappedMaskedMove,
        vendors: AMD,
        source: "SDM Vol. 2C, VMASKMOV does not say; observed: AMD's wrap the address of each element around; the software CPU wraps that of the operand, as of any other",
    },
    Difference {
        behaviour: Behaviour::MisalignedSha,
        vendors: AMD,
        source: "SDM Vol. 2B, SHA1MSG1: exceptions of type 4; observed: AMD's do not check it",
    },
    Difference {
        behaviour: Behaviour::FaultingConversion,
        vendors: BOTH,
        source: "SDM Vol. 3A table 6-2: both faults are of one class; observed: Intel's convert first, AMD's check the store first; the software CPU checks the segment, converts, and then stores",
    },
    Difference {
        behaviour: Behaviour::WideVexIn32Bits,
        vendors: AMD,
        source: "SDM Vol. 2B, PEXTRD and PINSRD: VEX.W is ignored outside of 64-bit mode; observed: #UD on AMD's",
    },
    Difference {
        behaviour: Behaviour::NarrowPermute,
        vendors: AMD,
        source: "SDM Vol. 2C, VPERMQ and VPERMPD: W1, and there is no other instruction; observed: AMD's ignore VEX.W",
    },
];
