//! Parts of the suite that run as jobs of their own.

use std::fmt;
use std::str::FromStr;

/// A part of all cases: those whose names' hashes, modulo `count`, are `index - 1`. A case stays in
/// its part when others are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Number of the part, from 1 on.
    index: u32,
    /// Number of parts.
    count: u32,
}

impl Shard {
    /// Parses the value of `--shard`: `I/N`, or `auto` for what the environment says.
    ///
    /// # Errors
    /// The text is not of this form, or the environment names no part.
    pub fn of_option(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Self::from_environment(|name| std::env::var(name).ok()),
            text => text.parse(),
        }
    }

    fn new(index: u32, count: u32) -> Result<Self, String> {
        match (1..=count).contains(&index) {
            true => Ok(Self { index, count }),
            false => Err(format!("there is no part {index} of {count}")),
        }
    }

    /// The part of a task of a Slurm array, a pod of an indexed job of Kubernetes, or a parallel
    /// job of GitLab.
    fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let number = |name: &str| -> Result<Option<u32>, String> {
            let number = get(name).map(|text| text.parse());
            number
                .transpose()
                .map_err(|_| format!("{name} is no number"))
        };
        let needed = |name: &str| number(name)?.ok_or_else(|| format!("{name} is not set"));
        if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            let offset = id.checked_sub(needed("SLURM_ARRAY_TASK_MIN")?);
            let count = needed("SLURM_ARRAY_TASK_COUNT")?;
            let index = offset.filter(|offset| offset.is_multiple_of(step));
            let index = index.and_then(|offset| (offset / step).checked_add(1));
            return Self::new(
                index.ok_or("the IDs of the array have no equal distances")?,
                count,
            );
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            return Self::new(index.saturating_add(1), needed("JOB_COMPLETIONS")?);
        }
        if let Some(index) = number("CI_NODE_INDEX")? {
            return Self::new(index, needed("CI_NODE_TOTAL")?);
        }
        Err(
            "the environment has none of SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX and \
             CI_NODE_INDEX"
                .into(),
        )
    }

    /// Whether the case `name` belongs to this part.
    pub fn has(self, name: &str) -> bool {
        hash(name) % u64::from(self.count) == u64::from(self.index - 1)
    }

    /// Number of the part, from 1 on.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Number of parts.
    pub fn count(self) -> u32 {
        self.count
    }
}

impl FromStr for Shard {
    type Err = String;

    /// Parses `I/N`.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text
            .split_once('/')
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        let (index, count) = numbers.ok_or("it is I/N or 'auto'")?;
        Self::new(index, count)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The 64-bit FNV-1a hash of `text`. Its low bits depend on the low bits of the bytes only, so that
/// the upper half is added to them.
fn hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    fnv ^ (fnv >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_number_of_a_number() {
        let shard = Shard::of_option("2/3").unwrap();
        assert_eq!((shard.index(), shard.count()), (2, 3));
        assert_eq!(shard.to_string(), "2/3");
        for bad in ["", "2", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/2/3", "auto"] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_case_is_in_one_part() {
        let names: Vec<String> = (0..1000).map(|n| format!("group.case_{n}")).collect();
        for count in [1, 2, 3, 7, 16] {
            let shards: Vec<Shard> = (1..=count)
                .map(|index| Shard::new(index, count).unwrap())
                .collect();
            for name in &names {
                assert_eq!(shards.iter().filter(|shard| shard.has(name)).count(), 1);
            }
            for shard in shards {
                let size = names.iter().filter(|name| shard.has(name)).count();
                let fair = 1000 / count as usize;
                assert!((fair / 2..=fair * 2).contains(&size), "{shard}: {size}");
            }
        }
    }

    /// A job that runs again, with a later vbts, must run the same cases.
    #[test]
    fn the_part_of_a_name_never_changes() {
        let part = |name| (1..=5).find(|index| Shard::new(*index, 5).unwrap().has(name));
        let parts = ["basic.wrap", "signal.overflow", "smp.exec"].map(part);
        assert_eq!(parts, [Some(2), Some(3), Some(5)]);
    }

    #[test]
    fn the_environment_names_a_part() {
        let of = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                let mut variables = variables.iter();
                let found = variables.find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            Shard::from_environment(get).map(|shard| shard.to_string())
        };
        let slurm = |id, min, count, step| {
            of(&[
                ("SLURM_ARRAY_TASK_ID", id),
                ("SLURM_ARRAY_TASK_MIN", min),
                ("SLURM_ARRAY_TASK_COUNT", count),
                ("SLURM_ARRAY_TASK_STEP", step),
            ])
        };
        assert_eq!(slurm("0", "0", "4", "1").unwrap(), "1/4");
        assert_eq!(slurm("7", "1", "4", "2").unwrap(), "4/4");
        assert!(slurm("2", "1", "4", "2").is_err());
        assert!(slurm("7", "1", "3", "1").is_err());
        let kubernetes = [("JOB_COMPLETION_INDEX", "2"), ("JOB_COMPLETIONS", "3")];
        assert_eq!(of(&kubernetes).unwrap(), "3/3");
        assert!(of(&kubernetes[..1]).is_err());
        let gitlab = [("CI_NODE_INDEX", "2"), ("CI_NODE_TOTAL", "3")];
        assert_eq!(of(&gitlab).unwrap(), "2/3");
        assert!(of(&[("CI_NODE_INDEX", "x"), ("CI_NODE_TOTAL", "3")]).is_err());
        assert!(of(&[]).is_err());
    }
}
