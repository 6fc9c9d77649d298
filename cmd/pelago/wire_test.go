package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/control/config"
)

func TestWireFlags(t *testing.T) {
	tests := map[string]struct {
		args  []string
		want  config.Config
		ports []uint16
		err   string
	}{
		"nothing said":         {nil, config.Config{CableDriver: "wireguard", CablePort: 4500}, []uint16{4500, 4504}, ""},
		"all of them":          {[]string{"--cable-driver", "ipsec", "--nattport", "4600", "--cable-tunnels", "4", "--xdp", "auto"}, config.Config{CableDriver: "libreswan", CablePort: 4600, CableTunnels: 4, XDP: "auto"}, []uint16{4600}, ""},
		"three of WireGuard":   {[]string{"--cable-tunnels", "3"}, config.Config{CableDriver: "wireguard", CablePort: 4500, CableTunnels: 3}, []uint16{4500, 4501, 4502, 4504}, ""},
		"the wire in the open": {[]string{"--cable-driver", "vxlan", "--nattport", "65535", "--cable-tunnels", "1"}, config.Config{CableDriver: "vxlan", CablePort: 65535}, []uint16{65535}, ""},
		"no tunnels":           {[]string{"--cable-tunnels", "0"}, config.Config{}, nil, "--cable-tunnels 0: use 1 to 4"},
		"too many tunnels":     {[]string{"--cable-tunnels", "5"}, config.Config{}, nil, "--cable-tunnels 5: use 1 to 4"},
		"tunnels of vxlan":     {[]string{"--cable-driver", "vxlan", "--cable-tunnels", "2"}, config.Config{}, nil, "the wire vxlan has no tunnels"},
		"tunnel on 4800":       {[]string{"--nattport", "4798", "--cable-tunnels", "3"}, config.Config{}, nil, "needs UDP port 4800 as well"},
		"standby on 4800":      {[]string{"--nattport", "4796"}, config.Config{}, nil, "needs UDP port 4800 as well"},
		"the last ports":       {[]string{"--nattport", "65532"}, config.Config{}, nil, "use one up to 65531"},
		"generic XDP":          {[]string{"--xdp", "generic"}, config.Config{}, nil, `--xdp "generic" is unknown: use off, auto, on`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var w wireFlags
			f := pflag.NewFlagSet("join", pflag.ContinueOnError)
			w.add(f)
			if err := f.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			err := w.check()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			var got config.Config
			w.apply(&got)
			if diff := cmp.Diff(tt.want.Data(), got.Data()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.ports, w.ports()); diff != "" {
				t.Errorf("ports -want +got\n%s", diff)
			}
		})
	}
}
