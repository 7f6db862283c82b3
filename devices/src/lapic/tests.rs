use super::registers::{
    ESR_ILLEGAL_REGISTER, ESR_RECEIVE_ILLEGAL_VECTOR, ESR_SEND_ILLEGAL_VECTOR, reg,
};
use super::*;

fn enabled() -> LocalApic {
    let mut a = LocalApic::new(3, true, true);
    a.write(0, reg::SVR, 0x1FF);
    a
}

fn fixed(a: &mut LocalApic, vector: u8, level: bool) {
    assert!(a.accept(DeliveryMode::Fixed, vector, level));
}

#[test]
fn registers_after_reset() {
    let mut a = LocalApic::new(3, true, true);
    let table = [
        (reg::ID, 0x0300_0000),
        (reg::VERSION, 0x0005_0014),
        (reg::TPR, 0),
        (reg::PPR, 0),
        (reg::LDR, 0),
        (reg::DFR, 0xFFFF_FFFF),
        (reg::SVR, 0xFF),
        (reg::ESR, 0),
        (reg::LVT_TIMER, 0x1_0000),
        (reg::LVT_TIMER + 0x10, 0x1_0000),
        (reg::LVT_ERROR, 0x1_0000),
        (reg::INITIAL_COUNT, 0),
        (reg::CURRENT_COUNT, 0),
        (reg::DIVIDE_CONFIGURATION, 0),
    ];
    for (offset, value) in table {
        assert_eq!(a.read(0, offset), value, "{offset:#x}");
    }
    for bank in [reg::ISR, reg::TMR, reg::IRR] {
        assert!((0..8).all(|i| a.read(0, bank + i * 16) == 0));
    }
    assert_eq!(a.rdmsr(0, IA32_APIC_BASE), Some(0xFEE0_0900));
    assert_eq!(a.state.errors, 0);
}

#[test]
fn only_defined_bits_can_be_written() {
    let mut a = enabled();
    let table = [
        (reg::ID, 0xFF00_0000),
        (reg::VERSION, 0x0005_0014),
        (reg::TPR, 0xFF),
        (reg::LDR, 0xFF00_0000),
        (reg::DFR, 0xFFFF_FFFF),
        (reg::SVR, 0x3FF),
        (reg::ICR_HIGH, 0xFF00_0000),
        (0x320, 0x7_00FF),
        (0x330, 0x1_07FF),
        (0x340, 0x1_07FF),
        (0x350, 0x1_A7FF),
        (0x360, 0x1_A7FF),
        (0x370, 0x1_00FF),
        (reg::DIVIDE_CONFIGURATION, 0xB),
        (reg::CURRENT_COUNT, 0),
    ];
    for (offset, value) in table {
        a.write(0, offset, 0xFFFF_FFFF);
        assert_eq!(a.read(0, offset), value, "{offset:#x}");
    }
}

#[test]
fn lvt_entries_stay_masked_while_the_apic_is_software_disabled() {
    let mut a = enabled();
    a.write(0, 0x350, 0x700);
    assert_eq!(a.read(0, 0x350), 0x700);
    a.write(0, reg::SVR, 0xFF);
    assert_eq!(a.read(0, 0x350), 0x1_0700);
    a.write(0, 0x350, 0x700);
    assert_eq!(a.read(0, 0x350), 0x1_0700);
    assert!(!a.accept(DeliveryMode::Fixed, 0x40, false));
    assert!(
        a.accept(DeliveryMode::Nmi, 0, false),
        "NMI, INIT and SIPI still work"
    );
}

#[test]
fn higher_classes_preempt_and_eoi_returns() {
    let mut a = enabled();
    fixed(&mut a, 0x31, false);
    fixed(&mut a, 0x35, false);
    assert_eq!(a.ack(), Some(0x35));
    assert_eq!(a.ack(), None, "same class");
    fixed(&mut a, 0x41, false);
    assert_eq!(a.ack(), Some(0x41));
    assert_eq!(a.read(0, reg::PPR), 0x40);
    assert_eq!(a.write(0, reg::EOI, 0), None);
    assert_eq!(a.read(0, reg::PPR), 0x30);
    assert_eq!(a.ack(), None);
    a.write(0, reg::EOI, 0);
    assert_eq!(a.ack(), Some(0x31));
    a.write(0, reg::EOI, 0);
    a.write(0, reg::EOI, 0);
    assert_eq!(a.ack(), None);
}

