use super::*;
use crate::kvm::check::Check;

/// A host with set findings.
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

/// A faithful KVM of these speeds beside a software CPU of 100, without pass-through.
fn faithful(cpl0: Speed, cpl3: Speed) -> Fake {
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

fn unfaithful() -> Fake {
    let mut fake = faithful(1000, 1000);
    if let Ok(report) = &mut fake.kvm {
        report.checks.push(check(Err("stays at CPL 3".into())));
    }
    fake
}

fn none() -> Fake {
    let mut fake = faithful(0, 0);
    fake.kvm = Err("there is no /dev/kvm".into());
    fake
}

fn auto(mut host: Fake) -> Choice {
    choose(Accelerator::Auto, BtsMode::Auto, false, &[], &mut host).unwrap()
}

fn refused(accel: Accelerator, bts: BtsMode, mut host: Fake) -> String {
    let failure = choose(accel, bts, false, &[], &mut host).unwrap_err();
    assert_eq!(failure.status(), crate::exit::status::HOST);
    failure.to_string()
}

#[test]
fn auto_takes_a_faithful_and_fast_kvm() {
    let choice = auto(faithful(101, 5000));
    assert_eq!((choice.accel, choice.bts), (Accel::Kvm, Bts::Emulate));
    assert_eq!(choice.why.lines().count(), 1);
}

#[test]
fn auto_takes_no_kvm_that_is_slow_anywhere() {
    for (cpl0, cpl3) in [(100, 5000), (5000, 100), (2, 9000)] {
        let choice = auto(faithful(cpl0, cpl3));
        assert_eq!((choice.accel, choice.bts), (Accel::Soft, Bts::Emulate));
        assert!(choice.why.contains("slower"), "{}", choice.why);
    }
}

#[test]
fn auto_takes_no_kvm_that_is_not_there_or_not_faithful_or_not_measured() {
    let mut unmeasured = faithful(1000, 1000);
    if let Ok(report) = &mut unmeasured.kvm {
        report.cpl3 = None;
    }
    for (host, word) in [
        (none(), "no /dev/kvm"),
        (unfaithful(), "SYSCALL"),
        (unmeasured, "measured"),
    ] {
        let choice = auto(host);
        assert_eq!(choice.accel, Accel::Soft);
        assert!(choice.why.contains(word), "{}", choice.why);
    }
}

#[test]
fn kvm_by_name_is_taken_or_refused() {
    // Slow is no reason: it was asked for.
    let choice = choose(
        Accelerator::Kvm,
        BtsMode::Auto,
        false,
        &[],
        &mut faithful(1, 1),
    )
    .unwrap();
    assert_eq!(choice.accel, Accel::Kvm);
    let message = refused(Accelerator::Kvm, BtsMode::Auto, unfaithful());
    assert!(
        message.contains("SYSCALL") && message.contains("stays at CPL 3"),
        "{message}"
    );
    let message = refused(Accelerator::Kvm, BtsMode::Auto, none());
    assert!(message.contains("no /dev/kvm"), "{message}");
}

#[test]
fn an_unfaithful_kvm_can_be_had_unchecked_by_name_only() {
    let choice = choose(
        Accelerator::Kvm,
        BtsMode::Auto,
        true,
        &[],
        &mut unfaithful(),
    )
    .unwrap();
    assert_eq!(choice.accel, Accel::Kvm);
    let choice = choose(
        Accelerator::Auto,
        BtsMode::Auto,
        true,
        &[],
        &mut unfaithful(),
    )
    .unwrap();
    assert_eq!(choice.accel, Accel::Soft);
    assert!(choose(Accelerator::Kvm, BtsMode::Auto, true, &[], &mut none()).is_err());
}

#[test]
fn pass_through_is_taken_where_it_works() {
    let mut host = faithful(1000, 1000);
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
fn pass_through_is_refused_where_it_does_not() {
    for accel in [Accelerator::Kvm, Accelerator::Auto] {
        let message = refused(accel, BtsMode::Passthrough, faithful(1000, 1000));
        assert!(message.contains("no branch is stored"), "{message}");
    }
    let mut host = faithful(1000, 1000);
    host.pass_through = Ok(());
    let message = refused(Accelerator::Soft, BtsMode::Passthrough, host);
    assert!(message.contains("needs KVM"), "{message}");
    let message = refused(Accelerator::Auto, BtsMode::Passthrough, none());
    assert!(message.contains("no /dev/kvm"), "{message}");
}

#[test]
fn soft_asks_nothing_of_the_host() {
    struct Nothing;
    impl Host for Nothing {
        fn kvm(&mut self) -> Result<&Report, String> {
            panic!("asked for KVM")
        }
        fn pass_through(&mut self) -> Result<(), NoPassThrough> {
            panic!("asked for pass-through")
        }
        fn soft_speed(&mut self) -> Result<Speed, Failure> {
            panic!("asked for speed")
        }
    }
    let choice = choose(Accelerator::Soft, BtsMode::Auto, false, &[], &mut Nothing).unwrap();
    assert_eq!((choice.accel, choice.bts), (Accel::Soft, Bts::Emulate));
}

#[test]
fn the_software_cpu_has_a_speed() {
    assert!(measure_soft(Duration::from_millis(1)).unwrap() > 0);
}

#[test]
fn kvm_runs_no_guest_with_instructions_that_the_host_lacks() {
    let lacks = ["SSE4.1", "SSE4.2"];
    let host = &mut faithful(1000, 1);
    let failure = choose(Accelerator::Kvm, BtsMode::Auto, false, &lacks, host).unwrap_err();
    assert_eq!(failure.status(), crate::exit::status::HOST);
    let choice = choose(Accelerator::Auto, BtsMode::Auto, false, &lacks, host).unwrap();
    assert_eq!(choice.accel, Accel::Soft);
    assert_eq!(choice.why, "the host's processor has no SSE4.1, SSE4.2");
}
