//! The kernel's view: the processors of the machine as threads, whatever they execute.
//!
//! GDB has the registers of 64-bit mode. In other modes, their lower halves are those of the
//! processor. RIP is shown as the linear address of the instruction, to which breakpoints refer: in
//! real mode it includes the base of CS.

use vbts_capture::kernel_code::KernelText;
use vbts_capture::machine::kernel::Kernel;
use vbts_cpu::{Breakpoint, Cpu, StopPoints};
use vbts_gdb::{Control, Registers, ThreadInfo};
use vbts_host::exit::Failure;
use vbts_vmm::memory::GuestMemory;

use crate::debugger::Debugger;
use crate::kernel_code::KernelCode;
use crate::task_registers::vector_registers;
use crate::view::{MACHINE, thread_of};

/// The segment registers by number.
const FS: usize = 4;
const GS: usize = 5;

/// XCR0: the state of AVX is enabled (SDM Vol. 3A 2.6).
const XCR0_AVX: u64 = 1 << 2;

/// Returns whether a processor has the registers of AVX now.
pub(crate) fn has_avx(cpu: &Cpu) -> bool {
    cpu.sys.xcr0 & XCR0_AVX != 0
}

/// A breakpoint in the kernel.
fn at(address: u64) -> StopPoints {
    StopPoints {
        breakpoints: vec![Breakpoint {
            address,
            space: None,
        }],
        ..StopPoints::default()
    }
}

impl Debugger {
    /// Goes to where the kernel of the file `image` has failed, or else to `start_kernel`, which is
    /// at this address if the file has symbols, or to the first instruction if neither is known.
    pub(crate) fn open_machine(
        &mut self,
        image: &[u8],
        mut start_kernel: Option<u64>,
        memory: &GuestMemory,
    ) -> Result<(), Failure> {
        self.is_kernel_view = true;
        self.process = MACHINE;
        self.begin = self.replay.first();
        self.start = self.begin;
        self.crash = self.replay.failure;
        self.kernel_file = image.to_vec();
        if start_kernel.is_none() {
            // The kernel has its symbols in memory by the end.
            self.replay.seek(self.end)?;
            self.kernel_file = KernelText::file_of(memory).unwrap_or_default();
            let symbols = Kernel::parse(&self.kernel_file);
            let symbol = |name| symbols.as_ref()?.symbol(name);
            start_kernel = symbol("start_kernel");
            if let Some(panic) = symbol("panic").filter(|_| self.crash.is_some()) {
                let last = self.find_last(
                    self.end,
                    |_| at(panic),
                    |debugger, _| Some(debugger.replay.now()),
                )?;
                self.crash = last.or(self.crash);
            }
        }
        self.kernel_code = KernelCode::of(&self.kernel_file);
        if let Some(time) = self.crash {
            self.replay.seek(time)?;
        } else {
            self.replay.seek(self.begin)?;
            // Another kernel may have a function of this name.
            if let Some(address) = start_kernel
                && !self.run_to(address, None)?
            {
                self.replay.seek(self.begin)?;
            }
        }
        self.stop.thread = self.any_thread();
        self.replay.machine.keep_console_from_here();
        Ok(())
    }

    /// The processors.
    pub(crate) fn processor_list(&self) -> Vec<ThreadInfo> {
        let processors = self.replay.machine.processors().enumerate();
        let processors = processors.map(|(number, cpu)| {
            let id = thread_of(number);
            let state = match (cpu.is_idle(), self.name_of(id)) {
                (true, _) => "halted".to_owned(),
                (false, Some(task)) => format!("in task {task}"),
                (false, None) => format!("at CPL {}", cpu.cpl),
            };
            ThreadInfo {
                id,
                name: format!("CPU {number}"),
                processor: u32::try_from(number).ok(),
                state,
            }
        });
        processors.collect()
    }

    /// The registers of a processor.
    pub(crate) fn processor_registers(&self, processor: usize) -> Option<Registers> {
        let cpu = self.replay.processor(processor)?;
        let state = cpu.state();
        let (fxsave, avx) = vector_registers(&state);
        Some(Registers {
            general: state.gpr,
            rip: cpu.linear_ip(state.rip),
            rflags: state.rflags,
            segments: std::array::from_fn(|n| state.seg[n].selector),
            fs_base: state.seg[FS].base,
            gs_base: state.seg[GS].base,
            orig_rax: u64::MAX,
            fxsave: Some(fxsave),
            avx: has_avx(cpu).then_some(avx),
            control: Some(Control {
                kernel_gs_base: state.msr.kernel_gs_base,
                cr0: state.sys.cr0,
                cr2: state.sys.cr2,
                cr3: state.sys.cr3,
                cr4: state.sys.cr4,
                cr8: cpu.platform().cr8(),
                efer: state.sys.efer,
            }),
        })
    }
}