#[test]
fn the_task_priority_blocks_its_class_and_lower_ones() {
    let mut a = enabled();
    fixed(&mut a, 0x52, false);
    a.write(0, reg::TPR, 0x50);
    assert_eq!((a.cr8(), a.pending_vector()), (5, None));
    a.set_cr8(4);
    assert_eq!(
        (a.read(0, reg::TPR), a.pending_vector()),
        (0x40, Some(0x52))
    );
    assert_eq!(a.ack(), Some(0x52));
    assert_eq!(a.read(0, reg::PPR), 0x50);
    a.set_cr8(9);
    assert_eq!(a.read(0, reg::PPR), 0x90);
}

#[test]
fn isr_tmr_and_irr_show_the_vector() {
    let mut a = enabled();
    fixed(&mut a, 0xC7, true);
    let (index, bit) = (0xC7 / 32 * 16, 1 << (0xC7 % 32));
    assert_eq!(a.read(0, reg::IRR + index), bit);
    assert_eq!(a.read(0, reg::TMR + index), bit);
    a.ack();
    assert_eq!(a.read(0, reg::IRR + index), 0);
    assert_eq!(a.read(0, reg::ISR + index), bit);
    assert_eq!(a.write(0, reg::EOI, 0), Some(Action::EoiBroadcast(0xC7)));
    fixed(&mut a, 0xC7, false);
    a.ack();
    assert_eq!(a.write(0, reg::EOI, 0), None, "edge-triggered now");
}

#[test]
fn pmi_masks_itself() {
    let mut a = enabled();
    a.pmi();
    assert!(!a.nmi_pending(), "masked after reset");
    a.write(0, 0x340, 0x400);
    a.pmi();
    assert!(a.take_nmi());
    assert_eq!(a.read(0, 0x340), 0x1_0400);
    a.pmi();
    assert!(!a.take_nmi());
    a.write(0, 0x340, 0xEE);
    a.pmi();
    assert_eq!(a.ack(), Some(0xEE));
    assert_eq!(a.read(0, 0x340), 0x1_00EE);
}

#[test]
fn the_timer_interrupts() {
    let mut a = enabled();
    a.write(0, reg::DIVIDE_CONFIGURATION, 0xB);
    a.write(0, reg::LVT_TIMER, 0x2_00EC);
    a.write(1000, reg::INITIAL_COUNT, 500);
    assert_eq!(a.next_deadline(), Some(1500));
    assert_eq!(a.read(1200, reg::CURRENT_COUNT), 300);
    a.tick(1499);
    assert_eq!(a.pending_vector(), None);
    a.tick(1500);
    assert_eq!(a.ack(), Some(0xEC));
    a.write(1600, reg::EOI, 0);
    a.tick(3100);
    assert_eq!(a.ack(), Some(0xEC));
    assert_eq!(a.next_deadline(), Some(3500));
    a.write(3200, reg::LVT_TIMER, 0x3_00EC);
    assert_eq!(a.next_deadline(), None, "masked");
    a.write(3200, reg::LVT_TIMER, 0x4_00EC);
    assert_eq!(a.rdmsr(3200, IA32_TSC_DEADLINE), Some(0));
    a.wrmsr(3200, IA32_TSC_DEADLINE, 4000).unwrap();
    assert_eq!(a.next_deadline(), Some(4000));
    a.write(3300, reg::EOI, 0);
    a.wrmsr(3300, IA32_TSC_DEADLINE, 1).unwrap();
    assert_eq!(a.ack(), Some(0xEC), "a deadline in the past fires at once");
}

#[test]
fn without_tsc_deadline_its_msr_and_mode_do_not_exist() {
    let mut a = LocalApic::new(0, true, false);
    assert_eq!(a.rdmsr(0, IA32_TSC_DEADLINE), None);
    assert_eq!(a.wrmsr(0, IA32_TSC_DEADLINE, 1), None);
    a.write(0, reg::LVT_TIMER, 0xFFFF_FFFF);
    assert_eq!(a.read(0, reg::LVT_TIMER), 0x3_00FF);
    assert_eq!(a.rdmsr(0, 0x802), None);
}

