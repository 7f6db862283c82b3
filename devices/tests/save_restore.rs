//! A restored machine behaves as the saved one: the same random accesses to both have the same
//! results.

#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use vbts_devices::irqchip::{IoApicWindow, IrqChip, IrqChipState, IrqLine, PicPorts};
use vbts_devices::pit::{Pit, PitState, SystemControlPort};
use vbts_devices::rtc::{Rtc, RtcState};
use vbts_devices::uart::{SerialState, Uart};
use vbts_devices::virtio::entropy::Source;
use vbts_devices::{Bus, Effects, OutputBuffer, Shared, lock, shared};

const CPUS: usize = 2;

struct Machine {
    chip: Shared<IrqChip>,
    pit: Shared<Pit>,
    rtc: Shared<Rtc>,
    uart: Shared<Uart>,
    output: Shared<OutputBuffer>,
    ports: Bus,
    mmio: Bus,
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct State {
    chip: IrqChipState,
    pit: PitState,
    rtc: RtcState,
    uart: SerialState,
}

impl Machine {
    fn new() -> Self {
        let chip = shared(IrqChip::new(CPUS as u8, true));
        let line = |irq| IrqLine::new(chip.clone(), irq);
        let output = shared(OutputBuffer::new(1 << 20));
        let pit = shared(Pit::new(line(0)));
        let rtc = shared(Rtc::new(line(8), 1_795_183_127));
        let uart = shared(Uart::new(line(4), Box::new(output.clone())));
        let mut ports = Bus::new();
        ports
            .insert(0x20, 2, shared(PicPorts::master(chip.clone())))
            .unwrap();
        ports
            .insert(0xA0, 2, shared(PicPorts::slave(chip.clone())))
            .unwrap();
        ports
            .insert(0x4D0, 2, shared(PicPorts::elcr(chip.clone())))
            .unwrap();
        ports.insert(0x40, 4, pit.clone()).unwrap();
        ports
            .insert(0x61, 1, shared(SystemControlPort::new(pit.clone())))
            .unwrap();
        ports.insert(0x70, 2, rtc.clone()).unwrap();
        ports.insert(0x3F8, 8, uart.clone()).unwrap();
        let mut mmio = Bus::new();
        let window = shared(IoApicWindow::new(chip.clone()));
        mmio.insert(0xFEC0_0000, 0x1000, window).unwrap();
        Self {
            chip,
            pit,
            rtc,
            uart,
            output,
            ports,
            mmio,
        }
    }

    fn save(&self) -> State {
        State {
            chip: lock(&self.chip).state(),
            pit: lock(&self.pit).state(),
            rtc: lock(&self.rtc).state(),
            uart: lock(&self.uart).state(),
        }
    }

    fn restore(&self, state: &State) {
        lock(&self.uart).restore(&state.uart).unwrap();
        lock(&self.pit).restore(&state.pit).unwrap();
        lock(&self.chip).restore(&state.chip).unwrap();
        lock(&self.rtc).restore(&state.rtc).unwrap();
    }

    /// Does what `random` selects. Returns everything that the guest or the host can observe.
    fn step(&self, now: u64, random: [u8; 8]) -> (Vec<u8>, Effects, Vec<bool>) {
        let [kind, which, a, b, c, d, ..] = random;
        let cpu = usize::from(which) % CPUS;
        let word = [a, b, c, d];
        const PORTS: [u64; 21] = [
            0x20, 0x21, 0xA0, 0xA1, 0x4D0, 0x4D1, 0x40, 0x41, 0x42, 0x43, 0x61, 0x70, 0x71, 0x3F8,
            0x3F9, 0x3FA, 0x3FB, 0x3FC, 0x3FD, 0x3FE, 0x3FF,
        ];
        let port = PORTS[usize::from(which) % PORTS.len()];
        let mut data = vec![0; 4];
        let effects = match kind % 10 {
            0..3 => self.ports.read(now, port, &mut data[..1]),
            3..6 => self.ports.write(now, port, &[a]),
            6 => {
                let offset = u64::from(which % 2) * 0x10;
                // Mostly valid indices.
                let value = if offset == 0 {
                    [a % 0x40, 0, 0, 0]
                } else {
                    word
                };
                self.mmio.write(now, 0xFEC0_0000 + offset, &value)
            }
            7 => {
                let offset = u64::from(a % 0x40) * 0x10;
                let value = [b, c, d % 8, random[6]];
                lock(&self.chip).lapic_write(cpu, now, offset, &value)
            }
            8 => {
                let offset = u64::from(a % 0x40) * 0x10;
                lock(&self.chip).lapic_read(cpu, now, offset, &mut data)
            }
            _ => match which % 4 {
                0 => lock(&self.uart).push_input(&word).1,
                1 => {
                    data.extend(lock(&self.chip).acknowledge(usize::from(a) % CPUS));
                    Effects::empty()
                }
                _ => lock(&self.pit).tick(now) | lock(&self.rtc).tick(now),
            },
        };
        data.extend(lock(&self.output).take());
        let chip = lock(&self.chip);
        let lines = (0..CPUS).flat_map(|n| [chip.intr_pending(n), chip.nmi_pending(n)]);
        (data, effects, lines.collect())
    }

    fn next_deadlines(&self) -> [Option<u64>; 3] {
        [
            lock(&self.chip).next_deadline(),
            lock(&self.pit).next_deadline(),
            lock(&self.rtc).next_deadline(),
        ]
    }
}

#[test]
fn a_restored_machine_continues() {
    for seed in 0..200 {
        let mut source = Source::Fixed(seed);
        let mut random = || {
            let mut bytes = [0; 8];
            source.fill(&mut bytes);
            bytes
        };
        let original = Machine::new();
        let mut now = 0;
        let mut advance = |bytes: [u8; 8]| {
            now += u64::from(bytes[7]) << (bytes[6] % 24);
            now
        };
        for _ in 0..300 {
            let bytes = random();
            original.step(advance(bytes), bytes);
        }
        let encoded = postcard::to_allocvec(&original.save()).unwrap();
        let state: State = postcard::from_bytes(&encoded).unwrap();
        assert_eq!(state, original.save());
        let restored = Machine::new();
        restored.restore(&state);
        assert_eq!(restored.save(), state);
        for n in 0..300 {
            let bytes = random();
            let now = advance(bytes);
            assert_eq!(
                restored.step(now, bytes),
                original.step(now, bytes),
                "seed {seed}, step {n}"
            );
            assert_eq!(restored.next_deadlines(), original.next_deadlines());
        }
        assert_eq!(restored.save(), original.save());
    }
}
