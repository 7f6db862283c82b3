//! Converts a processor's state between [`ArchState`] and KVM's structures.

use std::sync::LazyLock;

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_STI, Msrs,
    kvm_debugregs, kvm_dtable, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs, kvm_vcpu_events,
};
use kvm_ioctls::VcpuFd;
use vbts_cpu::ArchState;
use vbts_cpu::state::msr::{IA32_EFER, IA32_FS_BASE, IA32_GS_BASE, SYSTEM_CALL_MSRS};
use vbts_cpu::state::{MsrState, PendingEvent, SegAttr, Segment, TableRegister, dr6, efer};
use vbts_cpu::state::{gpr, vector};

use super::xsave::{from_xcrs, from_xsave, to_xcrs, to_xsave};
use super::{KvmError, Named};

/// The MSRs that are part of `kvm_sregs`.
pub const SREGS_MSRS: [u32; 3] = [IA32_EFER, IA32_FS_BASE, IA32_GS_BASE];

fn to_segment(s: &Segment) -> kvm_segment {
    let has = |bit| u8::from(s.attr.contains(bit));
    kvm_segment {
        base: s.base,
        limit: s.limit,
        selector: s.selector,
        type_: s.ty(),
        present: has(SegAttr::P),
        dpl: s.dpl(),
        db: has(SegAttr::DB),
        s: has(SegAttr::S),
        l: has(SegAttr::L),
        g: has(SegAttr::G),
        avl: has(SegAttr::AVL),
        unusable: has(SegAttr::UNUSABLE),
        padding: 0,
    }
}

/// The task register. kvm_intel requires a busy TSS. kvm_amd reports every TSS as busy, and the SVM
/// that QEMU emulates uses the I/O permission bitmap only if the TSS is not busy.
fn to_task_register(s: &Segment) -> kvm_segment {
    const BUSY: u8 = 2;
    let mut tr = to_segment(s);
    if *HOST_HAS_SVM {
        tr.type_ &= !BUSY;
    }
    tr
}

/// CPUID.80000001H:ECX.SVM of the host. It is read once: each hand-over needs it, and CPUID exits
/// if the host is itself a guest.
static HOST_HAS_SVM: LazyLock<bool> =
    LazyLock::new(|| std::arch::x86_64::__cpuid(0x8000_0001).ecx & 1 << 2 != 0);

fn from_segment(s: &kvm_segment) -> Segment {
    let flags = [
        (s.present, SegAttr::P),
        (s.db, SegAttr::DB),
        (s.s, SegAttr::S),
        (s.l, SegAttr::L),
        (s.g, SegAttr::G),
        (s.avl, SegAttr::AVL),
        (s.unusable, SegAttr::UNUSABLE),
    ];
    let mut attr = SegAttr::from_bits_retain(u32::from(s.type_ & 15) | u32::from(s.dpl & 3) << 5);
    for (flag, bit) in flags {
        attr.set(bit, flag != 0);
    }
    Segment {
        selector: s.selector,
        base: s.base,
        limit: s.limit,
        attr,
    }
}

fn to_table(t: &TableRegister) -> kvm_dtable {
    kvm_dtable {
        base: t.base,
        limit: t.limit,
        ..Default::default()
    }
}

fn from_table(t: &kvm_dtable) -> TableRegister {
    TableRegister {
        base: t.base,
        limit: t.limit,
    }
}

/// The general registers, RIP and RFLAGS.
fn to_regs(s: &ArchState) -> kvm_regs {
    let r = &s.gpr;
    kvm_regs {
        rax: r[gpr::RAX],
        rbx: r[gpr::RBX],
        rcx: r[gpr::RCX],
        rdx: r[gpr::RDX],
        rsi: r[gpr::RSI],
        rdi: r[gpr::RDI],
        rsp: r[gpr::RSP],
        rbp: r[gpr::RBP],
        r8: r[8],
        r9: r[9],
        r10: r[10],
        r11: r[11],
        r12: r[12],
        r13: r[13],
        r14: r[14],
        r15: r[15],
        rip: s.rip,
        rflags: s.rflags,
    }
}

fn from_regs(r: &kvm_regs, s: &mut ArchState) {
    s.gpr = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    s.rip = r.rip;
    s.rflags = r.rflags;
}

