//! Tests whose outcome on KVM is known to differ, and why. Such a test runs on the software CPU
//! alone and reports that.

use vbts_testkit::Processor;
use vbts_testkit::processor::{Accel, Host, accel, say};

/// Tests that differ on one kind of host, for one reason.
pub struct Deviation {
    pub host: Host,
    /// Names of test functions, of their modules, or of cases in a table.
    pub tests: &'static [&'static str],
    pub why: &'static str,
    /// Whether the tests also differ with VBTS_ACCEL=both, where KVM executes nothing and only
    /// holds the state between two instructions.
    pub both: bool,
}

use Host::{Any, EmulatedSvm, Paravirtual, Svm};

/// Tests that fail on a host that QEMU emulates, on both accelerators. The software CPU computes
/// with the host's floating-point units. QEMU's store the result of an x87 operation despite an
/// unmasked exception, and round to half precision by other rules.
const FLOATING_POINT_OF_THE_HOST: &[&str] = &[
    "conversion to half precision",
    "an_unmasked_x87_exception_is_raised_by_the_next_waiting_instruction",
    "an x87 store that an unmasked exception cancels accesses no memory",
    "an x87 store that an unmasked exception cancels does not check the segment",
    "FCOMI sets the flags even if its exception is unmasked",
];

/// Whether a test, or a case of one, must be left out on this host.
pub fn is_left_out(name: &str) -> bool {
    let left_out = FLOATING_POINT_OF_THE_HOST.contains(&name) && EmulatedSvm.is_here();
    if left_out {
        say(&format!(
            "skipped: {name}: QEMU emulates the host's floating-point units"
        ));
    }
    left_out
}

/// Leaves the running test to the software CPU if the table lists it for this host.
pub fn apply(processor: &mut Processor) {
    if accel() == Accel::Soft {
        return;
    }
    let thread = std::thread::current();
    let path = thread.name().unwrap_or_default();
    assert_ne!(
        path, "main",
        "tests have no names with one test thread: use --test-threads 2"
    );
    for name in path.split("::") {
        apply_to_case(processor, name);
    }
}

