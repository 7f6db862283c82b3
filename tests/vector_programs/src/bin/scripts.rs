//! The interpreter Rhai.
fn main() -> Result<(), Box<rhai::EvalAltResult>> {
    let script = r#"
        fn fibonacci(n) { if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) } }
        let words = #{};
        for word in "the trace of a branch is the branch of the trace".split(" ") {
            words[word] = if word in words { words[word] + 1 } else { 1 };
        }
        let sum = 0.0;
        for i in 1..3000 { sum += (i.to_float() / 7.0).sin() * (i % 13).to_float().sqrt(); }
        `${fibonacci(16)} ${words.keys().len()} ${words.the} ${sum}`
    "#;
    println!("{}", rhai::Engine::new().eval::<String>(script)?);
    Ok(())
}
