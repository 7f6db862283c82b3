// SPDX-License-Identifier: Apache-2.0 OR MIT

// Goroutines, interfaces and panics, in numbers that are easy to know.
package main

import "fmt"

type shape interface{ area(size int) int }
type square struct{}
type line struct{}

//go:noinline
func (square) area(size int) int { return size * size }

//go:noinline
func (line) area(size int) int { return 0 }

//go:noinline
func refuseOdd(number int) {
	if number%2 == 1 {
		panic("odd")
	}
}

//go:noinline
func isOdd(number int) (result int) {
	defer func() {
		if recover() != nil {
			result = 1
		}
	}()
	refuseOdd(number)
	return 0
}

//go:noinline
func worker(in, out chan int) {
	for number := range in {
		out <- number + 1
	}
}

func main() {
	shapes := []shape{square{}, line{}, square{}}
	sum := 0
	for i := 0; i < 30; i++ {
		sum += shapes[i%3].area(i)
	}
	for i := 0; i < 10; i++ {
		sum += isOdd(i)
	}
	in, out := make(chan int), make(chan int)
	for i := 0; i < 3; i++ {
		go worker(in, out)
	}
	for i := 0; i < 20; i++ {
		in <- i
		sum += <-out
	}
	fmt.Println(sum)
}
