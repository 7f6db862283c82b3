//! memchr, Aho-Corasick (Teddy) and regular expressions.
use aho_corasick::AhoCorasick;
use vector_programs::Random;

fn main() {
    let text = Random::new(25).text(200_000);
    let bytes = text.as_bytes();
    println!(
        "{} {:?}",
        memchr::memchr_iter(b'9', bytes).count(),
        memchr::memrchr2(b'z', b'7', bytes)
    );
    println!(
        "{}",
        memchr::memmem::find_iter(bytes, "vector lane").count()
    );
    let words =
        AhoCorasick::new(["branch", "registers", "trace7", "of a", "\u{2192}"]).expect("words");
    println!(
        "{}",
        words
            .find_iter(&text)
            .map(|m| m.start() * m.pattern().as_usize())
            .sum::<usize>()
    );
    for pattern in [
        r"(?i)TRACE\d+",
        r"\b(\w+) \1?lane$",
        r"[a-f]{3,}\s+\p{L}+",
        r"größer|store.a",
    ] {
        match regex::RegexBuilder::new(pattern).multi_line(true).build() {
            Ok(regex) => println!(
                "{pattern}: {}",
                regex.find_iter(&text).map(|m| m.end()).sum::<usize>()
            ),
            Err(_) => println!("{pattern}: not regular"),
        }
    }
    println!(
        "{}",
        text.to_uppercase()
            .chars()
            .rev()
            .filter(|c| c.is_alphabetic())
            .count()
    );
}
