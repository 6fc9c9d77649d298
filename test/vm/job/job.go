// Package job is what the host tells the guest of the VM to do, and the words in which the guest
// tells how it went. Package test/vm and its guest import it.
package job

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// File is where the guest finds its Plan, and Console the serial port to which it writes; the other
// one is the kernel's.
const (
	File    = "/plan.json"
	Console = "/dev/ttyS1"
)

// Plan is all that the guest does.
type Plan struct {
	// to load before; the kernel loads others on request
	Modules []string `json:"modules"`
	Jobs    []Job    `json:"jobs"`
}

// Job is one test binary.
type Job struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Dir     string   `json:"dir"`
}

// mark begins the lines by which the guest speaks for itself, between the output of tests.
const mark = "#vm# "

// Event is such a line.
type Event struct {
	Kind string // Up, Begin, End or Fail
	// Name of the job; of Up: the kernel's release.
	Name string
	// Status of the job that ended, and how long it took.
	Status int
	Took   time.Duration
	Text   string // of Fail: what is wrong
}

// Kinds of Event.
const (
	Up    = "up"
	Begin = "begin"
	End   = "end"
	Fail  = "fail"
)

func (e Event) String() string {
	return fmt.Sprintf("%s%s %q %d %d %q", mark, e.Kind, e.Name, e.Status, e.Took.Milliseconds(), e.Text)
}

// Parse reads a line of the guest's output; ok is false if it is one of a test's.
func Parse(line string) (e Event, ok bool) {
	rest, ok := strings.CutPrefix(line, mark)
	if !ok {
		return Event{}, false
	}
	kind, rest, _ := strings.Cut(rest, " ")
	name, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return Event{}, false
	}
	rest = rest[len(name):]
	var took int64
	e = Event{Kind: kind}
	if _, err := fmt.Sscanf(rest, " %d %d %q", &e.Status, &took, &e.Text); err != nil {
		return Event{}, false
	}
	e.Name, _ = strconv.Unquote(name) // QuotedPrefix has read it
	e.Took = time.Duration(took) * time.Millisecond
	return e, true
}
