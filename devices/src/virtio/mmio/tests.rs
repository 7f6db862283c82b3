use vm_memory::Bytes;

use super::super::DeviceState;
use super::super::entropy::EntropyState;
use super::super::testing::{Driver, RAM_SIZE};
use super::*;
use crate::{DmaObserver, lock};

/// Answers each chain with its readable bytes.
struct Echo;

impl VirtioDevice for Echo {
    fn device_id(&self) -> u32 {
        42
    }
    fn features(&self) -> u64 {
        1 << 5
    }
    fn queue_sizes(&self) -> &[u16] {
        &[8]
    }
    fn config(&self) -> &[u8] {
        b"config"
    }
    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError> {
        while let Some(chain) = queues[0].pop(ram)? {
            let mut data = vec![0; chain.readable_len()];
            chain.read(ram, 0, &mut data)?;
            let written = chain.write(ram, 0, &data)?;
            queues[0].complete(ram, &chain, written)?;
        }
        Ok(())
    }
    fn reset(&mut self) {}
}

fn driver() -> Driver<Echo> {
    let mut d = Driver::new(Echo);
    d.start();
    d
}

fn irq(d: &mut Driver<Echo>) -> bool {
    format!("{:?}", d.device).contains("level: true")
}

#[test]
fn registers_after_reset() {
    let mut d = Driver::new(Echo);
    for (offset, value) in [
        (0x000, 0x7472_6976),
        (0x004, 2),
        (0x008, 42),
        (0x00C, VENDOR),
        (0x010, 1 << 28 | 1 << 5),
        (0x034, 8),
        (0x044, 0),
        (0x060, 0),
        (0x070, 0),
        (0x0B0, u32::MAX),
        (0x0FC, 0),
        (0x100, u32::from_le_bytes(*b"conf")),
        (0x104, u32::from(u16::from_le_bytes(*b"ig"))),
        (0x108, 0),
    ] {
        assert_eq!(d.get(offset), value, "{offset:#x}");
    }
    d.set(0x014, 1);
    assert_eq!(d.get(0x010), 1, "VIRTIO_F_VERSION_1");
    d.set(0x014, 2);
    assert_eq!(d.get(0x010), 0);
    d.set(0x030, 1);
    assert_eq!(d.get(0x034), 0, "no such queue");
}

#[test]
fn features_have_to_be_offered_and_version_1() {
    for (low, high, ok) in [
        (0, 0, false),
        (0, 1, true),
        (1 << 5, 1, true),
        (1 << 6, 1, false),
        (0, 3, false),
    ] {
        let mut d = Driver::new(Echo);
        d.set(0x070, 3);
        for (part, value) in [(0, low), (1, high)] {
            d.set(0x024, part);
            d.set(0x020, value);
        }
        d.set(0x070, 0xB);
        assert_eq!(d.get(0x070), if ok { 0xB } else { 3 }, "{low:#x} {high:#x}");
        d.set(0x070, 0xF);
        assert_eq!(d.get(0x070) & 4 != 0, ok, "DRIVER_OK needs FEATURES_OK");
    }
}

#[test]
fn a_request_is_served_and_interrupts() {
    let mut d = driver();
    for _ in 0..20 {
        assert_eq!(d.exchange(0, b"hello", 16), b"hello");
        assert_eq!(d.get(0x060), 1);
        assert!(irq(&mut d));
        d.set(0x064, 1);
        assert_eq!(d.get(0x060), 0);
        assert!(!irq(&mut d));
    }
    d.ram
        .write_obj(1u16, GuestAddress(Driver::<Echo>::avail_ring(0)))
        .unwrap();
    d.exchange(0, b"quiet", 16);
    assert_eq!(d.get(0x060), 0, "VRING_AVAIL_F_NO_INTERRUPT");
}

#[test]
fn a_served_request_is_a_dma_write_and_work_for_the_host() {
    let mut d = driver();
    let request = d.submit(0, b"x", 1);
    let mut observer = DmaObserver::new(d.ram.clone());
    let notify = |d: &mut Driver<Echo>| d.device.write(0, 0x050, &[0; 4]);
    assert_eq!(notify(&mut d), Effects::all());
    let mut pages = Vec::new();
    observer.take(|gpa| pages.push(gpa));
    let page = |gpa: u64| gpa & !0xFFF;
    assert_eq!(
        pages,
        [page(Driver::<Echo>::used_ring(0)), page(request.reply.0)]
    );
    assert_eq!(notify(&mut d), Effects::empty(), "nothing to serve");
    assert_eq!(
        d.device.write(0, 0x064, &1u32.to_le_bytes()),
        Effects::INTERRUPTS
    );
}

#[test]
fn nothing_happens_before_driver_ok() {
    let mut d = driver();
    d.set(0x070, 0xB);
    d.submit(0, b"x", 1);
    d.notify(0);
    assert_eq!(d.used(0), None);
    d.set(0x070, 0xF);
    assert!(d.used(0).is_some(), "served when the driver is ready");
}

