use std::path::Path;

use super::*;
use crate::records::tests::contents;
use vbts_host::root::Root;

/// A filter of records of one task, whose process has one anonymous mapping.
struct Sample {
    filter: Filter,
    symbols: Symbolizer,
}

impl Sample {
    fn new(filters: Filters, scope: Scope) -> Self {
        let mut symbols = Symbolizer::new(Root::open(Path::new("/")).unwrap(), Path::new("/"));
        let mut filter = Filter::new(filters, scope);
        let maps = b"1000-9000 r-xp 00000000 00:00 0 \nd000-e000 r-xp 0 00:00 0 [vdso]\n";
        let maps = Event::Maps {
            process: 1,
            text: maps.into(),
        };
        filter.event(&Task::default(), &maps, &mut symbols);
        Self { filter, symbols }
    }

    /// What is left of branches: those with their addresses, gaps with their sizes and 0.
    /// The texts of the notes.
    fn notes(&self) -> Vec<String> {
        let notes = self.filter.notes().into_iter();
        notes.map(|note| note.text).collect()
    }

    fn pass(&mut self, branches: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let branches: Vec<_> = branches
            .iter()
            .map(|(from, to)| branch(*from, *to))
            .collect();
        let kept = self.filter.branches(&task(), &branches, &mut self.symbols);
        let pair = |record| match record {
            Ok(Branch { from, to }) => (from, to),
            Err(Event::Filtered(branches)) => (branches, 0),
            Err(event) => panic!("{event:?}"),
        };
        contents(kept).into_iter().map(pair).collect()
    }
}

/// The task of all branches.
fn task() -> Task {
    Task {
        number: 7,
        process: 1,
        ..Task::default()
    }
}

fn branch(from: u64, to: u64) -> Branch {
    Branch { from, to }
}

fn window(start: Option<&str>, stop: Option<&str>) -> Filters {
    let point = |text: &str| text.parse().unwrap();
    Filters {
        start: start.map(point),
        stop: stop.map(point),
        ..Filters::default()
    }
}

const K: u64 = 0xFFFF_FFFF_8100_0000;

#[test]
fn a_trace_begins_with_the_branch_that_leads_to_its_start() {
    let mut sample = Sample::new(window(Some("0x2000"), Some("0x4000")), Scope::User);
    let branches = [
        (0x1010, 0x1000),
        (0x1010, 0x2000),
        (0x2010, 0x3000),
        (0x3010, 0x4000),
        (0x4010, 0x2000),
    ];
    let expected = [(1, 0), (0x1010, 0x2000), (0x2010, 0x3000), (0x3010, 0x4000)];
    assert_eq!(sample.pass(&branches), expected);
    assert_eq!(sample.filter.gap(7), Some(1));
    assert_eq!(sample.filter.gap(7), None);
    assert_eq!(sample.filter.filtered(), 2);
    assert_eq!(sample.notes(), [""; 0]);
}

#[test]
fn a_point_is_reached_without_a_branch() {
    let mut sample = Sample::new(window(Some("0x2008"), Some("0x3008")), Scope::User);
    let branches = [(0x1010, 0x2000), (0x2010, 0x3000), (0x3010, 0x1000)];
    assert_eq!(sample.pass(&branches), [(1, 0), (0x2010, 0x3000)]);
    // The straight line ends before it.
    let mut sample = Sample::new(window(Some("0x2008"), None), Scope::User);
    assert_eq!(sample.pass(&[(0x1010, 0x2000), (0x2004, 0x1000)]), []);
    assert_eq!(
        sample.notes(),
        ["--start 0x2008: the program has not reached it"]
    );
}

#[test]
fn the_nth_time_counts_and_interruptions_do_not() {
    let mut sample = Sample::new(window(Some("0x2000#3"), None), Scope::User);
    // A fault at the point, the first time and the third one: the kernel returns to it.
    let branches = [
        (0x1010, 0x2000),
        (K, 0x2000),
        (K, 0x2004),
        (0x2010, 0x1FF0),
        // It is on the line here, and an interrupt comes before it.
        (K, 0x2000),
        (0x2010, 0x2000),
        (K, 0x2000),
        (0x2010, 0x1000),
    ];
    assert_eq!(
        sample.pass(&branches),
        [(2, 0), (0x2010, 0x2000), (0x2010, 0x1000)]
    );
    let mut sample = Sample::new(window(Some("0x2000#3"), None), Scope::User);
    assert_eq!(sample.pass(&branches[..4]), []);
    assert_eq!(
        sample.notes(),
        ["--start 0x2000#3: the program has reached it only once"]
    );
}

