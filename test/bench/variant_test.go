package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/netns"
)

var every = flag.Bool("every", false, "TestVariantsCarryTraffic with every variant at every scale")

// Each variant must really do what its name promises, else its figures mean nothing: the server
// sees the source that the variant's translation (or the lack of it) gives, and the reply comes
// back.
func TestVariantsCarryTraffic(t *testing.T) {
	netns.Require(t)
	egress := func(a netip.Addr) bool { return a.Compare(egressLow) >= 0 && a.Compare(egressHigh) <= 0 }
	only := func(want netip.Addr) func(netip.Addr) bool {
		return func(a netip.Addr) bool { return a == want }
	}
	source := map[string]func(netip.Addr) bool{
		"limit": only(directC.Addr()), "floor": only(plainA), "plain": only(plainA),
		"iptables": egress, "iptables-legacy": egress, "nftables": egress, "pelago-safe": egress, "pelago-hybrid": egress, "pelago-fast": egress,
		"pelago-safe-vip": egress, "pelago-hybrid-vip": egress, "pelago-fast-vip": egress,
	}
	for _, c := range cases() {
		for _, v := range c.Variants {
			// All variants at one scale, all scales with one variant.
			if !*every && c.Name != caseGatewayPath && !strings.HasPrefix(v.Name, "pelago-fast") {
				continue
			}
			t.Run(c.Name+"/"+v.Name, func(t *testing.T) {
				topo := topology(t, Shape{KubeProxy: true, Gateways: c.Gateways})
				installed, err := v.Setup(topo, c.Scale)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if installed.teardown == nil {
						return
					}
					if err := installed.teardown(); err != nil {
						t.Error(err)
					}
				}()
				client, server := v.ends(topo)
				seen, err := connect(client, server, v.Target)
				if err != nil {
					t.Fatal(err)
				}
				if check := source[v.Name]; check == nil || !check(seen) {
					t.Errorf("the server saw the source %s", seen)
				}
			})
		}
	}
}

// The pods' nodes run conntrack for what passes their stack, as kube-proxy makes them, unless told
// not to.
func TestKubeProxyTracksForwardedPackets(t *testing.T) {
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprintf("kube-proxy=%t", on), func(t *testing.T) {
			netns.Require(t)
			topo := topology(t, Shape{KubeProxy: on})
			if _, err := plain().Setup(topo, Scale{}); err != nil {
				t.Fatal(err)
			}
			if _, err := connect(topo.PA, topo.PB, plainB); err != nil {
				t.Fatal(err)
			}
			for _, n := range []*netns.NS{topo.NA, topo.NB} {
				var table []byte
				err := n.Do(func() (err error) {
					table, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if tracked := strings.Contains(string(table), plainB.String()); tracked != on {
					t.Errorf("%s tracks the connection: %t", n.Name, tracked)
				}
			}
		})
	}
}

// connect opens a TCP connection to target, sends a byte each way and returns the source that the
// server sees.
func connect(client, server *netns.NS, target netip.Addr) (netip.Addr, error) {
	var l net.Listener
	err := server.Do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", portTest))
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer l.Close()
	type peer struct {
		addr netip.Addr
		err  error
	}
	accepted := make(chan peer, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			accepted <- peer{err: err}
			return
		}
		defer c.Close()
		_, err = c.Write([]byte{1})
		accepted <- peer{c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), err}
	}()
	err = client.Do(func() error {
		c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(target, portTest).String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	})
	l.Close()
	p := <-accepted
	return p.addr, errors.Join(err, p.err)
}

func topology(t *testing.T, shape Shape) *Topology {
	t.Helper()
	topo, err := NewTopology(testPrefix(), shape)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := topo.Close(); err != nil {
			t.Error(err)
		}
	})
	return topo
}

// testPrefix keeps the namespaces of a test run apart from those of a benchmark.
func testPrefix() string { return fmt.Sprintf("t%d-", os.Getpid()) }