/// Leaves a test, or a case of one, to the software CPU if the table lists it for this host.
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
    // The test needs the software CPU.
    Deviation {
        host: Any,
        tests: &[
            "the_tsc_counts_instructions",
            "the_tsc_can_be_set_and_the_deadline_follows_it",
            "reference_cycles_are_those_of_the_time_stamp_counter",
        ],
        why: "KVM's time-stamp counter is the host's, which does not count instructions",
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
        tests: &[
            "a_lock_across_cache_lines_takes_no_lock_of_the_hosts",
            "locked_instructions_are_atomic",
        ],
        why: "the tests need the software CPU's clock, or two processors",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["branch_log"],
        why: "the log has the branches that the software CPU executes",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["native_code", "native_code_and_saved_states_keep_the_stack"],
        why: "the tests compare the tiers of the software CPU",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &["a_double_fault_that_cannot_be_delivered_shuts_down"],
        why: "the test runs a processor after its shutdown, and kvm_amd resets it there",
        both: false,
    },
    // The manual leaves the choice to the processor.
    Deviation {
        host: Any,
        tests: &["global_pages_survive_a_new_cr3_and_not_a_new_pge"],
        why: "the processor may keep or drop a translation that need not be invalidated",
        both: true,
    },
    Deviation {
        host: Any,
        tests: &[
            "a_repeated_string_is_interrupted_and_resumed",
            "a_repeated_store_over_code_of_many_pages_is_interrupted",
        ],
        why: "the processor chooses how many iterations precede an interrupt",
        both: false,
    },
    // Behaviour of any KVM.
    Deviation {
        host: Any,
        tests: &[
            "extensions_that_the_model_lacks_are_undefined",
            "hints_of_later_processors_do_nothing",
            "lahf_in_64_bit_mode_exists_with_its_feature",
        ],
        why: "the host's processor executes instructions that KVM cannot intercept",
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
        why: "with nested paging the guest has the host's physical address width and CR4.VME",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &[
            "cpuid_follows_misc_enable",
            "execute_disable_can_be_disabled",
        ],
        why: "KVM executes CPUID, which cannot change any more, and WRMSR to IA32_EFER",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &["rdtsc_and_rdpmc_are_subject_to_cr4"],
        why: "KVM executes RDPMC and may have no counters",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &["a_descriptor_table_outside_ram_holds_no_valid_descriptor"],
        why: "KVM retries the access to a descriptor outside RAM forever",
        both: false,
    },
    Deviation {
        host: Any,
        tests: &[
            "no_instruction_breakpoint_right_after_mov_ss",
            "the_instruction_after_mov_ss_decides_about_its_watchpoint",
        ],
        why: "KVM's state has no field for a trap that MOV SS delays",
        both: true,
    },
    // Behaviour of AMD's processors.
    Deviation {
        host: Svm,
        tests: &["sysretq_to_an_address_that_is_not_canonical_faults_in_the_kernel"],
        why: "AMD's SYSRET faults after its change to CPL 3",
        both: false,
    },
    Deviation {
        host: Svm,
        tests: &["exceptions_in_compatibility_mode_go_to_64_bit_handlers"],
        why: "AMD's processors execute SYSCALL in compatibility mode",
        both: false,
    },
    Deviation {
        host: Svm,
        tests: &["an_environment_has_the_address_of_the_last_instruction"],
        why: "AMD's processors keep the last x87 instruction only with an exception, and QEMU never does",
        both: true,
    },
    Deviation {
        host: Svm,
        tests: &[
            "sysenter_and_sysexit",
            "sysenter_keeps_tf_and_traps_in_the_kernel",
        ],
        why: "AMD's processors have no SYSENTER in IA-32e mode; QEMU's sets CS.D and CS.L, which its VMRUN refuses",
        both: false,
    },
    // Behaviour of KVM without hardware virtualization.
    Deviation {
        host: Paravirtual,
        tests: &["programs_report_what_the_manual_says"],
        why: "kvm_pvm loses CR0.PG of 32-bit paging",
        both: true,
    },
    Deviation {
        host: Paravirtual,
        tests: &["an_environment_has_the_address_of_the_last_instruction"],
        why: "kvm_pvm can lose FOP, FIP and FDP while no x87 exception is pending",
        both: true,
    },
    // Behaviour of QEMU's processor, where it is the host's.
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_vector_beyond_the_idt_limit_is_gp",
            "an_external_event_sets_ext_in_the_faults_of_its_delivery_and_a_program_does_not",
            "a_fault_in_the_delivery_of_an_interrupt_is_external",
        ],
        why: "QEMU before 8.0 doubles the vector in an error code and never sets EXT",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["programs_report_what_the_manual_says"],
        why: "some of these programs hang, for a reason that is not known",
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
        why: "QEMU loads a null SS with every IST stack",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["an_interrupt_waits_for_the_instruction_after_mov_ss"],
        why: "QEMU's VMRUN ignores the interrupt shadow in the VMCB",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_double_fault_is_one_transfer_and_a_triple_fault_none",
            "contributory_after_contributory_and_page_fault_after_page_fault_are_double_faults",
        ],
        why: "QEMU's VMRUN does not treat an injected event as an exception, so the next one is no double fault",
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
            "ltr_and_lldt_refuse_a_base_that_is_not_canonical",
            "a load whose last bytes are not canonical raises #GP, not a page fault",
            "a store whose last bytes are not canonical raises #GP, not a page fault",
            "ENTER reads the outer frame pointers from the stack segment: #SS",
            "64-bit mode ignores a DS override of a stack access: #SS",
        ],
        why: "QEMU checks late, or never, whether an address is canonical",
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
            "implicit_accesses_have_supervisor_privilege_at_any_cpl",
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
        why: "QEMU's VMRUN loads DR7 without setting breakpoints, and QEMU has no general detect",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_conversion_to_half_precision_comes_before_the_fault_of_its_store",
            "a_gather_continues_after_a_fault",
            "a_gather_of_128_bits_clears_upper_halves_before_a_fault",
            "a_store_that_faults_in_its_second_page_stores_nothing",
            "avx_is_undefined_unless_the_system_has_it_on",
            "masked_moves_access_what_the_mask_selects",
        ],
        why: "QEMU executes AVX instructions in parts, and without a check of CR4.OSXSAVE",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &["a_store_to_the_next_instruction_takes_effect_at_once"],
        why: "QEMU continues a block that has modified itself",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "a_masked_store_writes_all_selected_bytes_or_none",
            "a_page_fault_leaves_the_registers_and_memory_unchanged",
            "control_instructions_do_not_wait",
            "emulation_comes_before_task_switched",
            "emulation_is_for_software",
            "sse_is_undefined_until_the_system_saves_it",
            "task_switched_state_is_not_touched",
        ],
        why: "QEMU omits checks of CR0, CR4 and pending exceptions for some instructions, and executes some in parts",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "the stack segment has a limit in compatibility mode",
            "a stack access across 4 GiB exceeds the limit",
            "XLAT compares its sum with the segment limit",
            "a bit string's accessed word is compared with the segment limit",
            "POP reads the stack before it checks the operand's segment",
            "POP to a null segment leaves the stack pointer unchanged",
            "a bit string wraps around at 64 KiB with 16-bit addressing",
        ],
        why: "QEMU has no segment limits",
        both: false,
    },
    Deviation {
        host: EmulatedSvm,
        tests: &[
            "BOUND below the lower bound does not load the upper one",
            "REP CMPS that faults leaves the flags unchanged",
            "REP SCAS that traps between iterations leaves the flags unchanged",
            "PUSH of a segment register moves 16 bits into a slot of 32",
            "a repeated string with ECX = 0 clears the upper half of RCX",
            "REP MOVS with ECX = 0 also clears the upper halves of its pointers",
            "REP STOS that faults in its first iteration clears the upper halves",
        ],
        why: "QEMU's instruction differs",
        both: false,
    },
];
