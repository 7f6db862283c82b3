//! Exact counts of a run, and their difference from those of another.

use std::collections::BTreeMap;
use std::io;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};
use vbts_trace::profile::Watch;
use vbts_trace::profile::modules::Modules;
use vbts_trace::profile::tree::Label;

use super::functions::rows_by_function;
use super::{Loaded, Names, Out, percent};

/// Functions and tasks that the text shows.
const SHOWN: usize = 10;

/// Instructions and taken branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Executed {
    /// Instructions.
    pub instructions: u64,
    /// Taken branches.
    pub branches: u64,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStat {
    /// Thread ID.
    pub id: u32,
    /// Process ID.
    pub process: u32,
    /// Name of the last program that the task has executed.
    pub program: String,
    /// Counts of the task.
    #[serde(flatten)]
    pub executed: Executed,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStat {
    /// Name, or module and offset.
    pub name: String,
    /// The last part of its file's path.
    pub module: String,
    /// Number of calls.
    pub calls: u64,
    /// Instructions with those of callees.
    pub total: u64,
    /// Counts of the function without its callees.
    #[serde(flatten)]
    pub executed: Executed,
}

/// The counts of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stat {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Counts of programs.
    pub user: Executed,
    /// Counts of the kernel, if its branches were recorded.
    pub kernel: Executed,
    /// Number of calls.
    pub calls: u64,
    /// The tasks, in the order in which they began.
    pub tasks: Vec<TaskStat>,
    /// The functions, those with most instructions first.
    pub functions: Vec<FunctionStat>,
}

impl Stat {
    /// The counts of a profile of `command`.
    pub fn of<W: Watch>(profile: &mut Loaded<W>, command: &[String]) -> Self {
        let names = Names::of(profile);
        let mut stat = Self {
            command: command.to_vec(),
            ..Self::default()
        };
        for (id, row) in rows_by_function(profile) {
            let name = names.function(id);
            let executed = Executed {
                instructions: row.instructions,
                branches: row.branches,
            };
            let level = match name.module {
                Modules::KERNEL => &mut stat.kernel,
                _ => &mut stat.user,
            };
            level.instructions += executed.instructions;
            level.branches += executed.branches;
            if !profile.functions().is_linkage(id) {
                stat.calls += row.calls;
            }
            stat.functions.push(FunctionStat {
                name: name.name.clone(),
                module: names.short_module(name.module).to_owned(),
                calls: row.calls,
                total: row.total,
                executed,
            });
        }
        // What tasks have executed outside of functions, such as the handlers of signals.
        for node in profile.tree().nodes() {
            if matches!(node.label, Label::Program(_) | Label::Signal) {
                stat.user.instructions += node.instructions;
                stat.user.branches += node.branches;
            }
        }
        stat.functions.sort_by(|a, b| {
            let by_count = b.executed.instructions.cmp(&a.executed.instructions);
            by_count.then_with(|| (&a.module, &a.name).cmp(&(&b.module, &b.name)))
        });
        let tasks = profile.tasks().iter().map(|(_, task)| TaskStat {
            id: task.id,
            process: task.process,
            program: names.program(task.name()).to_owned(),
            executed: Executed {
                instructions: task.instructions,
                branches: task.branches,
            },
        });
        stat.tasks = tasks.collect();
        stat
    }

    /// Instructions of programs and of the kernel.
    pub fn instructions(&self) -> u64 {
        self.user.instructions + self.kernel.instructions
    }

    fn branches(&self) -> u64 {
        self.user.branches + self.kernel.branches
    }

    /// By how many percent this run has executed more instructions than `before`; negative if
    /// fewer.
    pub fn growth_since(&self, before: &Self) -> f64 {
        let (now, then) = (self.instructions() as f64, before.instructions() as f64);
        100.0 * (now - then) / then.max(1.0)
    }