fn to_sregs(s: &ArchState, apic_base: u64, cr8: u64) -> kvm_sregs {
    let sys = &s.sys;
    let [es, mut cs, ss, ds, fs, gs] = s.seg.map(|s| to_segment(&s));
    if sys.efer & efer::LMA == 0 {
        // Reserved outside IA-32e mode: KVM rejects it.
        cs.l = 0;
    }
    kvm_sregs {
        cs,
        ds,
        es,
        fs,
        gs,
        ss,
        tr: to_task_register(&sys.tr),
        ldt: to_segment(&sys.ldtr),
        gdt: to_table(&sys.gdtr),
        idt: to_table(&sys.idtr),
        cr0: sys.cr0,
        cr2: sys.cr2,
        cr3: sys.cr3,
        cr4: sys.cr4,
        cr8,
        efer: sys.efer,
        // CPUID reports a local APIC only if it is enabled here.
        apic_base,
        interrupt_bitmap: [0; 4],
    }
}

fn from_sregs(r: &kvm_sregs, s: &mut ArchState) {
    let old = s.seg[1];
    s.seg = [r.es, r.cs, r.ss, r.ds, r.fs, r.gs].map(|s| from_segment(&s));
    let sys = &mut s.sys;
    sys.tr = from_segment(&r.tr);
    sys.ldtr = from_segment(&r.ldt);
    sys.gdtr = from_table(&r.gdt);
    sys.idtr = from_table(&r.idt);
    (sys.cr0, sys.cr2, sys.cr3, sys.cr4) = (r.cr0, r.cr2, r.cr3, r.cr4);
    sys.efer = r.efer;
    let cs = &mut s.seg[1];
    if sys.efer & efer::LMA == 0 && (cs.selector, cs.base) == (old.selector, old.base) {
        // `to_sregs` has cleared it.
        cs.attr |= old.attr & SegAttr::L;
    }
}

fn to_events(s: &ArchState) -> kvm_vcpu_events {
    let mut events = kvm_vcpu_events {
        flags: KVM_VCPUEVENT_VALID_SHADOW | KVM_VCPUEVENT_VALID_NMI_PENDING,
        ..Default::default()
    };
    events.nmi.masked = s.nmi_blocked.into();
    if s.interrupt_shadow {
        events.interrupt.shadow = KVM_X86_SHADOW_INT_STI as u8;
    }
    match s.pending {
        Some(PendingEvent::Interrupt(vector)) => {
            events.interrupt.injected = 1;
            events.interrupt.nr = vector;
        }
        Some(PendingEvent::Nmi) => events.nmi.injected = 1,
        Some(PendingEvent::Debug(_)) => {
            events.exception.injected = 1;
            events.exception.nr = vector::DB;
        }
        Some(PendingEvent::Exception { vector, error }) => {
            events.exception.injected = 1;
            events.exception.nr = vector;
            events.exception.has_error_code = error.is_some().into();
            events.exception.error_code = error.unwrap_or(0);
        }
        None => {}
    }
    events
}

/// Ignores faults and software interrupts that KVM was about to deliver: RIP is at the instruction
/// that raises them again.
fn from_events(events: &kvm_vcpu_events, s: &mut ArchState) {
    s.nmi_blocked = events.nmi.masked != 0;
    s.interrupt_shadow = events.interrupt.shadow != 0;
    // On AMD hosts KVM does not tell STI from MOV SS.
    s.mov_ss_shadow = false;
    let exception = &events.exception;
    s.pending = if events.nmi.injected != 0 {
        Some(PendingEvent::Nmi)
    } else if events.interrupt.injected != 0 && events.interrupt.soft == 0 {
        Some(PendingEvent::Interrupt(events.interrupt.nr))
    } else if (exception.injected != 0 || exception.pending != 0) && exception.nr == vector::DB {
        // DR6 has the causes already (see `from_debugregs`).
        Some(PendingEvent::Debug(0))
    } else {
        None
    };
}

/// KVM has the causes of a pending debug exception in DR6.
fn to_debugregs(s: &ArchState) -> kvm_debugregs {
    let dr6 = match s.pending {
        Some(PendingEvent::Debug(causes)) => s.sys.dr6 & !dr6::BREAKPOINTS | causes,
        _ => s.sys.dr6,
    };
    kvm_debugregs {
        db: s.sys.dr,
        dr6,
        dr7: s.sys.dr7,
        ..Default::default()
    }
}

/// Updates `s`, which has the pending events already.
fn from_debugregs(debug: &kvm_debugregs, s: &mut ArchState) {
    s.sys.dr = debug.db;
    (s.sys.dr6, s.sys.dr7) = (debug.dr6, debug.dr7);
    if let Some(PendingEvent::Debug(causes)) = &mut s.pending {
        // The delivery of the exception clears those of an earlier one.
        *causes = debug.dr6 & dr6::BREAKPOINTS;
    }
}

