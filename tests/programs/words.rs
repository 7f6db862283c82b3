// SPDX-License-Identifier: Apache-2.0 OR MIT

// Counts how often each of 100 words is in a list of 2000.
fn count(words: &[String], wanted: &str) -> usize {
    words.iter().filter(|word| *word == wanted).count()
}

fn unused(n: usize) -> usize {
    if n > 10 {
        return n - 10;
    }
    n
}

fn main() {
    let words: Vec<String> = (0..2000).map(|i| format!("w{}", i % 100)).collect();
    let all: usize = (0..100).map(|i| count(&words, &format!("w{i}"))).sum();
    println!("{all}");
}
