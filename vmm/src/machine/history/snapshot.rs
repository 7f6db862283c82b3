//! Takes a snapshot of a machine, and puts a machine back to one.

use serde::{Deserialize, Serialize};
use vbts_devices::DmaObserver;
use vbts_host::exit::Failure;
use vm_memory::{Bytes, GuestAddress};

use super::{History, ReplayObserver};
use crate::inputs::InputsState;
use crate::machine::Machine;
use crate::machine::state::{Devices, has_possible_times};
use crate::machine::virtual_time::Schedule;
use crate::memory::{PAGE, ZEROS, ranges};
use crate::vcpu::Vcpu;

/// Size in bytes of the states of devices and inputs, about.
const DEVICES_SIZE: usize = 32 << 10;

/// Everything that decides how a replay continues, without the contents of memory, which
/// [`History`] has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Snapshot {
    /// Virtual time in ns.
    pub time: u64,
    schedule: Schedule,
    processors: Vec<vbts_cpu::Snapshot>,
    devices: Devices,
    /// The position in the recording; `None` if there is none.
    inputs: Option<InputsState>,
    #[serde(with = "serde_bytes")]
    observer: Vec<u8>,
    /// Guest-physical addresses of the pages that have a version from here on, lowest first. A file
    /// has them in another form.
    #[serde(skip)]
    pub pages: Vec<u64>,
}

impl Snapshot {
    /// Size in bytes, about.
    pub(super) fn size(&self) -> usize {
        let processors: usize = self.processors.iter().map(vbts_cpu::Snapshot::size).sum();
        processors + size_of_val(&*self.pages) + self.observer.len() + DEVICES_SIZE
    }

    /// Returns whether a machine with this number of processors can be at these times.
    pub(super) fn is_possible(&self, processors: usize) -> bool {
        let states = self.processors.iter().map(|processor| &processor.state);
        self.time == self.schedule.now
            && states.len() == processors
            && has_possible_times(&self.schedule, states)
    }
}

impl History {
    /// Takes the first snapshot, if there is none.
    pub(super) fn begin(
        &mut self,
        machine: &mut Machine,
        observer: &mut dyn ReplayObserver,
    ) -> Result<(), Failure> {
        if !self.snapshots.is_empty() {
            return Ok(());
        }
        if machine.host_clock.is_some() {
            return Err(anyhow::anyhow!("a machine on the host's time cannot go back").into());
        }
        machine.inputs.keep()?;
        self.devices = Some(DmaObserver::new(machine.memory.clone()));
        machine.take_written_pages();
        self.since = machine.now();
        self.take(machine, observer)
    }

    /// Takes a snapshot, unless the machine has left the replay or there is one of the same time.
    pub(super) fn take(
        &mut self,
        machine: &mut Machine,
        observer: &mut dyn ReplayObserver,
    ) -> Result<(), Failure> {
        let time = machine.now();
        let place = self.snapshots.partition_point(|s| s.time < time);
        if self.has_left || self.snapshots.get(place).is_some_and(|s| s.time == time) {
            return Ok(());
        }
        let devices = machine.save_devices();
        let devices = devices.map_err(|error| Failure::Error(error.into()))?;
        let candidates = match place {
            0 => all_pages(machine),
            _ => self.take_candidates(machine, time),
        };
        let mut pages = Vec::new();
        let mut page = ZEROS;
        for gpa in candidates {
            read_page(machine, gpa, &mut page)?;
            if *self.pages.at(gpa, time) != page {
                pages.push(gpa);
                self.pages.add(gpa, time, &page);
            }
        }
        self.keep_later_versions(place, &pages);
        let processors = machine.vcpus.iter();
        let snapshot = Snapshot {
            time,
            schedule: machine.schedule.clone(),
            processors: processors.map(|vcpu| vcpu.soft().snapshot()).collect(),
            devices,
            inputs: machine.inputs.state(),
            observer: observer.save(),
            pages,
        };
        self.snapshots.insert(place, snapshot);
        self.since = time;
        self.thin(time);
        Ok(())
    }

    /// Has the snapshot at `place` keep its contents of `pages`, which get other contents from an
    /// earlier time on, that is after the snapshot before.
    fn keep_later_versions(&mut self, place: usize, pages: &[u64]) {
        let Some(earlier) = place.checked_sub(1).and_then(|n| self.snapshots.get(n)) else {
            return;
        };
        let earlier = earlier.time;
        let Some(later) = self.snapshots.get_mut(place) else {
            return;
        };
        for gpa in pages {
            if self.pages.keep_from(*gpa, earlier, later.time) {
                later.pages.push(*gpa);
            }
        }
        later.pages.sort_unstable();
    }

