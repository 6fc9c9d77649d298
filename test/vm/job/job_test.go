package job

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEventsAreReadAsWritten(t *testing.T) {
	for _, e := range []Event{
		{Kind: Up, Name: "6.1.0-56-cloud-amd64"},
		{Kind: Begin, Name: "cable"},
		{Kind: End, Name: "a name with spaces", Status: 1, Took: 12345 * time.Millisecond},
		{Kind: Fail, Name: "modules", Text: "load \"wireguard\":\nnot found"},
	} {
		got, ok := Parse(e.String())
		if diff := cmp.Diff(e, got); !ok || diff != "" {
			t.Errorf("%v: read %v, -want +got\n%s", e, ok, diff)
		}
	}
}

func TestLinesOfTestsAreNoEvents(t *testing.T) {
	for _, line := range []string{"", "=== RUN   TestX", "#vm#", "#vm# end", "#vm# end cable 0 1", `#vm# end "cable" x 1 ""`} {
		if e, ok := Parse(line); ok {
			t.Errorf("%q is taken for %v", line, e)
		}
	}
}
