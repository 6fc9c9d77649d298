package coredns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	startMarker = "#pelago-start AUTO-GENERATED SECTION. DO NOT EDIT"
	endMarker   = "#pelago-end"

	// Lines are found by what they begin with, so that a changed remark behind
	// a marker does not hide it.
	startWord = "#pelago-start"
	endWord   = "#pelago-end"
	// predecessor is how the markers of Submariner's block begin.
	predecessor = "#lighthouse-"
)

// Patch returns the Corefile with a block that forwards each zone to the name
// server at forwardTo, port 53. An old block is replaced where it stands, a new
// one put in front. The block listens on the port of the Corefile's first
// server, 53 if there is none.
//
// It refuses a Corefile whose markers are damaged, that has Submariner's block,
// or that serves one of the zones already.
func Patch(corefile string, zones []string, forwardTo netip.Addr) (string, error) {
	zones, err := normalized(zones)
	if err != nil {
		return "", err
	}
	if !forwardTo.IsValid() || forwardTo.IsUnspecified() {
		return "", fmt.Errorf("patch Corefile: %s is no address to forward to; want the ClusterIP of Service pelago-dns", forwardTo)
	}
	before, after, err := split(corefile)
	if err != nil {
		return "", err
	}
	if strings.Contains(before+after, predecessor) {
		return "", fmt.Errorf("patch Corefile: it has Submariner's block (%sstart … %send), and CoreDNS refuses two servers for one zone; uninstall Submariner's service discovery or delete that block", predecessor, predecessor)
	}
	port := "53"
	servers := servers(before + after)
	if i := slices.IndexFunc(servers, server.plain); i >= 0 {
		port = servers[i].port
	}
	for _, s := range servers {
		if s.plain() && s.port == port && slices.Contains(zones, s.zone) {
			return "", fmt.Errorf("patch Corefile: it serves %s:%s already, and CoreDNS refuses two servers for one zone; delete that server block", s.zone, port)
		}
	}
	var b strings.Builder
	b.WriteString(startMarker + "\n")
	for _, z := range zones {
		fmt.Fprintf(&b, "%s:%s {\n    forward . %s\n}\n", z, port, forwardTo.Unmap())
	}
	b.WriteString(endMarker + "\n")
	return before + b.String() + after, nil
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

// normalized checks the zones, which go into the Corefile as they are, and
// returns them once each, as CoreDNS compares them.
func normalized(zones []string) ([]string, error) {
	var out []string
	for _, z := range zones {
		n := strings.ToLower(strings.TrimSuffix(z, "."))
		if wrong := validation.IsDNS1123Subdomain(n); wrong != nil {
			return nil, fmt.Errorf("patch Corefile: zone %q is no domain: %s", z, wrong[0])
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("patch Corefile: no zone to forward; give at least clusterset.local")
	}
	return out, nil
}
