//! Lua 5.4 (C): its interpreter, strings, tables and mathematics.
fn main() -> mlua::Result<()> {
    let lua = mlua::Lua::new();
    let chunk = r#"
        local function sieve(n)
            local composite, primes = {}, {}
            for i = 2, n do
                if not composite[i] then
                    primes[#primes + 1] = i
                    for j = i * i, n, i do composite[j] = true end
                end
            end
            return primes
        end
        local lines, primes = {}, sieve(20000)
        lines[1] = #primes .. " " .. primes[#primes]
        local sum = 0.0
        for i = 1, 20000 do sum = sum + math.sin(i) * math.exp(-i / 5000) / (i % 7 + 0.5) end
        lines[2] = string.format("%.17g %a", sum, sum)
        local words = {}
        for word in ("the processor stores each branch of the trace "):rep(90):gmatch("%a+") do
            words[word] = (words[word] or 0) + 1
        end
        local names = {}
        for word in pairs(words) do names[#names + 1] = word .. words[word] end
        table.sort(names)
        lines[3] = table.concat(names, ","):gsub("%d+", function(d) return d * 3 end)
        return table.concat(lines, "\n")
    "#;
    println!("{}", lua.load(chunk).eval::<String>()?);
    Ok(())
}
