//! The states in which a processor starts: RESET, INIT, and the start-up IPI (SDM Vol. 3A 9.1.1
//! and table 9-1, 8.4).

use super::Model;
use crate::state::descriptor::system;
use crate::state::xsave::component;
use crate::state::{
    Activity, ArchState, MsrState, PmuState, Progress, SegAttr, Segment, SystemState,
    TableRegister, X87State, cr0, dr6, dr7, gpr, rflags, sreg,
};

/// Where a processor without a start-up IPI begins: the last 16 bytes below 4 GBytes.
const RESET_CS: Segment = Segment {
    selector: 0xF000,
    base: 0xFFFF_0000,
    ..DATA
};
const RESET_IP: u64 = 0xFFF0;

/// A segment register in real-address mode: 64 KBytes that can be read and written, in CS too.
const DATA: Segment = Segment {
    selector: 0,
    base: 0,
    limit: 0xFFFF,
    attr: SegAttr::P
        .union(SegAttr::S)
        .union(SegAttr::RW)
        .union(SegAttr::ACCESSED),
};

/// LDTR and TR after RESET: of the right type, with base 0 and limit FFFFH.
const fn system_segment(ty: u8) -> Segment {
    Segment {
        attr: SegAttr::P.union(SegAttr::from_bits_retain(ty as u32)),
        ..DATA
    }
}

const TABLE: TableRegister = TableRegister {
    base: 0,
    limit: 0xFFFF,
};

impl ArchState {
    /// After RESET, without a built-in self-test, on the bootstrap processor. The others wait for a
    /// start-up IPI.
    #[must_use]
    pub fn after_reset(model: &Model) -> Self {
        let before = Self {
            sys: SystemState {
                cr0: cr0::CD | cr0::NW,
                xcr0: component::X87,
                ..SystemState::default()
            },
            x87: X87State {
                fcw: 0x40,
                // Every register holds +0.0.
                ftw: 0xFF,
                ..X87State::default()
            },
            mxcsr: 0x1F80,
            msr: MsrState {
                pmu: PmuState::after_reset(model),
                ..MsrState::default()
            },
            ..Self::default()
        };
        Self {
            activity: Activity::Active,
            ..before.after_init(model)
        }
    }

    /// After an INIT in this state: the caches (CR0.CD and NW), XCR0, the x87, SSE and AVX
    /// registers, the
    /// time-stamp counter and most MSRs, the performance counters' among them, keep what they hold.
    /// The processor waits for a start-up IPI then. The local APIC, which has state of its own, is
    /// not part of this.
    #[must_use]
    pub fn after_init(&self, model: &Model) -> Self {
        let mut seg = [DATA; 6];
        seg[sreg::CS] = RESET_CS;
        let mut state = Self {
            rip: RESET_IP,
            rflags: rflags::FIXED,
            seg,
            sys: SystemState {
                ldtr: system_segment(system::LDT),
                tr: system_segment(system::TSS_BUSY),
                gdtr: TABLE,
                idtr: TABLE,
                cr0: cr0::ET | self.sys.cr0 & (cr0::CD | cr0::NW),
                dr6: dr6::FIXED,
                dr7: dr7::FIXED,
                xcr0: self.sys.xcr0,
                ..SystemState::default()
            },
            msr: self.msr.clone(),
            // Vol. 3B 17.4.9: tracing and its buffer are off.
            debugctl: 0,
            ds_area: 0,
            x87: self.x87,
            xmm: self.xmm,
            ymm_high: self.ymm_high,
            mxcsr: self.mxcsr,
            tsc: self.tsc,
            activity: Activity::WaitForSipi,
            progress: Progress {
                spins: false,
                ..self.progress.clone()
            },
            ..Self::default()
        };
        // Family, model and stepping, as CPUID returns them.
        state.gpr[gpr::RDX] = model.cpuid(1, 0).eax.into();
        state
    }

    /// Applies a start-up IPI to a processor that waits for it after INIT. The processor begins at
    /// page `vector` (SDM Vol. 3A 8.4.3).
    pub fn start_up(&mut self, vector: u8) {
        let cs = &mut self.seg[sreg::CS];
        cs.selector = u16::from(vector) << 8;
        cs.base = u64::from(vector) << 12;
        self.rip = 0;
        self.activity = Activity::Active;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    fn core2() -> &'static Model {
        model("core2").unwrap()
    }

    #[test]
    fn reset_leads_to_the_reset_vector() {
        let s = ArchState::after_reset(core2());
        assert_eq!(s.sys.cr0, 0x6000_0010);
        assert_eq!((s.sys.cr3, s.sys.cr4, s.sys.efer), (0, 0, 0));
        assert_eq!(s.seg[1].base + s.rip, 0xFFFF_FFF0);
        assert_eq!((s.rflags, s.sys.dr6, s.sys.dr7), (2, 0xFFFF_0FF0, 0x400));
        assert_eq!((s.sys.idtr.base, s.sys.idtr.limit), (0, 0xFFFF));
        assert_eq!(s.gpr[gpr::RDX], 0x6FB);
        assert_eq!((s.x87.fcw, s.x87.ftw, s.mxcsr), (0x40, 0xFF, 0x1F80));
        assert_eq!(s.sys.xcr0, 1);
    }

    #[test]
    fn init_keeps_what_belongs_to_programs_and_caches() {
        let mut before = ArchState::after_reset(core2());
        before.sys.cr0 = cr0::PE | cr0::PG | cr0::NE;
        before.sys.efer = 0xD01;
        before.sys.cr3 = 0x1000;
        before.gpr = [7; 16];
        before.xmm[3] = 5;
        before.ymm_high[3] = 6;
        before.sys.xcr0 = 7;
        before.x87.fcw = 0x37F;
        before.tsc = 99;
        before.msr.lstar = 0x1234;
        before.debugctl = 0xC0;
        before.ds_area = 0x9000;
        before.activity = Activity::Halted;
        before.nmi_blocked = true;
        let s = before.after_init(core2());
        assert_eq!((s.sys.cr0, s.sys.efer, s.sys.cr3), (cr0::ET, 0, 0));
        assert_eq!((s.xmm[3], s.ymm_high[3], s.sys.xcr0), (5, 6, 7));
        assert_eq!((s.x87.fcw, s.tsc), (0x37F, 99));
        assert_eq!((s.msr.lstar, s.debugctl, s.ds_area), (0x1234, 0, 0));
        assert_eq!((s.activity, s.nmi_blocked), (Activity::WaitForSipi, false));
        assert_eq!(s.gpr.iter().sum::<u64>(), 0x6FB);
    }

    #[test]
    fn a_start_up_ipi_names_a_page() {
        let mut s = ArchState::after_reset(core2());
        s.start_up(0x9A);
        let cs = s.seg[1];
        assert_eq!((cs.selector, cs.base, cs.limit), (0x9A00, 0x9_A000, 0xFFFF));
        assert_eq!(s.rip, 0);
    }
}
