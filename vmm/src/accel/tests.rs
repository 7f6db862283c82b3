use super::*;
use crate::kvm::check::Check;

/// A host whose capabilities a test sets.
struct Fake {
    kvm: Result<Report, String>,
    pass_through: Result<(), NoPassThrough>,
    soft: Speed,
}

impl Host for Fake {
    fn kvm(&mut self) -> Result<&Report, String> {
        self.kvm.as_ref().map_err(Clone::clone)
    }

    fn pass_through(&mut self) -> Result<(), NoPassThrough> {
        self.pass_through.clone()
    }

    fn soft_speed(&mut self) -> Result<Speed, Failure> {
        Ok(self.soft)
    }
}

fn check(outcome: Result<(), String>) -> Check {
    Check {
        name: "SYSCALL".into(),
        outcome,
    }
}

/// A host with a correct KVM of these speeds and a software CPU of speed 100, without pass-through.
fn correct(cpl0: Speed, cpl3: Speed) -> Fake {
    Fake {
        kvm: Ok(Report {
            checks: vec![check(Ok(()))],
            cpl0: Some(cpl0),
            cpl3: Some(cpl3),
            single_step: None,
        }),
        pass_through: Err(NoPassThrough::NothingStored),
        soft: 100,
    }
}

fn incorrect() -> Fake {
    let mut fake = correct(1000, 1000);
    if let Ok(report) = &mut fake.kvm {
        report.checks.push(check(Err("stays at CPL 3".into())));
    }
    fake
}

fn none() -> Fake {
    let mut fake = correct(0, 0);
    fake.kvm = Err("there is no /dev/kvm".into());
    fake
}

fn auto(mut host: Fake) -> Choice {
    choose(Accelerator::Auto, BtsMode::Auto, false, &[], &mut host).unwrap()
}

fn refused(accel: Accelerator, bts: BtsMode, mut host: Fake) -> String {
    let failure = choose(accel, bts, false, &[], &mut host).unwrap_err();
    assert_eq!(failure.status(), vbts_host::exit::status::HOST);
    failure.to_string()
}

#[test]
fn auto_takes_a_correct_and_fast_kvm() {
    let choice = auto(correct(101, 5000));
    assert_eq!((choice.accel, choice.bts), (Accel::Kvm, Bts::Emulate));
    assert_eq!(choice.why.lines().count(), 1);
}

#[test]
fn auto_takes_no_kvm_that_is_slow_at_one_cpl() {
    for (cpl0, cpl3) in [(100, 5000), (5000, 100), (2, 9000)] {
        let choice = auto(correct(cpl0, cpl3));
        assert_eq!((choice.accel, choice.bts), (Accel::Soft, Bts::Emulate));
        assert!(choice.why.contains("slower"), "{}", choice.why);
    }
}

#[test]
fn auto_takes_no_kvm_that_is_missing_or_incorrect_or_unmeasured() {
    let mut unmeasured = correct(1000, 1000);
    if let Ok(report) = &mut unmeasured.kvm {
        report.cpl3 = None;
    }
    for (host, word) in [
        (none(), "no /dev/kvm"),
        (incorrect(), "SYSCALL"),
        (unmeasured, "measured"),
    ] {
        let choice = auto(host);
        assert_eq!(choice.accel, Accel::Soft);
        assert!(choice.why.contains(word), "{}", choice.why);
    }
}

#[test]
fn kvm_selected_by_name_is_used_or_refused() {
    // Its speed does not matter, because it was selected by name.
    let choice = choose(
        Accelerator::Kvm,
        BtsMode::Auto,
        false,
        &[],
        &mut correct(1, 1),
    )
    .unwrap();
    assert_eq!(choice.accel, Accel::Kvm);
    let message = refused(Accelerator::Kvm, BtsMode::Auto, incorrect());
    assert!(
        message.contains("SYSCALL") && message.contains("stays at CPL 3"),
        "{message}"
    );
    let message = refused(Accelerator::Kvm, BtsMode::Auto, none());
    assert!(message.contains("no /dev/kvm"), "{message}");
}

