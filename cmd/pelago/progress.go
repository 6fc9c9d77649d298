package main

import (
	"fmt"
	"io"
	"time"
)

// progress prints what is being done, one line a step, with the seconds since the start.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

// step has the signature of deploy.Progress.
func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