    /// Puts the machine to the snapshot of `time`.
    pub(super) fn restore(
        &mut self,
        machine: &mut Machine,
        time: u64,
        observer: &mut dyn ReplayObserver,
    ) -> Result<(), Failure> {
        let candidates = self.take_candidates(machine, time);
        let place = self.snapshots.partition_point(|s| s.time < time);
        let Some(snapshot) = self.snapshots.get(place).filter(|s| s.time == time) else {
            return Err(anyhow::anyhow!("there is no snapshot at {time} ns").into());
        };
        // A log of branches goes to the processor that has the turn.
        let mut logging = machine.vcpus.iter_mut();
        let log = logging.find_map(|vcpu| {
            vcpu.flush_log();
            vcpu.detach_log()
        });
        // Processors invalidate the code of the pages that change when they run.
        let mut page = ZEROS;
        for gpa in candidates {
            read_page(machine, gpa, &mut page)?;
            let contents = self.pages.at(gpa, time);
            if page != *contents {
                let written = machine.memory.write_slice(contents, GuestAddress(gpa));
                written.map_err(|error| Failure::Error(error.into()))?;
            }
        }
        self.since = time;
        let restored = machine.restore_devices(&snapshot.devices);
        restored.map_err(|error| Failure::Error(error.into()))?;
        for (vcpu, processor) in machine.vcpus.iter_mut().zip(&snapshot.processors) {
            if !vcpu.restore_snapshot(processor) {
                return Err(anyhow::anyhow!("the snapshot is not one of this machine").into());
            }
        }
        machine.schedule = snapshot.schedule.clone();
        machine.steps.forget();
        machine.event_at = None;
        if let Some(inputs) = &snapshot.inputs {
            machine.inputs.restore(inputs)?;
        }
        observer.restore(&snapshot.observer)?;
        if let Some(log) = log {
            machine.record_in(log);
        }
        // Memory is as at `time`, also where it was written here.
        self.take_written(machine);
        self.has_left = false;
        Ok(())
    }

    /// The pages that may differ between the present memory and that of the snapshots up to `time`,
    /// in order.
    fn take_candidates(&mut self, machine: &mut Machine, time: u64) -> Vec<u64> {
        let mut candidates = self.take_written(machine);
        let (from, to) = (self.since.min(time), self.since.max(time));
        let first = self.snapshots.partition_point(|s| s.time <= from);
        let between = self.snapshots.iter().skip(first);
        for snapshot in between.take_while(|s| s.time <= to) {
            candidates.extend_from_slice(&snapshot.pages);
        }
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }

    /// Takes the pages that processors and devices may have written since the last call.
    fn take_written(&mut self, machine: &mut Machine) -> Vec<u64> {
        let mut written = machine.take_written_pages();
        if let Some(devices) = &mut self.devices {
            devices.take(|gpa| written.push(gpa));
        }
        written
    }

    /// Drops the snapshot with this number, which is not the first.
    pub(super) fn drop_snapshot(&mut self, number: usize) {
        let dropped = self.snapshots.remove(number);
        let Some(next) = self.snapshots.get_mut(number) else {
            for gpa in dropped.pages {
                self.pages.remove(gpa, dropped.time, None);
            }
            return;
        };
        for gpa in dropped.pages {
            if self.pages.remove(gpa, dropped.time, Some(next.time)) {
                next.pages.push(gpa);
            }
        }
        next.pages.sort_unstable();
    }
}

impl Machine {
    /// The pages that processors may have written since the last call.
    fn take_written_pages(&mut self) -> Vec<u64> {
        let first = self.vcpus.first();
        let pages = first.map(|vcpu| vcpu.soft().cpu.ram().take_written_pages());
        let vcpus = self.vcpus.iter_mut().map(Vcpu::soft_mut);
        vcpus.for_each(|soft| soft.note_writable_pages());
        pages.unwrap_or_default()
    }
}

fn all_pages(machine: &Machine) -> Vec<u64> {
    let ranges = ranges(&machine.memory);
    let pages = ranges.iter().map(|&(start, len)| start..start + len);
    pages
        .flat_map(|range| range.step_by(PAGE as usize))
        .collect()
}

fn read_page(machine: &Machine, gpa: u64, page: &mut crate::memory::Page) -> Result<(), Failure> {
    let read = machine.memory.read_slice(page, GuestAddress(gpa));
    read.map_err(|error| Failure::Error(error.into()))
}