#[test]
fn a_write_to_the_icr_sends_its_message() {
    let mut a = enabled();
    let ipi = |destination, mode, vector| {
        Some(Action::Ipi(Message {
            destination,
            mode,
            vector,
            level: false,
        }))
    };
    a.write(0, reg::ICR_HIGH, 0x0200_0000);
    let table = [
        (
            0x0000_00F0,
            ipi(Destination::Physical(2), DeliveryMode::Fixed, 0xF0),
        ),
        (
            0x0000_08F0,
            ipi(Destination::Logical(2), DeliveryMode::Fixed, 0xF0),
        ),
        (
            0x0004_00F0,
            ipi(Destination::Oneself, DeliveryMode::Fixed, 0xF0),
        ),
        (
            0x0008_00F0,
            ipi(Destination::All, DeliveryMode::Fixed, 0xF0),
        ),
        (
            0x000C_00F0,
            ipi(Destination::Others, DeliveryMode::Fixed, 0xF0),
        ),
        (0x000C_0400, ipi(Destination::Others, DeliveryMode::Nmi, 0)),
        (
            0x0000_C500,
            ipi(Destination::Physical(2), DeliveryMode::Init, 0),
        ),
        (0x0000_8500, None),
        (
            0x0000_0699,
            ipi(Destination::Physical(2), DeliveryMode::StartUp, 0x99),
        ),
        (0x0000_0300, None),
        (0x0000_0700, None),
        (0x0000_000F, None),
    ];
    for (low, action) in table {
        assert_eq!(a.write(0, reg::ICR_LOW, low), action, "{low:#x}");
        assert_eq!(a.read(0, reg::ICR_LOW), low, "delivery status is idle");
    }
    a.write(0, reg::ESR, 0);
    assert_eq!(a.read(0, reg::ESR), ESR_SEND_ILLEGAL_VECTOR);
}

#[test]
fn errors_latch_and_interrupt_once() {
    let mut a = enabled();
    a.write(0, reg::LVT_ERROR, 0xFE);
    a.accept(DeliveryMode::Fixed, 7, false);
    a.read(0, 0x010);
    a.write(0, 0x3F0, 1);
    assert_eq!(a.ack(), Some(0xFE));
    a.write(0, reg::EOI, 0);
    assert_eq!(a.ack(), None);
    assert_eq!(a.read(0, reg::ESR), 0, "latched by a write only");
    a.write(0, reg::ESR, 0);
    assert_eq!(
        a.read(0, reg::ESR),
        ESR_RECEIVE_ILLEGAL_VECTOR | ESR_ILLEGAL_REGISTER
    );
    a.write(0, reg::ESR, 0);
    assert_eq!(a.read(0, reg::ESR), 0);
    a.write(0, reg::LVT_ERROR, 3);
    a.accept(DeliveryMode::Fixed, 7, false);
    assert_eq!(a.ack(), None, "an error vector below 16 does not recurse");
}

#[test]
fn destinations_match_ids_in_each_format() {
    let mut a = enabled();
    a.write(0, reg::LDR, 0x2300_0000);
    for (destination, flat, cluster) in [
        (Destination::Physical(3), true, true),
        (Destination::Physical(0xFF), true, true),
        (Destination::Physical(0), false, false),
        (Destination::Logical(0xFF), true, true),
        (Destination::Logical(0x01), true, false),
        (Destination::Logical(0x22), true, true),
        (Destination::Logical(0x24), true, false),
        (Destination::Logical(0x32), true, false),
        (Destination::Logical(0x10), false, false),
    ] {
        a.write(0, reg::DFR, 0xFFFF_FFFF);
        assert_eq!(a.matches(destination), flat, "{destination:?} flat");
        a.write(0, reg::DFR, 0);
        assert_eq!(a.matches(destination), cluster, "{destination:?} cluster");
    }
}

#[test]
fn apic_base_disables_and_refuses_reserved_bits() {
    let mut a = enabled();
    for bad in [0xFEE0_0C00, 0xFEE0_0801, 1 << 52 | 0xFEE0_0800] {
        assert_eq!(a.wrmsr(0, IA32_APIC_BASE, bad), None);
    }
    assert_eq!(a.base(), Some(LAPIC_BASE));
    a.wrmsr(0, IA32_APIC_BASE, 0xFED0_0900).unwrap();
    assert_eq!(a.base(), Some(0xFED0_0000));
    a.wrmsr(0, IA32_APIC_BASE, 0xFEE0_0000).unwrap();
    assert_eq!(a.base(), None);
    assert_eq!(
        a.rdmsr(0, IA32_APIC_BASE),
        Some(0xFEE0_0100),
        "the BSP flag stays"
    );
    assert!(!a.accept(DeliveryMode::Nmi, 0, false));
    assert!(a.takes_extint(), "LINT0 is INTR");
    a.wrmsr(0, IA32_APIC_BASE, 0xFEE0_0900).unwrap();
    assert_eq!(a.read(0, reg::SVR), 0xFF, "registers were reset");
}

