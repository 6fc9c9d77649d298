package clusterdns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	startMarker = "#pelago-start AUTO-GENERATED SECTION. DO NOT EDIT"
	endMarker   = "#pelago-end"

	// Marker lines are recognized by how they begin, so that a changed remark
	// after the marker does not hide it.
	startWord = "#pelago-start"
	endWord   = "#pelago-end"
	// predecessor is how the markers of Submariner's block begin.
	predecessor = "#lighthouse-"
)

// Forward is what the cluster's DNS shall do: send queries for the zones to the name server at To, port 53.
type Forward struct {
	Zones []string
	To    netip.Addr
	// Cache is how long answers are kept, in whole seconds; 0: not at all.
	Cache time.Duration
}

// Patch returns the Corefile with a block that forwards the zones. An old block is replaced where it stands, a new one put in
// front. The block listens on the port of the Corefile's first server, 53 if none exists, and on its addresses: CoreDNS
// opens sockets by address, and one that is bound to an address gets the queries that come there.
//
// It refuses a Corefile whose markers are damaged, that has Submariner's block, or that serves one of the zones already.
func (f Forward) Patch(corefile string) (string, error) {
	f, err := f.checked()
	if err != nil {
		return "", err
	}
	before, after, err := split(corefile)
	if err != nil {
		return "", err
	}
	if strings.Contains(before+after, predecessor) {
		return "", fmt.Errorf("patch Corefile: it has Submariner's block (%sstart … %send), and CoreDNS refuses two servers for one zone; uninstall Submariner's service discovery or delete that block", predecessor, predecessor)
	}
	first := server{port: "53"}
	servers := servers(before + after)
	if i := slices.IndexFunc(servers, server.plain); i >= 0 {
		first = servers[i]
	}
	for _, s := range servers {
		if s.plain() && s.port == first.port && slices.Contains(f.Zones, s.zone) {
			return "", fmt.Errorf("patch Corefile: it serves %s:%s already, and CoreDNS refuses two servers for one zone; delete that server block", s.zone, first.port)
		}
	}
	if strings.ContainsAny(first.bind, "\"{}#\\") {
		return "", fmt.Errorf("patch Corefile: its first server has %q, which cannot be copied; write the addresses without quotes and options", "bind "+first.bind)
	}
	return before + f.block(first) + after, nil
}

// block is the server block between its markers; it listens on the same port and addresses as s.
func (f Forward) block(s server) string {
	var b strings.Builder
	b.WriteString(startMarker + "\n")
	for _, z := range f.Zones {
		fmt.Fprintf(&b, "%s:%s ", z, s.port)
	}
	b.WriteString("{\n")
	if s.bind != "" {
		fmt.Fprintf(&b, "    bind %s\n", s.bind)
	}
	if f.Cache > 0 {
		fmt.Fprintf(&b, "    cache %d\n", int(f.Cache.Seconds()))
	}
	fmt.Fprintf(&b, "    forward . %s\n}\n%s\n", f.To, endMarker)
	return b.String()
}

// Remove returns the Corefile without our block. It refuses damaged markers.
func Remove(corefile string) (string, error) {
	before, after, err := split(corefile)
	return before + after, err
}

// split cuts the Corefile around our block; without one, everything is after.
func split(corefile string) (before, after string, err error) {
	var starts, ends []int // offsets: of the start line, behind the end line
	at := 0
	for line := range strings.Lines(corefile) {
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(text, startWord):
			starts = append(starts, at)
		case strings.HasPrefix(text, endWord):
			ends = append(ends, at+len(line))
		}
		at += len(line)
	}
	switch {
	case len(starts) == 0 && len(ends) == 0:
		return "", corefile, nil
	case len(starts) == 1 && len(ends) == 1 && starts[0] < ends[0]:
		return corefile[:starts[0]], corefile[ends[0]:], nil
	}
	return "", "", fmt.Errorf("read Corefile: its markers are damaged (%d lines %q, %d lines %q; want one of each, in this order); delete these lines and what is left of the block, it is then made anew",
		len(starts), startWord, len(ends), endWord)
}

// checked validates what is written into the Corefile verbatim, and returns it with the zones in the form in which CoreDNS compares
// them, without duplicates.
func (f Forward) checked() (Forward, error) {
	var zones []string
	for _, z := range f.Zones {
		n := strings.ToLower(strings.TrimSuffix(z, "."))
		if wrong := validation.IsDNS1123Subdomain(n); wrong != nil {
			return f, fmt.Errorf("forward zones: %q is no domain: %s", z, wrong[0])
		}
		if !slices.Contains(zones, n) {
			zones = append(zones, n)
		}
	}
	if len(zones) == 0 {
		return f, errors.New("forward zones: there is none; give at least clusterset.local")
	}
	if !f.To.IsValid() || f.To.IsUnspecified() {
		return f, fmt.Errorf("forward zones: %s is no address to forward to; want the ClusterIP of Service %s, which must not be headless", f.To, service)
	}
	f.Zones, f.To = zones, f.To.Unmap()
	return f, nil
}
