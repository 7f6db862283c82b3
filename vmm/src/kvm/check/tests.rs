use super::code::{Code, code, trap};
use super::*;
use std::collections::BTreeSet;

#[test]
fn every_guest_fits_its_page() {
    const PAGE: usize = 4096;
    for guest in GUESTS {
        let code = (guest.code)();
        assert!(!code.is_empty() && code.len() <= PAGE, "{}", guest.name);
    }
    for row in ROWS {
        let code = (row.code)();
        assert!(!code.is_empty() && code.len() <= PAGE / 2, "{}", row.name);
    }
}

#[test]
fn code_is_assembled_as_written() {
    let code: Code = code!("mov eax, {value}", trap!("int3"); value = 0x1234);
    // mov eax, 0x1234; lea r14, [rip + 1]; int3
    let bytes = [0xB8, 0x34, 0x12, 0, 0, 0x4C, 0x8D, 0x35, 1, 0, 0, 0, 0xCC];
    assert_eq!(code(), bytes);
}

#[test]
fn every_check_has_its_own_name() {
    let names: BTreeSet<_> = GUESTS.iter().map(|g| g.name).collect();
    assert_eq!(names.len(), GUESTS.len());
    let names: BTreeSet<_> = ROWS.iter().map(|r| r.name).collect();
    assert_eq!(names.len(), ROWS.len());
}

#[test]
fn the_first_failure_is_reported() {
    let mut report = Report::default();
    assert!(!report.passed(), "a report without checks has not passed");
    assert!(add_result(&mut report, "first", Ok(())));
    assert!(report.passed());
    assert!(add_result(
        &mut report,
        "second",
        Err(CheckFailure::Outcome("bad".into()))
    ));
    assert!(!add_result(
        &mut report,
        "third",
        Err(CheckFailure::Stuck("worse".into()))
    ));
    assert!(!report.passed());
    assert_eq!(report.failure(), Some(("second", "bad")));
    let last = report.checks.last().unwrap();
    assert!(
        last.outcome
            .clone()
            .unwrap_err()
            .contains("no further checks")
    );
}
