package node

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
)

// A public address that was once found stays while its source is wanted, also over a restart with
// no peer to query.
func TestPublicAddress(t *testing.T) {
	name := tables.PublicIPSource{Method: tables.DNS, Argument: "gw.example.org"}
	found := PublicIP{Address: ip("198.51.100.7"), Source: name}
	former := &pelagov1alpha1.PublicIP{Address: "198.51.100.7", Source: name.String()}
	fails := PublicIP{Err: errors.New("no server answers")}
	tests := map[string]struct {
		former *pelagov1alpha1.PublicIP
		wanted []tables.PublicIPSource
		result PublicIP
		want   *pelagov1alpha1.PublicIP
	}{
		"none is wanted":        {former, nil, found, nil},
		"found":                 {nil, []tables.PublicIPSource{name}, found, former},
		"not looked for yet":    {nil, []tables.PublicIPSource{name}, PublicIP{Err: tables.ErrNoSource}, &pelagov1alpha1.PublicIP{}},
		"after a restart":       {former, []tables.PublicIPSource{name}, PublicIP{Err: tables.ErrNoSource}, former},
		"and nobody answers":    {former, []tables.PublicIPSource{name}, fails, &pelagov1alpha1.PublicIP{Address: "198.51.100.7", Source: name.String(), Message: "no server answers"}},
		"from another source":   {former, []tables.PublicIPSource{{Method: tables.DNS, Argument: "other.example.org"}}, fails, &pelagov1alpha1.PublicIP{Message: "no server answers"}},
		"never, nobody answers": {nil, []tables.PublicIPSource{name}, fails, &pelagov1alpha1.PublicIP{Message: "no server answers"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, publicAddress(tt.former, tt.wanted, tt.result)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
