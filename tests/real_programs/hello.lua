local words = {}
for word in ("one two three four"):gmatch("%a+") do words[#words + 1] = word end
table.sort(words)
print(table.concat(words, " "), 2 ^ 53, ("%5.2f"):format(math.pi))
local generate = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i * i) end end)
print(generate(), generate(), generate())
