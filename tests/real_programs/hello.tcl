proc fibonacci n {expr {$n < 2 ? $n : [fibonacci [expr {$n - 1}]] + [fibonacci [expr {$n - 2}]]}}
puts [lmap n {5 10 12} {fibonacci $n}]
puts [exec echo from a child]
puts [clock format 0 -gmt 1 -format %Y-%m-%d]
