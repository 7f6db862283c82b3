//! Patterns as the shell has them: `*`, `?` and `[...]`.

/// Whether all of `name` matches `pattern`. A bracket that is not closed stands for itself.
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // The last star, and where the text that it stands for ends so far.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(p..).unwrap_or_default();
        let next = name.get(n).copied();
        if rest.first() == Some(&'*') {
            star = Some((p + 1, n));
            p += 1;
            continue;
        }
        match (one(rest, next), next) {
            (Some(length), Some(_)) => {
                p += length;
                n += 1;
            }
            (_, None) if rest.is_empty() => return true,
            _ => match star {
                // It stands for one more.
                Some((after, end)) if end < name.len() => {
                    star = Some((after, end + 1));
                    (p, n) = (after, end + 1);
                }
                _ => return false,
            },
        }
    }
}

/// The length of the piece of a pattern that matches the character.
fn one(pattern: &[char], character: Option<char>) -> Option<usize> {
    let character = character?;
    match pattern.first()? {
        '?' => Some(1),
        '[' => match set(pattern, character) {
            Some((true, length)) => Some(length),
            Some((false, _)) => None,
            None => (character == '[').then_some(1),
        },
        literal => (*literal == character).then_some(1),
    }
}

/// Whether the character is in the set that the pattern starts with, and the length of that.
fn set(pattern: &[char], character: char) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = if negated { 2 } else { 1 };
    let (mut i, mut found) = (first, false);
    loop {
        let low = *pattern.get(i)?;
        // A bracket that closes at once is one of the set.
        if low == ']' && i > first {
            return Some((found != negated, i + 1));
        }
        match (pattern.get(i + 1), pattern.get(i + 2)) {
            (Some('-'), Some(high)) if *high != ']' => {
                found |= (low..=*high).contains(&character);
                i += 3;
            }
            _ => {
                found |= low == character;
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_are_the_shells() {
        for (pattern, name) in [
            ("", ""),
            ("a.b", "a.b"),
            ("*", ""),
            ("*", "a.b"),
            ("a*", "a.b"),
            ("*.b", "a.b"),
            ("*a*b*", "xxaxxbxx"),
            ("*ab", "aab"),
            ("a?c", "abc"),
            ("2007-1[12].*", "2007-12.wrap"),
            ("[!a]b", "cb"),
            ("[^a]b", "cb"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("a[", "a["),
            ("**", "x"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("a", ""),
            ("a", "ab"),
            ("ab", "a"),
            ("a*c", "ab"),
            ("a?c", "ac"),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            ("[a", "a"),
            ("*.b", "a.bc"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!matches(
            &format!("{}b", "*a".repeat(30)),
            &"a".repeat(5000)
        ));
    }
}
