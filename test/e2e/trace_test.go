package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// traced is what the test reads of `pelago trace -o json`.
type traced struct {
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Hops    []struct {
		Cluster, Node, Hook, Verdict string
	} `json:"hops"`
	Live *struct {
		Sightings []struct {
			Cluster, Node string
			Answer        bool
		} `json:"sightings"`
	} `json:"live"`
}

// trace runs `pelago trace` from the load's client and checks that the exit status is that of the
// outcome.
func (s *clusterset) trace(t *testing.T, args ...string) (out traced, err error) {
	t.Helper()
	args = append([]string{"trace", "--context", "g1", "--from", loadNamespace + "/client", "-o", "json"}, args...)
	text, err := s.Quietly(t.Context(), s.Bin+"/pelago", args...)
	if text == "" {
		return out, err
	}
	out = decode[traced](t, text)
	status := map[string]string{"delivered": "", "dropped": "exit status 2", "unknown": "exit status 1"}[out.Outcome]
	if (err == nil) != (status == "") || err != nil && !strings.Contains(err.Error(), status) {
		t.Errorf("outcome %q with %v", out.Outcome, err)
	}
	return out, nil
}

// explains awaits a reason; "": the packet is delivered. Tables need a moment to follow the
// objects.
func (s *clusterset) explains(t *testing.T, reason, names string, args ...string) (out traced) {
	t.Helper()
	within(t, func() (err error) {
		if out, err = s.trace(t, args...); err != nil {
			return err
		}
		if out.Reason != reason || !strings.Contains(out.Message, names) || (reason == "") != (out.Outcome == "delivered") {
			return fmt.Errorf("pelago %v: %s, %q: %s; want reason %q, naming %q", args, out.Outcome, out.Reason, out.Message, reason, names)
		}
		return nil
	})
	return out
}

// poke changes every entry of a map of a node until the returned function is called.
func (s *clusterset) poke(t *testing.T, node, name string, change func(value []byte)) (restore func()) {
	t.Helper()
	type row struct{ Key, Value []string }
	rows := decode[[]row](t, s.node(t, node, "bpftool", "--json", "map", "dump", "pinned", "/sys/fs/bpf/pelago/"+name))
	write := func(r row) error {
		hex := func(words []string) (out []string) {
			for _, w := range words {
				out = append(out, strings.TrimPrefix(w, "0x"))
			}
			return out
		}
		argv := slices.Concat([]string{"bpftool", "map", "update", "pinned", "/sys/fs/bpf/pelago/" + name, "key", "hex"}, hex(r.Key),
			[]string{"value", "hex"}, hex(r.Value))
		_, err := s.Lab.Exec(context.Background(), node, argv...)
		return err
	}
	restored := false
	restore = func() {
		for _, r := range rows {
			if err := write(r); err != nil && !restored {
				t.Error(err)
			}
		}
		restored = true
	}
	t.Cleanup(func() {
		if !restored {
			restore()
		}
	})
	for _, r := range rows {
		value := make([]byte, len(r.Value))
		for i, w := range r.Value {
			b, err := strconv.ParseUint(w, 0, 8)
			must(t, err)
			value[i] = byte(b)
		}
		change(value)
		changed := row{Key: r.Key}
		for _, b := range value {
			changed.Value = append(changed.Value, fmt.Sprintf("%#02x", b))
		}
		must(t, write(changed))
	}
	return restore
}

