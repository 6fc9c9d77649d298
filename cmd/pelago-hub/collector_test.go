package main

import "testing"

func TestLimit(t *testing.T) {
	for live, want := range map[uint64]int64{0: 416, 100: 416, 296: 416, 400: 624, 4000: 7824} {
		if got := limit(live<<20) >> 20; got != want {
			t.Errorf("%d MiB live: %d MiB, want %d", live, got, want)
		}
	}
}
