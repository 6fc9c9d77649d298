package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/control/config"
)

func TestCheckRange(t *testing.T) {
	for text, want := range map[string]string{
		"10.7.0.0/16": "", "120.0.0.0/8": "", "241.0.64.0/18": "", "8.8.8.8/32": "", "fd00:8::/48": "", "2001:db8::/32": "",
		"0.0.0.0/8": "unspecified", "0.0.0.0/0": "unspecified", "127.1.0.0/16": "loopback", "169.254.169.254/32": "link-local",
		"239.0.0.0/8": "multicast", "255.255.255.255/32": "broadcast", "128.0.0.0/1": "link-local", "64.0.0.0/7": "larger than a /8",
		"::/128": "unspecified", "::/0": "unspecified", "::1/128": "loopback", "::ffff:10.0.0.0/104": "IPv4-mapped", "fe80::/64": "link-local", "ff02::/16": "multicast",
	} {
		err := config.CheckRange(netip.MustParsePrefix(text))
		if (err == nil) != (want == "") || err != nil && !(strings.Contains(err.Error(), want) && strings.Contains(err.Error(), text)) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
