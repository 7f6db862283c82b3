//! Tests whose outcome on KVM is known to differ, and why. Such a test runs on the software CPU,
//! and says so.

use vbts_testkit::Processor;
use vbts_testkit::processor::{Accel, Host, accel, say};

/// Tests, by the names of their functions (or of a case in a table of cases), and what differs on
/// which host.
pub struct Deviation {
    pub host: Host,
    pub tests: &'static [&'static str],
    pub why: &'static str,
    /// Even if KVM executes nothing, and has the state before each instruction.
    pub both: bool,
}

use Host::{Any, EmulatedSvm, Paravirtual, Svm};

/// Tests that fail on a host that QEMU emulates, on both accelerators. The software CPU computes
/// with the host's x87 unit, and QEMU's stores the result of an operation despite its exception.
const X87_OF_THE_HOST: &[&str] = &[
    "an_unmasked_x87_exception_is_raised_by_the_next_waiting_instruction",
    "an x87 store that an unmasked exception cancels accesses no memory",
    "an x87 store that an unmasked exception cancels does not mind the segment",
    "FCOMI sets the flags even if its exception is unmasked",
];

/// Whether a test, or a case of one, has to be left out here.
pub fn is_left_out(name: &str) -> bool {
    let left_out = X87_OF_THE_HOST.contains(&name) && EmulatedSvm.is_here();
    if left_out {
        say(&format!("skipped: {name}: the host's x87 unit is QEMU's"));
    }
    left_out
}

/// Looks for the running test in the table.
pub fn apply(processor: &mut Processor) {
    if accel() == Accel::Soft {
        return;
    }
    let thread = std::thread::current();
    let path = thread.name().unwrap_or_default();
    let test = path.rsplit("::").next().unwrap_or_default();
    assert_ne!(
        test, "main",
        "with one test thread tests have no names: give --test-threads 2"
    );
    apply_to_case(processor, test);
}

/// Looks for a test, or a case of one, in the table.
pub fn apply_to_case(processor: &mut Processor, name: &str) {
    if accel() == Accel::Soft {
        return;
    }
    for deviation in DEVIATIONS {
        let applies = deviation.both || accel() != Accel::Both;
        if applies && deviation.tests.contains(&name) && deviation.host.is_here() {
            processor.soft_only(deviation.why);
        }
    }
}