    /// Writes the counts for people.
    ///
    /// # Errors
    /// The output fails.
    pub fn text(&self, out: &mut Out<'_>) -> io::Result<()> {
        let whole = self.instructions();
        writeln!(out, "Counts of {}:\n", self.command.join(" "))?;
        let mut row = |count: u64, what: &str| writeln!(out, "{:>18}  {what}", grouped(count));
        row(whole, "instructions")?;
        if self.kernel.instructions > 0 {
            row(self.user.instructions, "  in programs")?;
            row(self.kernel.instructions, "  in the kernel")?;
        }
        row(self.branches(), "taken branches")?;
        row(self.calls, "calls")?;
        let tasks = self.tasks.len() as u64;
        row(tasks, if tasks == 1 { "task" } else { "tasks" })?;
        if self.tasks.len() > 1 {
            writeln!(
                out,
                "\n{:>18} {:>7} {:>8}  program",
                "instructions", "", "task"
            )?;
            let mut tasks: Vec<&TaskStat> = self.tasks.iter().collect();
            tasks.sort_by_key(|task| std::cmp::Reverse(task.executed.instructions));
            for task in tasks.iter().take(SHOWN) {
                let count = task.executed.instructions;
                writeln!(
                    out,
                    "{:>18} {:>6.1}% {:>8}  {}",
                    grouped(count),
                    percent(count, whole),
                    task.id,
                    task.program
                )?;
            }
        }
        writeln!(
            out,
            "\n{:>18} {:>7} {:>14}  function",
            "instructions", "", "calls"
        )?;
        for function in self.functions.iter().take(SHOWN) {
            let count = function.executed.instructions;
            writeln!(
                out,
                "{:>18} {:>6.1}% {:>14}  {} ({})",
                grouped(count),
                percent(count, whole),
                grouped(function.calls),
                function.name,
                function.module
            )?;
        }
        Ok(())
    }

    /// Writes for people what this run has executed more or less often than `before`.
    ///
    /// # Errors
    /// The output fails.
    pub fn compare(&self, before: &Self, out: &mut Out<'_>) -> io::Result<()> {
        writeln!(out, "\n{:>18} {:>18} {:>18}", "before", "now", "difference")?;
        let mut row = |then: u64, now: u64, what: &str| {
            let difference = i128::from(now) - i128::from(then);
            writeln!(
                out,
                "{:>18} {:>18} {difference:>+18}  {what}",
                grouped(then),
                grouped(now)
            )
        };
        row(before.instructions(), self.instructions(), "instructions")?;
        row(before.branches(), self.branches(), "taken branches")?;
        row(before.calls, self.calls, "calls")?;
        let counts = |stat: &Self| -> BTreeMap<(String, String), u64> {
            let mut counts = BTreeMap::new();
            for function in &stat.functions {
                let key = (function.module.clone(), function.name.clone());
                *counts.entry(key).or_default() += function.executed.instructions;
            }
            counts
        };
        let (then, now) = (counts(before), counts(self));
        let keys = then
            .keys()
            .chain(now.keys().filter(|key| !then.contains_key(*key)));
        let of = |counts: &BTreeMap<_, u64>, key| counts.get(key).copied().unwrap_or(0);
        let mut changes: Vec<_> = keys
            .map(|key| (key, of(&then, key), of(&now, key)))
            .filter(|(_, then, now)| then != now)
            .collect();
        changes.sort_by_key(|(key, then, now)| (std::cmp::Reverse(then.abs_diff(*now)), *key));
        for ((module, name), then, now) in changes.iter().take(SHOWN) {
            row(*then, *now, &format!("  {name} ({module})"))?;
        }
        Ok(())
    }
}

/// A number with a comma before each group of three digits.
fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Writes the counts of a profile of `command`: for people, or as a JSON object.
///
/// # Errors
/// The output fails.
pub fn stat<W: Watch>(
    profile: &mut Loaded<W>,
    command: &[String],
    as_json: bool,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let stat = Stat::of(profile, command);
    match as_json {
        true => writeln!(out, "{}", serde_json::to_string(&stat)?),
        false => stat.text(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, instructions: u64) -> Stat {
        let executed = Executed {
            instructions,
            branches: 7,
        };
        Stat {
            command: vec!["a".into()],
            user: executed,
            functions: vec![FunctionStat {
                name: name.into(),
                module: "a".into(),
                calls: 1,
                total: instructions,
                executed,
            }],
            ..Stat::default()
        }
    }

    #[test]
    fn digits_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn counts_make_a_round_trip_and_are_compared() {
        let (before, now) = (stat("f", 1000), stat("g", 1010));
        let json = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Stat>(&json).unwrap(), before);
        assert_eq!(now.growth_since(&before), 1.0);
        let mut text = Vec::new();
        now.compare(&before, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("1,000              1,010                +10  instructions"),
            "{text}"
        );
        let (g, f) = (text.find("  g (a)").unwrap(), text.find("  f (a)").unwrap());
        assert!(g < f, "{text}");
    }
}
