//! simd-json beside serde_json.
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(24);
    let entries: Vec<_> = (0..900)
        .map(|id| {
            serde_json::json!({
                "id": id, "name": random.text(30), "weight": random.real() * 1e9,
                "tags": [random.below(2) == 0, null_or(random.below(3)), {"deep": [[], [1, -2]]}],
            })
        })
        .collect();
    let text = serde_json::to_string(&entries).expect("a text");
    report("text", &text);
    let mut bytes = text.clone().into_bytes();
    let value: serde_json::Value = simd_json::serde::from_slice(&mut bytes).expect("a value");
    println!("{}", value == serde_json::Value::Array(entries));
    report(
        "pretty",
        serde_json::to_string_pretty(&value).expect("a text"),
    );
    for wrong in ["[1,2", "{\"a\":tru}", "[\"\\u12\"]", "[0x1]"] {
        let mut bytes = wrong.as_bytes().to_vec();
        println!("{}", simd_json::to_borrowed_value(&mut bytes).is_err());
    }
}

fn null_or(number: u32) -> Option<u32> {
    (number > 0).then_some(number)
}