#[test]
fn a_bad_queue_set_up_needs_a_reset() {
    let ram = RAM_SIZE as u32;
    for (register, value) in [
        (0x038, 0),
        (0x038, 3),
        (0x038, 16),
        (0x038, 0x1_0008),
        (0x080, 8),
        (0x090, 1),
        (0x0A0, 2),
        (0x080, ram),
        (0x090, ram - 8),
        (0x0A0, ram - 4),
        (0x084, 1),
        (0x0A4, 0xFFFF_FFFF),
    ] {
        let mut d = driver();
        d.set(0x044, 0);
        d.set(register, value);
        d.set(0x044, 1);
        assert_ne!(
            d.get(0x070) & STATUS_NEEDS_RESET,
            0,
            "{register:#x} {value:#x}"
        );
        assert_eq!(d.get(0x060) & 2, 2, "configuration change");
        assert!(d.device.is_broken());
        d.notify(0);
        d.start();
        assert_eq!(d.exchange(0, b"again", 8), b"again", "a reset repairs it");
    }
}

#[test]
fn a_ready_queue_is_fixed() {
    let mut d = driver();
    d.set(0x080, 0x7000_0000);
    d.set(0x038, 4);
    assert_eq!(d.exchange(0, b"x", 1), b"x");
}

#[test]
fn hostile_rings_do_not_panic() {
    type Setup = fn(&mut Driver<Echo>);
    let table: [(&str, Setup, bool); 9] = [
        (
            "available index far ahead",
            |d| {
                d.ram
                    .write_obj(100u16, GuestAddress(Driver::<Echo>::avail_ring(0) + 2))
                    .unwrap()
            },
            true,
        ),
        (
            "descriptor that is its own successor",
            |d| d.write_descriptor(0, 0, 0x10_0000, 4, 1, 0),
            false,
        ),
        (
            "successor outside the table",
            |d| d.write_descriptor(0, 0, 0x10_0000, 4, 1, 999),
            false,
        ),
        (
            "buffer outside RAM",
            |d| d.write_descriptor(0, 0, RAM_SIZE as u64 - 2, 4, 0, 0),
            true,
        ),
        (
            "buffer that wraps",
            |d| d.write_descriptor(0, 0, u64::MAX - 1, 4, 0, 0),
            true,
        ),
        (
            "buffer of 4 GiB",
            |d| d.write_descriptor(0, 0, 0, u32::MAX, 0, 0),
            true,
        ),
        (
            "indirect table outside RAM",
            |d| d.write_descriptor(0, 0, 1 << 40, 32, 4, 0),
            false,
        ),
        (
            "indirect table of odd size",
            |d| d.write_descriptor(0, 0, 0x10_0000, 17, 4, 0),
            false,
        ),
        (
            "indirect table in itself",
            |d| {
                let at = GuestAddress(0x10_0000);
                d.ram.write_obj(0x10_0000u64, at).unwrap();
                d.ram.write_obj(16u32, GuestAddress(at.0 + 8)).unwrap();
                d.ram.write_obj(4u16, GuestAddress(at.0 + 12)).unwrap();
                d.write_descriptor(0, 0, at.0, 16, 4, 0);
            },
            false,
        ),
    ];
    for (what, set_up, broken) in table {
        let mut d = driver();
        d.make_available(0, 0);
        set_up(&mut d);
        d.notify(0);
        assert_eq!(d.device.is_broken(), broken, "{what}");
        d.start();
        assert_eq!(d.exchange(0, b"again", 8), b"again", "{what}");
    }
}

#[test]
fn a_head_outside_the_table_breaks_the_queue_only() {
    let mut d = driver();
    d.make_available(0, 0xFFFF);
    d.notify(0);
    assert!(d.device.is_broken());
    d.start();
    assert_eq!(d.exchange(0, b"again", 8), b"again");
}

/// Makes another request available for each one that it serves. A driver that places its rings and
/// buffers over each other can bring a device to do that.
struct SelfFeeding(usize);

impl VirtioDevice for SelfFeeding {
    fn device_id(&self) -> u32 {
        42
    }
    fn features(&self) -> u64 {
        0
    }
    fn queue_sizes(&self) -> &[u16] {
        &[8]
    }
    fn config(&self) -> &[u8] {
        &[]
    }
    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError> {
        while let Some(chain) = queues[0].pop(ram)? {
            queues[0].complete(ram, &chain, 0)?;
            let index = GuestAddress(Driver::<Self>::avail_ring(0) + 2);
            ram.write_obj(ram.read_obj::<u16>(index)?.wrapping_add(1), index)?;
            self.0 += 1;
            assert!(self.0 < 1000, "the device never ends");
        }
        Ok(())
    }
    fn reset(&mut self) {}
}

