//! Probes the accelerators of the host that vbts runs on.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use vbts_cpu::{ArchState, Cpu, Exit, Signals, SoftCpu};
use vbts_devices::{OutputBuffer, shared};
use vm_memory::{Bytes, GuestAddress};

use super::Host;
use crate::board::{Board, VcpuPlatform};
use crate::boot::{Protocol, registers};
use crate::kvm::check::speed::{LOOP, Speed};
use crate::kvm::check::{self, Report};
use crate::kvm::device::{self, KvmUnavailable};
use crate::kvm::passthrough::{self, NoPassThrough};
use crate::layout;
use crate::memory::{self, GuestMemory, MIN_MEMORY, Size};
use vbts_host::exit::Failure;

/// The host that vbts runs on. Each capability is probed once.
#[derive(Debug)]
pub struct ThisHost {
    path: PathBuf,
    kvm: OnceCell<Result<Kvm, KvmUnavailable>>,
    report: Option<Report>,
    pass_through: Option<Result<(), NoPassThrough>>,
    soft_speed: Option<Speed>,
    /// Host time for which the software CPU is measured.
    measure: Duration,
}

impl ThisHost {
    /// Probes the KVM at `path`, and measures the software CPU for `measure` of host time.
    pub fn new(path: &Path, measure: Duration) -> Self {
        Self {
            path: path.into(),
            kvm: OnceCell::new(),
            report: None,
            pass_through: None,
            soft_speed: None,
            measure,
        }
    }
}

impl Host for ThisHost {
    fn kvm(&mut self) -> Result<&Report, String> {
        let kvm = self.kvm.get_or_init(|| device::open(&self.path));
        let kvm = kvm.as_ref().map_err(ToString::to_string)?;
        Ok(self.report.get_or_insert_with(|| check::run(kvm)))
    }

    fn pass_through(&mut self) -> Result<(), NoPassThrough> {
        let kvm = match self.kvm.get_or_init(|| device::open(&self.path)) {
            Ok(kvm) => kvm,
            Err(why) => return Err(NoPassThrough::Untried(why.to_string())),
        };
        self.pass_through
            .get_or_insert_with(|| passthrough::probe_kvm(kvm))
            .clone()
    }

    fn soft_speed(&mut self) -> Result<Speed, Failure> {
        if let Some(speed) = self.soft_speed {
            return Ok(speed);
        }
        let speed = measure_soft(self.measure)?;
        self.soft_speed = Some(speed);
        Ok(speed)
    }
}

/// Virtual time between two reads of the host's clock, in ns.
const SLICE: u64 = 100_000;

/// Measures the instructions a second that the software CPU retires in [`LOOP`], the loop in which
/// KVM is measured too.
fn measure_soft(limit: Duration) -> Result<Speed, Failure> {
    let jump_back = [0xEB, (-(LOOP.len() as i8) - 2) as u8];
    let (mut soft, _memory) = scratch(&[LOOP, &jump_back].concat(), |_| {})?;
    let began = Instant::now();
    while began.elapsed() < limit {
        let exit = soft.run(soft.cpu.now() + SLICE);
        if exit != Exit::Deadline {
            return Err(anyhow::anyhow!(
                "unexpected exit of the software CPU from a loop: {exit:?}"
            )
            .into());
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok((soft.cpu.instructions() as f64 / seconds) as Speed)
}

/// A software CPU in 64-bit mode at CPL 0 that is about to execute `code`, which is at
/// [`EXTENDED_MEMORY`](layout::EXTENDED_MEMORY), with linear addresses equal to physical ones.
/// `prepare` changes its state. The memory has to live longer.
pub(super) fn scratch(
    code: &[u8],
    prepare: impl FnOnce(&mut ArchState),
) -> Result<(SoftCpu, GuestMemory), Failure> {
    let memory = memory::allocate(Size(MIN_MEMORY))?;
    registers::write_tables(&memory, Protocol::Bits64)?;
    memory.write_slice(code, GuestAddress(layout::EXTENDED_MEMORY))?;
    let signals = Arc::<Signals>::default();
    let board = Board::new(
        memory.clone(),
        vec![signals.clone()],
        false,
        0,
        Box::new(shared(OutputBuffer::new(0))),
    )?;
    let model =
        vbts_cpu::model(vbts_cpu::MODELS[0]).ok_or_else(|| anyhow::anyhow!("no CPU model"))?;
    let mut cpu = Cpu::new(
        model,
        // SAFETY: the caller keeps `memory` as long as the processor.
        unsafe { memory::cpu_view(&memory) },
        Arc::new(VcpuPlatform::new(Arc::new(board), 0)),
        signals,
    );
    let mut state = registers::initial_state(layout::EXTENDED_MEMORY, Protocol::Bits64);
    prepare(&mut state);
    cpu.load_state(&state);
    Ok((SoftCpu::new(cpu), memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_of_the_software_cpu_can_be_measured() {
        assert!(measure_soft(Duration::from_millis(1)).unwrap() > 0);
    }
}