const DEVIATIONS: &[Deviation] = &[
    // What is the software CPU's own.
    Deviation {
        host: Any,
        tests: &[
            "the_tsc_counts_instructions",
            "the_tsc_can_be_set_and_the_deadline_follows_it",
            "reference_cycles_are_those_of_the_time_stamp_counter",
        ],
        why: "the time-stamp counter is the host's, and counts no instructions",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["on_the_hosts_time_the_counter_is_the_hosts"],
        why: "the test sets the software CPU's clock",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["locked_instructions_are_atomic"],
        why: "its second processor is none of KVM's",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["a_double_fault_that_cannot_be_delivered_shuts_down"],
        why: "runs a processor that has shut down again, which kvm_amd has reset by then",
        both: false,
    },
    // What the manual leaves to the processor.
    Deviation {
        host: Any,
        tests: &["global_pages_survive_a_new_cr3_and_not_a_new_pge"],
        why: "whether a translation is kept that need not be forgotten is the processor's choice",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["a_repeated_string_gives_way_to_an_interrupt_and_goes_on"],
        why: "how far a repeated string comes before an interrupt is the processor's choice",
        both: false,
    },
    // What KVM is.
    Deviation {
        host: Any,
        tests: &[
            "extensions_that_the_model_lacks_are_undefined",
            "hints_of_later_processors_do_nothing",
        ],
        why: "instructions that the host's processor has and that cannot be intercepted are executed",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &["msrs_hold_what_is_written_as_far_as_their_bits_exist"],
        why: "KVM makes an address in IA32_SYSENTER_ESP canonical, where the manual has #GP",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &["control_registers_reject_what_they_do_not_have"],
        why: "with nested paging the host's width of physical addresses and CR4.VME are the guest's, too",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &["rdtsc_and_rdpmc_are_subject_to_cr4"],
        why: "RDPMC is KVM's to answer, which may have no counters",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &["a_descriptor_table_outside_ram_holds_no_valid_descriptor"],
        why: "KVM tries a descriptor that is not in RAM again and again",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &[
            "no_instruction_breakpoint_right_after_mov_ss",
            "what_follows_mov_ss_decides_what_becomes_of_its_watchpoint",
        ],
        why: "KVM has no place for a trap that MOV SS holds back",
        both: true,
    },
    // What AMD's processors are.
    Deviation {
        host: Svm,
        tests: &["sysretq_to_an_address_that_is_not_canonical_faults_in_the_kernel"],
        why: "AMD's SYSRET faults at CPL 3",
        both: false,
    },
    Deviation {
        host: Svm,
        tests: &["exceptions_in_compatibility_mode_go_to_64_bit_handlers"],
        why: "AMD's processors have SYSCALL in compatibility mode",
        both: false,
    },
    Deviation {
        host: Svm,
        tests: &["an_environment_tells_where_the_last_instruction_was"],
        why: "AMD's processors keep the last x87 instruction only with an exception, QEMU's not at all",
        both: false,
    },
    Deviation {
        host: Svm,
        tests: &[
            "sysenter_and_sysexit",
            "sysenter_keeps_tf_and_traps_in_the_kernel",
        ],
        why: "AMD's processors have no SYSENTER in IA-32e mode, QEMU's leaves CS.D beside CS.L, which its VMRUN refuses",
        both: false,
    },
    // What KVM without virtualization is.
    Deviation {
        host: Paravirtual,
        tests: &["programs_report_what_the_manual_says"],
        why: "kvm_pvm forgets CR0.PG of 32-bit paging",
        both: true,
    },
    Deviation {
        host: Paravirtual,
        tests: &["an_environment_tells_where_the_last_instruction_was"],
        why: "kvm_pvm can lose FOP, FIP and FDP while no x87 exception is pending",
        both: true,
    },
    // What QEMU's processor is, which here is the host's.
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_vector_beyond_the_idt_limit_is_gp",
            "an_external_event_sets_ext_in_the_faults_of_its_delivery_and_a_program_does_not",
            "what_keeps_an_interrupt_from_being_delivered_is_external",
        ],
        why: "QEMU before 8.0 doubles the vector in an error code, and never sets EXT",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["programs_report_what_the_manual_says"],
        why: "some of these programs stand still there, which has not been explained yet",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["a_dot_product_is_not_added_up_after_an_unmasked_exception"],
        why: "QEMU raises no SIMD floating-point exception",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["faults_push_their_error_code_and_the_address_of_the_instruction"],
        why: "QEMU before 8.0 pushes no RF",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["a_gate_with_an_ist_switches_stacks_even_without_a_change_of_cpl"],
        why: "QEMU loads a null SS with any stack of the IST",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["an_interrupt_waits_for_the_instruction_after_mov_ss"],
        why: "QEMU's VMRUN does not look at the interrupt shadow in the VMCB",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_double_fault_is_one_transfer_and_a_triple_fault_none",
            "contributory_after_contributory_and_page_fault_after_page_fault_are_double_faults",
        ],
        why: "QEMU's VMRUN forgets that the event that it injects is an exception: the next one is no double fault",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_stack_in_the_tss_that_is_not_canonical_is_ss",
            "a_call_gate_is_subject_to_its_dpl_and_its_targets_kind",
            "iretq_checks_what_it_returns_to",
            "addresses_that_are_not_canonical_fault_before_any_page_does",
            "descriptor_table_registers_are_stored_and_loaded",
            "a load that only ends outside the canonical addresses is #GP before its page is missing",
            "a store that only ends outside the canonical addresses is #GP before its page is missing",
            "ENTER reads the outer frame pointers from the stack: #SS",
            "64-bit mode ignores an override of SS: #SS",
        ],
        why: "QEMU looks late, or not at all, whether an address is canonical",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["syscall_clears_the_flags_of_fmask"],
        why: "QEMU's SYSCALL loses the arithmetic flags",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["sysretd_returns_to_compatibility_mode"],
        why: "QEMU's SYSRET loads VM",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "nxe_takes_effect_at_once",
            "implicit_accesses_are_the_supervisors_at_any_cpl",
        ],
        why: "QEMU reports reserved bits without P, and the first byte of an access across pages",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "an_instruction_breakpoint_comes_before_and_a_watchpoint_after",
            "an_instruction_breakpoint_faults_before_the_instruction_until_rf_is_set",
            "watchpoints_trap_after_the_access",
            "general_detect_protects_the_debug_registers_once",
        ],
        why: "QEMU's VMRUN loads DR7 and puts no breakpoint; there is no general detect",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["a_store_to_the_next_instruction_takes_effect_at_once"],
        why: "QEMU goes on with a block that has changed itself",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_masked_store_writes_all_selected_bytes_or_none",
            "a_page_fault_leaves_the_registers_and_memory_alone",
            "control_instructions_do_not_wait",
            "emulation_comes_before_task_switched",
            "emulation_is_for_software",
            "sse_is_undefined_until_the_system_saves_it",
            "task_switched_state_is_not_touched",
        ],
        why: "QEMU checks CR0, CR4 and pending exceptions for a part of the vector and x87 instructions, and does them piecemeal",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "the stack segment has a limit in compatibility mode",
            "a stack access across 4 GiB is beyond the limit",
            "the segment's limit is that of XLAT's sum",
            "the segment's limit is that of the bit string's word",
            "POP reads the stack before the operand's segment is looked at",
            "POP to a null segment leaves the stack pointer alone",
            "a bit string wraps around at 64 KiB with 16-bit addressing",
        ],
        why: "QEMU has no segment limits",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "BOUND below the lower bound does not load the upper one",
            "REP CMPS that faults leaves the flags as they were",
            "REP SCAS that traps half-way leaves the flags as they were",
            "PUSH of a segment register moves 16 bits into a slot of 32",
            "a repeated string with ECX = 0 clears the upper half of RCX",
            "REP MOVS with ECX = 0 clears the upper halves of its pointers, too",
            "REP STOS that faults at once has cleared the upper halves",
        ],
        why: "QEMU's instruction does it otherwise",
        both: false,
    },
];
