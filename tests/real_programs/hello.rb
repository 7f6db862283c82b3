words = %w[one two three four].group_by(&:size)
puts words.map { |size, list| "#{size}: #{list.sort.join(' ')}" }
threads = 3.times.map { |i| Thread.new { (1..100).sum * i } }
puts threads.sum(&:value), 2**100
begin
  Integer('x')
rescue ArgumentError => e
  puts e.message
end
