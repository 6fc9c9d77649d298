package clusters

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// TestOwnClusterSetIP: pods reach the ClusterSetIP of a service of their own cluster on every node,
// though nothing translates ClusterIPs, also where a CNI redirects answers past the node's ends of
// the pods' devices.
func TestOwnClusterSetIP(t *testing.T) {
	for _, tt := range []struct {
		name     string
		cni      CNI
		redirect bool
	}{{"bridge", Bridge, false}, {"shared veth", SharedVeth, false}, {"answers are redirected", SharedVeth, true}} {
		t.Run(tt.name, func(t *testing.T) { ownClusterSetIP(t, tt.cni, tt.redirect) })
	}
}

func ownClusterSetIP(t *testing.T, cni CNI, redirect bool) {
	s := New(t, Options{Nodes: 2, Gateways: 1, CNI: cni, ClusterSetIPs: true})
	c := s.Clusters[1]
	near, far := c.Nodes[0], c.Nodes[1]
	for _, n := range c.Nodes {
		other := c.Nodes[2-n.Index]
		must(t, n.AddRoute(netip.PrefixFrom(other.podAddress(0), 24), other.Address, "un0"))
		if cni == SharedVeth {
			n.MustRun(t, "ip", "rule", "add", "pref", "52", "iif", "un0", "lookup", deliveryTable)
		}
	}
	client, servers := near.AddPod(t), []*Pod{near.AddPod(t), far.AddPod(t)}
	for i, p := range append(servers, client) {
		serveTCP(t, p, 8080, sayWho(fmt.Sprintf("server%d", i+1)))
		serveTCP(t, p, 8081, exchange(1<<20))
		echoUDP(t, p, 5353)
	}
	tcp, bulkPort, udp := dataplane.ServiceKey{Address: netip.MustParseAddr("243.1.0.20"), Port: 80, Protocol: unix.IPPROTO_TCP}, dataplane.ServiceKey{}, dataplane.ServiceKey{}
	bulkPort, udp = tcp, tcp
	bulkPort.Port, udp.Port, udp.Protocol = 81, 53, unix.IPPROTO_UDP
	global := c.Expose(80, []uint8{unix.IPPROTO_TCP}, servers...)
	for _, p := range servers {
		c.Services[dataplane.ServiceKey{Address: global, Port: 80, Protocol: unix.IPPROTO_TCP}].Backends[p] = 8080
	}
	targets := map[dataplane.ServiceKey]uint16{tcp: 8080, bulkPort: 8081, udp: 5353}
	c.VIPs = map[dataplane.ServiceKey]*VIP{}
	serve := func(change func(*VIP), pods ...*Pod) {
		t.Helper()
		for key, port := range targets {
			v := &VIP{Global: global, Backends: map[*Pod]uint16{}}
			for _, p := range pods {
				v.Backends[p] = port
			}
			if change != nil {
				change(v)
			}
			c.VIPs[key] = v
		}
		s.Apply(t)
	}
	serve(nil, servers...)
	if redirect {
		client.redirect(t)
	}
	to := func(key dataplane.ServiceKey) netip.AddrPort { return netip.AddrPortFrom(key.Address, key.Port) }
	answers := func(n int) map[string]int {
		t.Helper()
		out := map[string]int{}
		for range n {
			who, source, err := ask(client, to(tcp))
			if err != nil || source.Addr() != client.Address {
				t.Fatalf("%q answers and sees %s: %v; want it to see %s", who, source, err, client.Address)
			}
			out[who]++
		}
		return out
	}

	t.Run("both pods serve", func(t *testing.T) {
		if got := answers(40); got["server1"] < 5 || got["server2"] < 5 || len(got) != 2 {
			t.Errorf("answers of %v", got)
		}
		if err := bulk(client, to(bulkPort), 1<<20); err != nil {
			t.Error(err)
		}
		c, err := dial(client, "udp", to(udp))
		must(t, err)
		defer c.Close()
		for _, size := range []int{1, 1400, 4000} {
			if err := ping(c, size); err != nil {
				t.Errorf("datagram of %d bytes: %v", size, err)
			}
		}
	})
	t.Run("one source port for the pod and the ClusterSetIP", func(t *testing.T) {
		local := netip.AddrPortFrom(client.Address, 40000)
		for i := range 3 { // the last time the VIP takes the same pod as before
			var open []net.Conn
			for _, a := range []netip.AddrPort{netip.AddrPortFrom(servers[0].Address, 8080), netip.AddrPortFrom(servers[1].Address, 8080), to(tcp)} {
				c, err := dial(client, "tcp", a, local)
				if err != nil {
					t.Fatalf("round %d: to %s: %v", i, a, err)
				}
				open = append(open, c)
			}
			for _, c := range open {
				if err := echoes(c); err != nil {
					t.Errorf("round %d: to %s: %v", i, c.RemoteAddr(), err)
				}
				must(t, c.(*net.TCPConn).SetLinger(0))
				must(t, c.Close())
			}
			local = netip.AddrPortFrom(client.Address, local.Port()+1)
		}
	})
	t.Run("a process of the node", func(t *testing.T) {
		for _, n := range c.Nodes {
			if who, _, err := ask(n, to(tcp)); err != nil {
				t.Errorf("on %s: %q, %v", n.Name, who, err)
			}
		}
	})
	t.Run("a client keeps its pod", func(t *testing.T) {
		serve(func(v *VIP) { v.Affinity = 60 }, servers[0])
		if got := answers(5); got["server1"] != 5 {
			t.Fatalf("answers of %v", got)
		}
		serve(func(v *VIP) { v.Affinity = 60 }, servers...)
		if got := answers(10); got["server1"] != 10 {
			t.Errorf("with another pod ready: answers of %v", got)
		}
		serve(func(v *VIP) { v.Affinity = 60 }, servers[1])
		if got := answers(5); got["server2"] != 5 {
			t.Errorf("with only the other one ready: answers of %v", got)
		}
	})
	t.Run("only pods of the node", func(t *testing.T) {
		serve(func(v *VIP) { v.Local = true }, servers...)
		if got := answers(10); got["server1"] != 10 {
			t.Errorf("answers of %v", got)
		}
	})
	t.Run("a pod is not ready any more", func(t *testing.T) {
		serve(nil, servers[1])
		established, err := dial(client, "tcp", to(tcp))
		must(t, err)
		defer established.Close()
		datagrams, err := dial(client, "udp", to(udp))
		must(t, err)
		defer datagrams.Close()
		must(t, echoes(established))
		must(t, ping(datagrams, 100))
		before := servers[0].datagrams(t)
		serve(nil, servers[0])
		time.Sleep(1200 * time.Millisecond) // flows check their pod once a second
		if err := ping(datagrams, 100); err != nil {
			t.Errorf("datagrams: %v", err)
		}
		if servers[0].datagrams(t) == before {
			t.Error("datagrams still go to the pod that is not ready")
		}
		if err := echoes(established); err != nil {
			t.Errorf("an established connection: %v", err)
		}
	})
	t.Run("a pod serves itself", func(t *testing.T) {
		serve(nil, client)
		who, source, err := ask(client, to(tcp))
		if err != nil || who != "server3" || source.Addr() != tcp.Address {
			t.Errorf("%q answers and sees %s: %v; want server3 to see %s", who, source, err, tcp.Address)
		}
		if err := bulk(client, to(bulkPort), 1<<20); err != nil {
			t.Error(err)
		}
		c, err := dial(client, "udp", to(udp))
		must(t, err)
		defer c.Close()
		if err := ping(c, 4000); err != nil {
			t.Error(err)
		}
	})
}

// echoes sends a line on an open connection to sayWho and awaits the answer.
func echoes(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("\x00")); err != nil {
		return err
	}
	b := make([]byte, 256)
	for {
		n, err := c.Read(b)
		if err != nil {
			return err
		}
		if b[n-1] == 0 {
			return nil
		}
	}
}

// datagrams are those that the pod has received.
func (p *Pod) datagrams(t testing.TB) (n int) {
	t.Helper()
	out, err := p.Run("busybox", "awk", `/^Udp: [0-9]/ { print $2 }`, "/proc/net/snmp")
	must(t, err)
	if _, err := fmt.Sscan(string(out), &n); err != nil {
		t.Fatal(err)
	}
	return n
}
