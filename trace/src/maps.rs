//! The mappings of a process, from the text of `/proc/PID/maps`.

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file of `start` in bytes.
    pub offset: u64,
    /// The mapped file: a path, a name such as `[vdso]`, or nothing.
    pub name: String,
}

/// Maximum length of a path in bytes (`PATH_MAX` of Linux). Longer names are no paths.
const MAX_NAME: usize = 4096;

/// Returns the executable mappings in the text of `/proc/PID/maps`, sorted by address. Malformed
/// lines are ignored.
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    let text = String::from_utf8_lossy(text);
    let mut mappings: Vec<Mapping> = text.lines().filter_map(parse_line).collect();
    mappings.sort_by_key(|m| m.start);
    mappings
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let (_device, _inode) = (fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or_default().trim_start();
    let number = |text| u64::from_str_radix(text, 16).ok();
    let mapping = Mapping {
        start: number(start)?,
        end: number(end)?,
        offset: number(offset)?,
        name: name.to_owned(),
    };
    let executable = permissions.contains('x') && mapping.start < mapping.end;
    (executable && name.len() <= MAX_NAME).then_some(mapping)
}

/// The memory that `mappings` take, in bytes.
pub fn bytes(mappings: &[Mapping]) -> usize {
    let names: usize = mappings.iter().map(|mapping| mapping.name.len()).sum();
    size_of_val(mappings) + names
}

/// Returns the mapping that contains `address`. `mappings` are sorted by address.
pub fn find(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|m| m.start <= address);
    mappings
        .get(after.checked_sub(1)?)
        .filter(|m| address < m.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_lines_are_kept() {
        let text = b"\
7f0000003000-7f0000005000 r-xp 00001000 00:12 77                         /lib/a b.so (deleted)
400000-401000 r--p 00000000 00:12 5                              /bin/true
401000-402000 r-xp 00001000 00:12 5                              /bin/true
7ffd1000-7ffd2000 rw-p 00000000 00:00 0                          [stack]
500000-501000 r-xp 00000000 00:00 0 
junk
7ffff000-7fffe000 r-xp 00000000 00:00 0                          [vdso]
";
        let mappings = parse(text);
        let names: Vec<&str> = mappings.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["/bin/true", "", "/lib/a b.so (deleted)"]);
        assert_eq!(find(&mappings, 0x401FFF).unwrap().offset, 0x1000);
        assert_eq!(find(&mappings, 0x402000), None);
        assert_eq!(find(&mappings, 0), None);
        assert_eq!(find(&[], 5), None);
    }

    #[test]
    fn a_name_is_not_longer_than_a_path() {
        let line = |len| format!("1000-2000 r-xp 0 0:0 0 /{}", "x".repeat(len));
        assert_eq!(parse(line(MAX_NAME - 1).as_bytes()).len(), 1);
        assert_eq!(parse(line(MAX_NAME).as_bytes()), []);
    }
}
