//! What differs between several kernels: the cases whose outcome is not the same on all of them.

use super::Outcome;

/// The outcomes of the same cases on several kernels.
#[derive(Debug, Default)]
pub struct Comparison {
    kernels: Vec<String>,
    /// The cases in the order in which they first ended.
    cases: Vec<Compared>,
}

/// A case, and the outcome on each kernel that has run it.
#[derive(Debug)]
struct Compared {
    name: String,
    /// Index of the kernel, and the outcome.
    outcomes: Vec<(usize, &'static str)>,
}

impl Comparison {
    /// The outcomes that follow are those of the kernel `name`.
    pub fn add_kernel(&mut self, name: &str) {
        self.kernels.push(name.to_owned());
    }

    /// Adds the outcome of a case on the last kernel.
    pub fn add(&mut self, name: &str, outcome: &Outcome) {
        let outcome = (self.kernels.len().saturating_sub(1), outcome.name());
        match self.cases.iter_mut().find(|case| case.name == name) {
            Some(case) => case.outcomes.push(outcome),
            None => self.cases.push(Compared {
                name: name.to_owned(),
                outcomes: vec![outcome],
            }),
        }
    }

    /// Number of kernels.
    pub fn kernels(&self) -> usize {
        self.kernels.len()
    }

    /// A line for each case whose outcome differs between the kernels, or that some do not have.
    pub fn differences(&self) -> Vec<String> {
        let differing = self.cases.iter().filter_map(|case| {
            let on = |kernel: usize| {
                let mut outcomes = case.outcomes.iter();
                let found = outcomes.find(|(number, _)| *number == kernel);
                found.map_or("no such case", |(_, outcome)| *outcome)
            };
            let outcomes: Vec<&str> = (0..self.kernels.len()).map(on).collect();
            if outcomes
                .iter()
                .all(|outcome| Some(outcome) == outcomes.first())
            {
                return None;
            }
            let named = outcomes.iter().zip(&self.kernels);
            let named: Vec<String> = named
                .map(|(outcome, kernel)| format!("{outcome} ({kernel})"))
                .collect();
            Some(format!("{}: {}", case.name, named.join(", ")))
        });
        differing.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_with_different_outcomes_are_named() {
        let mut comparison = Comparison::default();
        comparison.add_kernel("old");
        comparison.add("a.same", &Outcome::Passed);
        comparison.add("a.worse", &Outcome::Passed);
        comparison.add("2007-11.x", &Outcome::Skipped("why".into()));
        comparison.add_kernel("new");
        comparison.add("a.same", &Outcome::Passed);
        comparison.add("a.worse", &Outcome::Crashed("why".into()));
        assert_eq!(
            comparison.differences(),
            [
                "a.worse: passed (old), crashed (new)",
                "2007-11.x: skipped (old), no such case (new)"
            ]
        );
        assert_eq!(comparison.kernels(), 2);
    }
}
