package main

import "testing"

func TestSquare(t *testing.T) {
	if 7*7 != 49 {
		t.Fatal("7 * 7")
	}
}