#[test]
fn only_accel_kvm_takes_an_incorrect_kvm_unchecked() {
    let choice = choose(Accelerator::Kvm, BtsMode::Auto, true, &[], &mut incorrect()).unwrap();
    assert_eq!(choice.accel, Accel::Kvm);
    let choice = choose(
        Accelerator::Auto,
        BtsMode::Auto,
        true,
        &[],
        &mut incorrect(),
    )
    .unwrap();
    assert_eq!(choice.accel, Accel::Soft);
    assert!(choose(Accelerator::Kvm, BtsMode::Auto, true, &[], &mut none()).is_err());
}

#[test]
fn pass_through_is_used_if_it_works() {
    let mut host = correct(1000, 1000);
    host.pass_through = Ok(());
    for (wanted, got) in [
        (BtsMode::Auto, Bts::PassThrough),
        (BtsMode::Passthrough, Bts::PassThrough),
        (BtsMode::Emulate, Bts::Emulate),
        (BtsMode::Off, Bts::Off),
    ] {
        let choice = choose(Accelerator::Auto, wanted, false, &[], &mut host).unwrap();
        assert_eq!(choice.bts, got);
    }
}

#[test]
fn pass_through_is_refused_if_it_does_not_work() {
    for accel in [Accelerator::Kvm, Accelerator::Auto] {
        let message = refused(accel, BtsMode::Passthrough, correct(1000, 1000));
        assert!(message.contains("no branch is stored"), "{message}");
    }
    let mut host = correct(1000, 1000);
    host.pass_through = Ok(());
    let message = refused(Accelerator::Soft, BtsMode::Passthrough, host);
    assert!(message.contains("needs KVM"), "{message}");
    let message = refused(Accelerator::Auto, BtsMode::Passthrough, none());
    assert!(message.contains("no /dev/kvm"), "{message}");
}

#[test]
fn soft_probes_nothing_of_the_host() {
    struct Unprobed;
    impl Host for Unprobed {
        fn kvm(&mut self) -> Result<&Report, String> {
            panic!("KVM was probed")
        }
        fn pass_through(&mut self) -> Result<(), NoPassThrough> {
            panic!("pass-through was probed")
        }
        fn soft_speed(&mut self) -> Result<Speed, Failure> {
            panic!("the speed was measured")
        }
    }
    let choice = choose(Accelerator::Soft, BtsMode::Auto, false, &[], &mut Unprobed).unwrap();
    assert_eq!((choice.accel, choice.bts), (Accel::Soft, Bts::Emulate));
}

#[test]
fn kvm_runs_no_guest_whose_instructions_the_host_lacks() {
    let lacks = ["SSE4.1", "SSE4.2"].map(String::from);
    let host = &mut correct(1000, 1);
    let failure = choose(Accelerator::Kvm, BtsMode::Auto, false, &lacks, host).unwrap_err();
    assert_eq!(failure.status(), vbts_host::exit::status::HOST);
    let choice = choose(Accelerator::Auto, BtsMode::Auto, false, &lacks, host).unwrap();
    assert_eq!(choice.accel, Accel::Soft);
    assert_eq!(choice.why, "the host's processor has no SSE4.1, SSE4.2");
}

#[test]
fn only_the_software_cpu_has_virtual_time() {
    let config = |accelerator, clock| MachineConfig {
        accelerator,
        clock,
        ..MachineConfig::default()
    };
    let on_kvm = config(Accelerator::Kvm, ClockSource::Virtual);
    let failure = resolve(&on_kvm).unwrap_err().to_string();
    assert!(failure.starts_with("--clock virtual: "), "{failure}");
    let executed = |clock| executes(&config(Accelerator::Auto, clock)).unwrap();
    assert_eq!(executed(ClockSource::Virtual), Accelerator::Soft);
    assert_eq!(executed(ClockSource::Host), Accelerator::Auto);
    assert_eq!(executed(ClockSource::Auto), Accelerator::Auto);
}

#[test]
fn native_code_is_checked_while_one_processor_runs() {
    let outcome = |processors, clock| {
        let failure = resolve(&MachineConfig {
            accelerator: Accelerator::Soft,
            jit: JitMode::Check,
            processors,
            clock,
            ..MachineConfig::default()
        });
        failure.err().map(|failure| failure.to_string())
    };
    assert_eq!(outcome(1, ClockSource::Host), None);
    assert_eq!(outcome(2, ClockSource::Auto), None);
    let failure = outcome(2, ClockSource::Host).unwrap();
    assert!(failure.starts_with("--jit check: "), "{failure}");
}
