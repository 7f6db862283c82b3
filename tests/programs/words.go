// SPDX-License-Identifier: Apache-2.0 OR MIT

// Counts how often each of 100 words is in a list of 2000, in four goroutines.
package main

import (
	"fmt"
	"sync"
)

//go:noinline
func count(words []string, wanted string) int {
	n := 0
	for _, word := range words {
		if word == wanted {
			n++
		}
	}
	return n
}

func main() {
	var words []string
	for i := 0; i < 2000; i++ {
		words = append(words, fmt.Sprintf("w%d", i%100))
	}
	var group sync.WaitGroup
	sums := make([]int, 4)
	for worker := range sums {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for i := worker; i < 100; i += len(sums) {
				sums[worker] += count(words, fmt.Sprintf("w%d", i))
			}
		}(worker)
	}
	group.Wait()
	all := 0
	for _, sum := range sums {
		all += sum
	}
	fmt.Println(all)
}
