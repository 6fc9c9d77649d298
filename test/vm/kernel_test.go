package main

import (
	"strings"
	"testing"
)

func TestNewest(t *testing.T) {
	names := strings.Fields(`linux-image-6.1.0-9-cloud-amd64 linux-image-6.1.0-56-cloud-amd64 - Linux linux-image-6.1.0-57-cloud-amd64-dbg
		linux-image-6.12-cloud-amd64-unsigned linux-image-6.12.99+deb12-cloud-amd64 linux-image-6.12.117+deb12-cloud-amd64 linux-image-6.12.118+deb12-amd64`)
	for _, c := range []struct{ want, got string }{
		{"6.1", "linux-image-6.1.0-56-cloud-amd64"},
		{"6.1.0-9", "linux-image-6.1.0-9-cloud-amd64"},
		{"6.12", "linux-image-6.12.117+deb12-cloud-amd64"},
	} {
		if got, err := newest(names, c.want); err != nil || got != c.got {
			t.Errorf("kernel %s: %s, %v; want %s", c.want, got, err, c.got)
		}
	}
	if _, err := newest(names, "5.15"); err == nil || !strings.Contains(err.Error(), "linux-image-6.12.99+deb12-cloud-amd64") {
		t.Errorf("a kernel that does not exist: %v; want the names of those that do", err)
	}
}