#[test]
fn the_work_for_a_notification_is_bounded() {
    let mut d = Driver::new(SelfFeeding(0));
    d.start();
    d.make_available(0, 0);
    // However often a block notifies the device, and starts it again, it does no more.
    for _ in 0..48 {
        d.notify_in_block(0);
        assert_eq!(d.device.device_mut().0, 8);
        d.set(0x070, 0xB);
        d.set(0x070, 0xF);
    }
    // It goes on when the run loop has returned, without another notification.
    for n in 2..5 {
        assert!(d.grant_budgets().contains(Effects::BUDGET));
        assert_eq!(d.device.device_mut().0, 8 * n);
    }
    // A device that is restored goes on, too.
    d.replace(SelfFeeding(0));
    d.grant_budgets();
    assert_eq!(d.device.device_mut().0, 8);
}

#[test]
fn a_device_that_has_done_all_work_does_nothing_with_a_new_budget() {
    let mut d = driver();
    d.submit(0, b"x", 1);
    d.notify_in_block(0);
    assert!(d.used(0).is_some());
    d.submit(0, b"x", 1);
    assert_eq!(d.grant_budgets(), Effects::empty());
    assert!(d.used(0).is_none(), "served without a notification");
}

#[test]
fn a_reset_earns_no_budget() {
    let mut d = driver();
    let mut served = 0;
    for _ in 0..20 {
        d.start();
        d.submit(0, b"x", 1);
        d.notify_in_block(0);
        served += usize::from(d.used(0).is_some());
    }
    assert_eq!(served, 8);
}

#[test]
fn odd_accesses_do_nothing() {
    let mut d = driver();
    for (offset, len) in [(0x070, 1), (0x070, 2), (0x070, 8), (0x071, 4), (0x072, 4)] {
        let mut data = [0xEE; 8];
        d.device.write(0, offset, &data[..len]);
        d.device.read(0, offset, &mut data[..len]);
        assert!(data[..len].iter().all(|b| *b == 0));
    }
    assert_eq!(d.get(0x070), 0xF);
    let mut byte = [0];
    d.device.read(0, 0x102, &mut byte);
    assert_eq!(&byte, b"n", "the configuration space takes any size");
}

#[test]
fn random_register_writes_do_not_panic() {
    let mut d = driver();
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    for _ in 0..200_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let offset = state >> 8 & 0xFC;
        let value =
            [state as u32, 0, 1, 0xF, (state >> 40) as u32 & 0xFFF0][(state >> 32) as usize % 5];
        d.set(offset, value);
        d.get(offset);
    }
    d.start();
    assert_eq!(d.exchange(0, b"alive", 8), b"alive");
    assert!(!lock(&d.chip).nmi_pending(0));
}

#[test]
fn a_restored_device_continues_at_its_place_in_the_rings() {
    let mut d = driver();
    for _ in 0..11 {
        d.exchange(0, b"before", 16);
    }
    let request = d.submit(0, b"waits", 16);
    d.set(0x030, 3);
    d.set(0x014, 1);
    d.replace(Echo);
    assert!(irq(&mut d), "the interrupt is not acknowledged");
    assert_eq!(d.get(0x010), 1, "the high half of the features");
    assert_eq!(d.get(0x034), 0, "no queue 3");
    d.notify(0);
    assert_eq!(d.used(0), Some((request.head, 5)));
    d.set(0x064, 1);
    assert!(!irq(&mut d));
    for _ in 0..11 {
        assert_eq!(d.exchange(0, b"after", 16), b"after");
    }
}

#[test]
fn impossible_states_are_refused() {
    let states: [fn(&mut VirtioState); 14] = [
        |s| s.device_id = 3,
        |s| s.config.push(0),
        |s| s.queues.clear(),
        |s| s.registers.status = 0x100,
        |s| s.registers.status = STATUS_DRIVER_OK,
        |s| s.registers.interrupt_status = 4,
        |s| s.registers.driver_features |= 1 << 6,
        |s| s.registers.driver_features &= !F_VERSION_1,
        |s| s.queues[0].size = 16,
        |s| s.queues[0].size = 3,
        |s| s.queues[0].descriptor_table += 1,
        |s| s.queues[0].available_ring = RAM_SIZE as u64,
        |s| s.queues[0].used_ring = !3,
        |s| s.device = DeviceState::Entropy(EntropyState::default()),
    ];
    for (n, change) in states.iter().enumerate() {
        let mut d = driver();
        let mut state = d.device.state().unwrap();
        change(&mut state);
        assert!(d.device.restore(&state).is_err(), "{n}");
    }
}

#[test]
fn positions_outside_the_rings_break_only_the_device() {
    let mut d = driver();
    let mut state = d.device.state().unwrap();
    state.queues[0].next_available = 1000;
    state.queues[0].next_used = u16::MAX;
    d.device.restore(&state).unwrap();
    d.submit(0, b"x", 1);
    d.notify(0);
    assert!(d.device.is_broken());
}
