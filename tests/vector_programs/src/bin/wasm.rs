//! WebAssembly in the interpreter wasmi.
use wasmi::{Engine, Linker, Module, Store};

fn main() -> Result<(), wasmi::Error> {
    let text = r#"(module
        (memory 1)
        (func (export "run") (param $n i32) (result i64) (local $i i32) (local $sum i64)
            (loop $next
                (i32.store (i32.and (i32.mul (local.get $i) (i32.const 12)) (i32.const 65532))
                    (i32.rotl (local.get $i) (i32.const 7)))
                (local.set $sum (i64.add (local.get $sum) (i64.mul
                    (i64.extend_i32_s (i32.load (i32.and (local.get $i) (i32.const 65532))))
                    (i64.trunc_f64_s (f64.sqrt (f64.convert_i32_u (local.get $i)))))))
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $next (i32.lt_u (local.get $i) (local.get $n))))
            (local.get $sum)))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, &wat::parse_str(text).expect("a module"))?;
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine)
        .instantiate(&mut store, &module)?
        .start(&mut store)?;
    let run = instance.get_typed_func::<i32, i64>(&store, "run")?;
    for n in [1, 1_000, 100_000] {
        println!("{}", run.call(&mut store, n)?);
    }
    Ok(())
}