#[test]
fn with_the_kernel_a_fault_at_a_point_is_not_a_second_time() {
    let mut sample = Sample::new(window(Some("0x2000#2"), None), Scope::All);
    let branches = [
        (0x1010, 0x2000),
        (0x2000, K),
        (K + 4, 0x2000),
        // A system call at the point, which is on the line.
        (0x2010, 0x1FF0),
        (0x2000, K),
        (K + 4, 0x2002),
        (0x2010, 0x1000),
    ];
    assert_eq!(
        sample.pass(&branches),
        [(5, 0), (K + 4, 0x2002), (0x2010, 0x1000)]
    );
    let mut sample = Sample::new(window(Some(&format!("{:#x}", K + 4)), None), Scope::All);
    let branches = [(0x1010, 0x2000), (0x2000, K), (K + 8, 0x2000)];
    assert_eq!(sample.pass(&branches), [(2, 0), (K + 8, 0x2000)]);
}

#[test]
fn one_iteration_has_one_point() {
    let mut sample = Sample::new(window(Some("0x2000"), Some("0x2000")), Scope::User);
    let branches = [
        (0x1010, 0x2000),
        (0x2010, 0x3000),
        (0x3010, 0x2000),
        (0x2010, 0x3000),
    ];
    assert_eq!(sample.pass(&branches), branches[..3]);
}

#[test]
fn objects_are_touched_or_contain_a_branch() {
    let object = |text: &str| vec![text.parse().unwrap()];
    let branches = [
        (0x1010, 0x1000),
        (0x1010, 0x2000),
        (0x2010, 0x2000),
        (0x2010, 0x1000),
        (0x1010, 0xD000),
    ];
    let filters = Filters {
        only: object("0x2000-0x3000"),
        ..Filters::default()
    };
    let mut sample = Sample::new(filters, Scope::User);
    let expected = [(1, 0), branches[1], branches[2], branches[3]];
    assert_eq!(sample.pass(&branches), expected);
    let filters = Filters {
        skip: object("0x2000-0x3000"),
        ..Filters::default()
    };
    let mut sample = Sample::new(filters, Scope::User);
    let expected = [branches[0], branches[1], (1, 0), branches[3], branches[4]];
    assert_eq!(sample.pass(&branches), expected);
    let filters = Filters {
        only: object("[vdso]"),
        skip: object("nothing"),
        ..Filters::default()
    };
    let mut sample = Sample::new(filters, Scope::User);
    assert_eq!(sample.pass(&branches), [(4, 0), branches[4]]);
    assert_eq!(
        sample.notes(),
        ["--skip nothing: no file that was mapped has such a function, or is such a module"]
    );
}

#[test]
fn a_number_of_branches_or_a_signal_ends_the_trace() {
    let branches = [(0x1010, 0x1000); 5];
    let filters = Filters {
        max_records: Some(2),
        until_signal: Some(10),
        ..Filters::default()
    };
    let mut sample = Sample::new(filters.clone(), Scope::User);
    assert_eq!(sample.pass(&branches), branches[..2]);
    assert_eq!(sample.filter.filtered(), 3);
    let mut sample = Sample::new(filters, Scope::User);
    assert_eq!(sample.pass(&branches[..1]), branches[..1]);
    sample.filter.signal(12);
    assert_eq!(sample.pass(&branches[..1]), branches[..1]);
    let mut sample = Sample::new(
        Filters {
            until_signal: Some(10),
            ..Filters::default()
        },
        Scope::User,
    );
    sample.filter.signal(10);
    assert_eq!(sample.pass(&branches), []);
    assert_eq!(sample.filter.filtered(), 5);
}

#[test]
fn returns_from_the_kernel_are_no_branches_of_the_program() {
    let filters = window(None, Some("0x9999"));
    let branches = [(0x1010, 0x1000), (K, 0x1000)];
    let mut sample = Sample::new(filters.clone(), Scope::User);
    assert_eq!(sample.pass(&branches), branches[..1]);
    let mut sample = Sample::new(filters, Scope::All);
    assert_eq!(sample.pass(&branches), branches);
}
