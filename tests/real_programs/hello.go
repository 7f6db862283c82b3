package main

import (
	"fmt"
	"os"
	"sync"
)

func main() {
	results := make(chan int)
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			results <- n * n
		}(i)
	}
	go func() {
		group.Wait()
		close(results)
	}()
	sum := 0
	for n := range results {
		sum += n
	}
	fmt.Println("Hello from Go:", sum)
	os.Exit(4)
}