// stopDaemon stops pelago-node on a node, which would repair its maps, until the returned function
// is called.
func (s *clusterset) stopDaemon(t *testing.T, node string) (resume func()) {
	t.Helper()
	pid := strconv.Itoa(s.daemon(t, node))
	resume = func() {
		if _, err := s.Lab.Exec(context.Background(), node, "kill", "-CONT", pid); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(resume)
	s.node(t, node, "kill", "-STOP", pid)
	return resume
}

// testTrace: faults in the running clusters, each explained with its own reason.
func testTrace(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	const name = loadNamespace + "/web"
	web, both := l.web.String()+":80", []string{"--remote-context", "g2"}
	to := func(target string, more ...string) []string {
		return slices.Concat([]string{"--to", target}, both, more)
	}
	undo := func(cluster string, args ...string) {
		t.Cleanup(func() {
			if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), append([]string{"--context", cluster}, append(args, "--ignore-not-found")...)...); err != nil {
				t.Error(err)
			}
		})
	}

	out := s.explains(t, "", "", to(name, "--live")...)
	if n := len(out.Hops); n < 3 || out.Hops[0].Node != l.clientNode || out.Hops[n-1].Verdict != "delivered" {
		t.Errorf("the way of the packet is %+v", out.Hops)
	}
	answers := 0
	for _, sighting := range out.Live.Sightings {
		if sighting.Answer {
			answers++
		}
	}
	if answers < 3 {
		t.Errorf("the answer was seen %d times: %+v", answers, out.Live.Sightings)
	}
	s.explains(t, "", "", to(l.sink.String()+":7", "--protocol", "udp", "--live")...)
	_, err := s.Pelago(t.Context(), "trace", "--context", "g1", "--from", loadNamespace+"/client", "--to", name, "--remote-context", "g2", "--live")
	must(t, err)
	hostSends := s.explains(t, "", "", append(to(name, "--live"), "--from", "", "--from-node", l.clientNode)...)
	if len(hostSends.Hops) < 3 {
		t.Errorf("the way of the node's own packet is %+v", hostSends.Hops)
	}

	pod := s.kubectl(t, "g1", "-n", loadNamespace, "get", "pod", "client", "-o", "jsonpath={.status.podIP}")
	flushed, err := s.Quietly(t.Context(), s.Bin+"/pelago", "nat", "flush", "--context", "g1", "--node", l.clientNode, "--pod", pod, "--yes", "-o", "json")
	must(t, err)
	if rows := decode[[]struct{ Removed int }](t, flushed); len(rows) != 1 || rows[0].Removed == 0 {
		t.Errorf("of the flows of the client %s were removed", flushed)
	}
	if out, err := s.Quietly(t.Context(), s.Bin+"/pelago", "nat", "get", "--context", "g1", pod, l.web.String()); err == nil {
		t.Errorf("after the flush there is %s", out)
	}
	routes, err := s.Quietly(t.Context(), s.Bin+"/pelago", "map", "dump", "routes", "--context", "g1", "-o", "json")
	must(t, err)
	prefixes := map[string]int{}
	for _, row := range decode[[]struct{ Key string }](t, routes) {
		prefixes[row.Key]++
	}
	// the own one is hairpinned
	if want := map[string]int{walk.GlobalCIDR1: 3, walk.GlobalCIDR2: 3}; !maps.Equal(prefixes, want) {
		t.Errorf("the map of routes on three nodes is %s", routes)
	}

	s.explains(t, "no-import", loadNamespace, to(loadNamespace+"/nothing")...)
	s.explains(t, "drop-no-route", l.clientNode, to("120.9.0.1:80")...)
	s.explains(t, "drop-no-service", "g2", to(l.web.String()+":81")...)
	s.explains(t, "no-port", "81", to(name+":81")...)
	s.explains(t, "drop-too-big", l.clientNode, to(l.sink.String()+":7", "--protocol", "udp", "--size", "1490")...)
	s.explains(t, "remote-unseen", "g2", "--to", web)

	undo("g1", "-n", loadNamespace, "delete", "service", "taker")
	s.applyQuietly(t, "g1", fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: taker, namespace: %s}\nspec: {ports: [{port: 80}], externalIPs: [%s]}\n", loadNamespace, l.web))
	s.explains(t, "shadowed", loadNamespace+"/taker", to(name)...)
	s.kubectl(t, "g1", "-n", loadNamespace, "delete", "service", "taker")

	undo("g2", "-n", loadNamespace, "delete", "networkpolicy", "deny")
	s.applyQuietly(t, "g2", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: "+loadNamespace+"}\nspec: {podSelector: {}}\n")
	s.explains(t, "policy", loadNamespace+"/deny", to(name)...)
	s.kubectl(t, "g2", "-n", loadNamespace, "delete", "networkpolicy", "deny")

	firewall := func(change string) {
		for _, node := range s.nodes(t, "g2") {
			s.node(t, node, "iptables", change, "FORWARD", "-s", walk.GlobalCIDR1, "-p", "tcp", "--dport", "80", "-j", "DROP")
		}
	}
	firewall("-I")
	s.explains(t, "stack", "g2", to(name, "--live")...)
	firewall("-D")

	resume := s.stopDaemon(t, l.clientNode)
	restore := s.poke(t, l.clientNode, "egresses", func(v []byte) { clear(v) }) // no block
	s.explains(t, "drop-no-egress", l.clientNode, to(web)...)
	restore()
	// confirmed at boot
	restore = s.poke(t, l.clientNode, "standings", func(v []byte) { clear(v[:8]) })
	s.explains(t, "stale-daemon", l.clientNode, to(web)...)
	restore()
	resume()

	scale := func(replicas string) {
		s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", "--replicas", replicas)
		s.kubectl(t, "g2", "-n", loadNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	}
	t.Cleanup(func() {
		if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "g2", "-n", loadNamespace, "scale", "deployment/web", "--replicas", "4"); err != nil {
			t.Error(err)
		}
	})
	scale("0")
	s.explains(t, "no-backend", "web."+loadNamespace, to(name)...)
	s.explains(t, "drop-no-backend", "g2", to(web)...)
	scale("4")
	s.explains(t, "", "", to(name, "--live")...)

	// offset and size of cable_token and cable_token_old in struct node_settings
	const token, tokens = 36, 8
	for _, gateway := range []string{"g2-n1", "g2-n2"} {
		resume := s.stopDaemon(t, gateway)
		restore := s.poke(t, gateway, "settings", func(v []byte) {
			clear(v[token : token+tokens])
			v[token] = 7
		})
		defer resume()
		defer restore()
	}
	s.explains(t, "drop-bad-token", "g2", to(web)...)
	s.explains(t, "wire-down", "g1", "--to", web) // as its own cluster sees it
}
