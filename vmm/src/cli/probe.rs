//! `vbts probe`: what this host offers.

use std::fs::OpenOptions;
use std::io;
use std::time::Instant;

use clap::Args;
use serde_json::json;

use vbts_cpu::{Cpu, Exit, SoftCpu};
use vbts_devices::{OutputBuffer, shared};
use vm_memory::{Bytes, GuestAddress};

use crate::board::{Board, Socket};
use crate::boot::registers;
use crate::exit::Failure;
use crate::layout;
use crate::memory::{self, MIN_MEMORY, Size};

/// Arguments of `vbts probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Host time for each measurement, in ms.
const MEASURE_MS: u128 = 50;
/// Virtual time between two looks at the host's clock, in ns.
const SLICE: u64 = 1_000_000;

/// `1: dec rcx; add rax, rcx; xor rdx, rax; test rcx, rcx; jnz 1b; jmp 1b`
const LOOP: &[u8] = &[
    0x48, 0xFF, 0xC9, 0x48, 0x01, 0xC8, 0x48, 0x31, 0xC2, 0x48, 0x85, 0xC9, 0x75, 0xF2, 0xEB, 0xF0,
];

/// Runs the command.
///
/// # Errors
/// The software CPU cannot run, or standard output cannot be written.
pub fn main(args: &ProbeArgs) -> Result<u8, Failure> {
    let kvm = probe_kvm();
    let vendor = host_vendor();
    let speed = measure_soft()?;
    let why = "this build has no KVM accelerator yet";
    let report = if args.json {
        json!({
            "vendor": vendor,
            "kvm": {"present": kvm.is_ok(), "usable": false, "reason": kvm.clone().err().unwrap_or_else(|| why.into())},
            "bts_passthrough": {"available": false, "reason": why},
            "soft": {"instructions_per_second": speed},
            "auto": {"accel": "soft", "bts": "emulate", "reason": why},
        })
        .to_string()
    } else {
        let kvm = match kvm {
            Ok(()) => format!("/dev/kvm can be opened, but {why}"),
            Err(reason) => format!("no: {reason}"),
        };
        format!(
            "processor:        {vendor}\n\
             KVM:              {kvm}\n\
             BTS pass-through: no: {why}\n\
             soft:             {} million instructions a second\n\
             --accel auto:     soft ({why})\n\
             --bts auto:       emulate",
            speed / 1_000_000
        )
    };
    let mut out = crate::host::Output::stdout()?;
    out.write(format!("{report}\n").as_bytes())?;
    Ok(0)
}

/// Whether /dev/kvm can be opened, or why not.
fn probe_kvm() -> Result<(), String> {
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("there is no /dev/kvm".into()),
        Err(error) => Err(format!("/dev/kvm cannot be opened: {error}")),
    }
}

/// The vendor string of the host's processor.
fn host_vendor() -> String {
    let leaf = std::arch::x86_64::__cpuid(0);
    let bytes: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx]
        .iter()
        .flat_map(|r| r.to_le_bytes())
        .collect();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned()
}

/// Instructions a second that the software CPU retires in a small loop.
fn measure_soft() -> Result<u64, Failure> {
    let memory = memory::allocate(Size(MIN_MEMORY))?;
    registers::write_tables(&memory)?;
    memory.write_slice(LOOP, GuestAddress(layout::EXTENDED_MEMORY))?;
    let signals = std::sync::Arc::<vbts_cpu::Signals>::default();
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
        memory::cpu_view(&memory),
        std::sync::Arc::new(Socket::new(std::sync::Arc::new(board), 0)),
        signals,
    );
    cpu.load_state(&registers::initial_state(layout::EXTENDED_MEMORY));
    let mut soft = SoftCpu::new(cpu);
    let began = Instant::now();
    while began.elapsed().as_millis() < MEASURE_MS {
        let exit = soft.run(soft.cpu.now() + SLICE);
        if exit != Exit::Deadline {
            return Err(anyhow::anyhow!("the software CPU left a plain loop: {exit:?}").into());
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok((soft.cpu.instructions() as f64 / seconds) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_software_cpu_runs_the_loop() {
        assert!(measure_soft().unwrap() > 0);
    }

    #[test]
    fn the_vendor_is_text() {
        assert_eq!(host_vendor().len(), 12);
    }
}