fn msrs(state: &mut MsrState) -> Result<Msrs, KvmError> {
    let entries = SYSTEM_CALL_MSRS.map(|(index, field)| kvm_msr_entry {
        index,
        data: *field(state),
        ..Default::default()
    });
    Msrs::from_entries(&entries).map_err(|_| KvmError {
        what: "a list of MSRs",
        source: std::io::ErrorKind::InvalidInput.into(),
    })
}

/// Checks that all of [`SYSTEM_CALL_MSRS`] were transferred. KVM stops at the first that it
/// rejects, and returns the number of those before it.
fn all_transferred(done: usize) -> Result<(), KvmError> {
    match SYSTEM_CALL_MSRS.get(done) {
        None => Ok(()),
        Some((index, _)) => Err(KvmError {
            what: "KVM_GET_MSRS or KVM_SET_MSRS",
            source: std::io::Error::other(format!("MSR {index:#x} was rejected")),
        }),
    }
}

/// Loads XCR0 of `s` into `vcpu`, whose CPUID has XSAVE.
///
/// # Errors
/// KVM rejects it.
pub fn load_xcr0(vcpu: &VcpuFd, s: &ArchState) -> Result<(), KvmError> {
    vcpu.set_xcrs(&to_xcrs(s)).named("KVM_SET_XCRS")
}

/// Updates XCR0 of `s` with that of `vcpu`, whose CPUID has XSAVE.
///
/// # Errors
/// KVM fails.
pub fn save_xcr0(vcpu: &VcpuFd, s: &mut ArchState) -> Result<(), KvmError> {
    from_xcrs(&vcpu.get_xcrs().named("KVM_GET_XCRS")?, s);
    Ok(())
}

/// Loads the state `s` into `vcpu`, except for XCR0. `apic_base` and `cr8` are registers of its
/// local APIC.
///
/// # Errors
/// KVM rejects a part of it.
pub fn load(vcpu: &VcpuFd, s: &ArchState, apic_base: u64, cr8: u64) -> Result<(), KvmError> {
    vcpu.set_sregs(&to_sregs(s, apic_base, cr8))
        .named("KVM_SET_SREGS")?;
    vcpu.set_regs(&to_regs(s)).named("KVM_SET_REGS")?;
    // SAFETY: KVM reads only the structure. A larger area needs features that the guest does not
    // have (XFD).
    unsafe { vcpu.set_xsave(&to_xsave(s)) }.named("KVM_SET_XSAVE")?;
    vcpu.set_debug_regs(&to_debugregs(s))
        .named("KVM_SET_DEBUGREGS")?;
    let done = vcpu
        .set_msrs(&msrs(&mut s.msr.clone())?)
        .named("KVM_SET_MSRS")?;
    all_transferred(done)?;
    // Last, because pending events refer to the registers.
    vcpu.set_vcpu_events(&to_events(s))
        .named("KVM_SET_VCPU_EVENTS")
}

/// State of a vCPU that [`ArchState`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuOnly {
    /// An NMI is pending: NMIs are blocked, or another event is delivered first.
    pub nmi_pending: bool,
}