#[test]
fn software_can_change_the_id_until_the_apic_is_disabled() {
    let mut a = enabled();
    let ids = |a: &LocalApic| [3, 9].map(|id| a.matches(Destination::Physical(id)));
    a.write(0, reg::ID, 0x0912_3456);
    assert_eq!(a.read(0, reg::ID), 0x0900_0000);
    assert_eq!(ids(&a), [false, true]);
    let mut restored = LocalApic::new(3, true, true);
    restored.restore(&a.state()).unwrap();
    assert_eq!(ids(&restored), [false, true]);
    a.accept(DeliveryMode::Init, 0, false);
    a.take_startup_event();
    assert_eq!(ids(&a), [false, true], "INIT keeps it");
    a.wrmsr(0, IA32_APIC_BASE, 0xFEE0_0000).unwrap();
    a.wrmsr(0, IA32_APIC_BASE, 0xFEE0_0900).unwrap();
    assert_eq!(ids(&a), [true, false]);
}

#[test]
fn init_resets_and_a_startup_ipi_follows() {
    let mut a = enabled();
    a.write(0, reg::TPR, 0x20);
    a.accept(DeliveryMode::Init, 0, false);
    a.accept(DeliveryMode::StartUp, 0x9A, false);
    assert_eq!(a.take_startup_event(), Some(StartupEvent::Init));
    assert_eq!(a.take_startup_event(), Some(StartupEvent::StartUp(0x9A)));
    assert_eq!(a.take_startup_event(), None);
    assert_eq!(a.read(0, reg::TPR), 0);
    assert_eq!(
        a.rdmsr(0, IA32_APIC_BASE),
        Some(0xFEE0_0900),
        "BSP survives INIT"
    );
}

#[test]
fn virtual_wire_mode_accepts_extint() {
    let mut a = LocalApic::new(0, true, false);
    assert!(!a.takes_extint());
    a.set_virtual_wire_mode();
    assert!(a.takes_extint());
    assert_eq!((a.read(0, 0x350), a.read(0, 0x360)), (0x700, 0x400));
}

#[test]
fn a_restored_local_apic_continues() {
    let mut a = enabled();
    a.write(0, reg::DIVIDE_CONFIGURATION, 0xB);
    a.write(0, reg::LVT_TIMER, 0x2_00EC);
    a.write(0, reg::INITIAL_COUNT, 500);
    fixed(&mut a, 0x31, false);
    a.ack();
    fixed(&mut a, 0x41, true);
    a.accept(DeliveryMode::Nmi, 0, false);
    let mut restored = LocalApic::new(3, true, true);
    restored.restore(&a.state()).unwrap();
    assert_eq!(restored.state(), a.state());
    assert_eq!(restored.read(100, reg::CURRENT_COUNT), 400);
    assert!(restored.take_nmi());
    assert_eq!(restored.ack(), Some(0x41));
    restored.tick(1000);
    assert_eq!(restored.ack(), Some(0xEC));
    assert_eq!(restored.next_deadline(), Some(1500), "still periodic");
}

#[test]
fn impossible_states_are_refused() {
    let states: [fn(&mut LapicState); 9] = [
        |s| s.apic_base |= 1,
        |s| s.apic_base ^= APIC_BASE_BSP,
        |s| s.ldr = 1,
        |s| s.dfr = 0,
        |s| s.svr = 0x400,
        |s| s.icr = 1 << 20,
        |s| s.lvt[Lvt::Error as usize] = 0x100,
        |s| s.esr = 0x100,
        |s| s.errors = 0x100,
    ];
    for change in states {
        let mut a = enabled();
        let mut state = a.state();
        change(&mut state);
        let error = a.restore(&state).unwrap_err().to_string();
        assert!(error.contains("a local APIC"), "{error}");
    }
    let mut with_deadline = enabled();
    with_deadline.write(0, reg::LVT_TIMER, 0x4_00EC);
    let mut without = LocalApic::new(3, true, false);
    assert!(without.restore(&with_deadline.state()).is_err());
}
