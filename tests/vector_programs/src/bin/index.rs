//! Finite-state transducers: a dictionary and its searches.
use fst::Automaton as _;
use fst::{IntoStreamer as _, Map, Streamer as _, automaton::Str};
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(31);
    let mut words: Vec<String> = (0..6_000)
        .map(|_| random.text(12).replace('\n', " "))
        .collect();
    words.sort();
    words.dedup();
    let map = Map::from_iter(words.iter().zip(0..)).expect("a map");
    report("map", map.as_fst().as_bytes());
    let mut found = map.search(Str::new("vector").starts_with()).into_stream();
    let (mut count, mut sum) = (0, 0);
    while let Some((_, value)) = found.next() {
        (count, sum) = (count + 1, sum + value);
    }
    println!("{count} {sum} {:?}", map.get(&words[100]));
}
