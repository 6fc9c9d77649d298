package netdev

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestDump(t *testing.T) {
	interrupted, other := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted), errors.New("no memory")
	for name, tt := range map[string]struct {
		errs  []error // of the attempts
		reads int
		want  error
	}{
		"complete":              {[]error{nil}, 1, nil},
		"interrupted once":      {[]error{interrupted, nil}, 2, nil},
		"interrupted each time": {[]error{interrupted, interrupted, interrupted}, 3, netlink.ErrDumpInterrupted},
		"another error":         {[]error{other}, 1, other},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			got, err := Dump(func() ([]int, error) {
				reads++
				return []int{reads}, tt.errs[reads-1]
			})
			if !errors.Is(err, tt.want) || reads != tt.reads || got[0] != reads {
				t.Errorf("%d reads, %v, error %v; want %d reads, the last result, error %v", reads, got, err, tt.reads, tt.want)
			}
		})
	}
}