/// Updates `s` with the state of `vcpu`, which is between two instructions. State that the vCPU
/// does not have stays as it is: the time-stamp counter, HLT, and the MSRs that are not in
/// [`SYSTEM_CALL_MSRS`]. So does XCR0. Returns the state that [`ArchState`] does not have.
///
/// # Errors
/// KVM fails.
pub fn save(vcpu: &VcpuFd, s: &mut ArchState) -> Result<VcpuOnly, KvmError> {
    from_regs(&vcpu.get_regs().named("KVM_GET_REGS")?, s);
    from_sregs(&vcpu.get_sregs().named("KVM_GET_SREGS")?, s);
    from_xsave(&vcpu.get_xsave().named("KVM_GET_XSAVE")?, s);
    let debug = vcpu.get_debug_regs().named("KVM_GET_DEBUGREGS")?;
    let mut list = msrs(&mut s.msr)?;
    let done = vcpu.get_msrs(&mut list).named("KVM_GET_MSRS")?;
    all_transferred(done)?;
    for ((_, field), entry) in SYSTEM_CALL_MSRS.iter().zip(list.as_slice()) {
        *field(&mut s.msr) = entry.data;
    }
    let events = vcpu.get_vcpu_events().named("KVM_GET_VCPU_EVENTS")?;
    from_events(&events, s);
    from_debugregs(&debug, s);
    Ok(VcpuOnly {
        nmi_pending: events.nmi.pending != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state in which every field has a different value.
    fn state() -> ArchState {
        let mut s = ArchState {
            rip: 0x1234,
            rflags: 0x202,
            mxcsr: 0x1F80,
            nmi_blocked: true,
            interrupt_shadow: true,
            ..ArchState::default()
        };
        for (i, r) in s.gpr.iter_mut().enumerate() {
            *r = 0x100 + i as u64;
        }
        for (i, r) in s.seg.iter_mut().enumerate() {
            *r = Segment {
                selector: 8 * i as u16,
                base: 0x1000 * i as u64,
                limit: 0xFFFF + i as u32,
                attr: SegAttr::from_bits_retain(0xA093 | (i as u32 & 3) << 5),
            };
        }
        s.sys.gdtr = TableRegister {
            base: 0xABC000,
            limit: 0x7F,
        };
        s.sys.cr0 = 0x8005_0033;
        s.sys.cr3 = 0x9000;
        s.sys.efer = 0xD01;
        s.sys.xcr0 = 7;
        s.x87.fsw = 3 << 11;
        for (i, r) in s.x87.r.iter_mut().enumerate() {
            *r = 0x1_0000_0000_0000_0000 + i as u128;
        }
        for (i, r) in s.xmm.iter_mut().enumerate() {
            *r = u128::MAX - i as u128;
        }
        for (i, r) in s.ymm_high.iter_mut().enumerate() {
            *r = u128::MAX / 2 - i as u128;
        }
        s
    }

    #[test]
    fn every_part_survives_a_round_trip() {
        let s = state();
        let mut back = ArchState {
            x87: s.x87,
            ..ArchState::default()
        };
        back.x87.r = [0; 8];
        from_regs(&to_regs(&s), &mut back);
        from_sregs(&to_sregs(&s, 0xFEE0_0900, 0), &mut back);
        // kvm_amd reports the TSS as busy.
        back.sys.tr.attr |= s.sys.tr.attr & SegAttr::from_bits_retain(2);
        from_xsave(&to_xsave(&s), &mut back);
        from_xcrs(&to_xcrs(&s), &mut back);
        from_events(&to_events(&s), &mut back);
        assert_eq!(back, s);
    }

    #[test]
    fn pending_events_survive_a_round_trip() {
        for pending in [
            None,
            Some(PendingEvent::Interrupt(0x41)),
            Some(PendingEvent::Nmi),
            Some(PendingEvent::Debug(0)),
        ] {
            let s = ArchState {
                pending,
                ..ArchState::default()
            };
            let mut back = ArchState::default();
            from_events(&to_events(&s), &mut back);
            assert_eq!(back.pending, pending);
        }
    }

    #[test]
    fn the_causes_of_a_debug_exception_replace_those_of_an_earlier_one() {
        let mut s = ArchState {
            pending: Some(PendingEvent::Debug(dr6::BS | 2)),
            ..ArchState::default()
        };
        s.sys.dr6 = dr6::FIXED | dr6::BD | 1;
        let mut back = ArchState::default();
        from_events(&to_events(&s), &mut back);
        from_debugregs(&to_debugregs(&s), &mut back);
        assert_eq!(back.pending, Some(PendingEvent::Debug(2)));
        assert_eq!(back.sys.dr6, dr6::FIXED | dr6::BD | dr6::BS | 2);
    }

    #[test]
    fn a_pending_exception_is_injected() {
        let s = ArchState {
            pending: Some(PendingEvent::Exception {
                vector: vector::AC,
                error: Some(0),
            }),
            ..ArchState::default()
        };
        let exception = to_events(&s).exception;
        assert_eq!(
            (exception.injected, exception.nr, exception.has_error_code),
            (1, vector::AC, 1)
        );
    }

    #[test]
    fn faults_are_not_saved_because_the_instruction_raises_them_again() {
        let mut events = kvm_vcpu_events::default();
        events.exception.injected = 1;
        events.exception.nr = vector::PF;
        events.interrupt.injected = 1;
        events.interrupt.soft = 1;
        let mut s = ArchState::default();
        from_events(&events, &mut s);
        assert_eq!(s.pending, None);
    }

    #[test]
    fn each_msr_has_its_own_field() {
        let mut m = MsrState::default();
        for (n, (_, field)) in (1..).zip(SYSTEM_CALL_MSRS) {
            *field(&mut m) = n;
        }
        let values = SYSTEM_CALL_MSRS.map(|(_, field)| *field(&mut m));
        assert_eq!(values, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
