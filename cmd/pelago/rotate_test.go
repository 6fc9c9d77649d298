package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/test/await"
)

// nodeDaemon stands in for pelago-node: for each request it reports the rotations of answer, one
// after the other.
func nodeDaemon(t *testing.T, c client.Client, answer func(request string) []pelagov1alpha1.KeyRotation) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen := map[string]string{}
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			var nodes corev1.NodeList
			if err := c.List(ctx, &nodes); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			for _, n := range nodes.Items {
				request := n.Annotations[pelagov1alpha1.AnnotationRotateKeys]
				if request == seen[n.Name] {
					continue
				}
				seen[n.Name] = request
				for _, step := range answer(request) {
					if err := report(c, n.Name, func(s *pelagov1alpha1.NodeIndexStatus) { s.KeyRotation = &step }); err != nil {
						t.Error(err)
					}
					select {
					case <-ctx.Done():
						return
					case <-time.After(700 * time.Millisecond):
						// longer than the poll interval of the command, 500 ms
					}
				}
			}
		}, 50*time.Millisecond)
	}()
	return func() { cancel(); <-done }
}

// anotherSecond waits until a request of now is another one than that: they are times in whole
// seconds.
func anotherSecond(t *testing.T, request string) {
	t.Helper()
	await.True(t, "a second that is not "+request, func() bool { return time.Now().UTC().Format(time.RFC3339) > request })
}

func report(c client.Client, node string, change func(*pelagov1alpha1.NodeIndexStatus)) error {
	n := &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := c.Get(context.Background(), client.ObjectKeyFromObject(n), n); err != nil {
		return err
	}
	before := n.DeepCopy()
	change(&n.Status)
	return c.Status().Patch(context.Background(), n, client.MergeFrom(before))
}

func TestGatewayRotateKeys(t *testing.T) {
	c := newClusterset(t)
	ctx := context.Background()
	member := open(t, c.member)
	for _, name := range []string{"n1", "n2", "n3"} {
		if err := member.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}}); err != nil {
			t.Fatal(err)
		}
	}
	c.fails(t, "has not joined", "gateway", "rotate-keys", "n1")
	c.deployBroker(t)
	c.must(t, c.join("--clusterid", "g1", "--cable-tunnels", "3", "--xdp", "auto", "--gateway-node", "n1", "--gateway-node", "n2")...)
	m := &reader{t, member}
	if got := m.config(); got.CableTunnels != 3 || got.XDP != "auto" {
		t.Errorf("joined with 3 tunnels and XDP auto: %d, %q", got.CableTunnels, got.XDP)
	}
	c.must(t, c.join("--clusterid", "g1")...)
	if got := m.config(); got.CableTunnels != 3 || got.XDP != "auto" {
		t.Errorf("joined again without these flags: %d tunnels, XDP %q; want those of the first join", got.CableTunnels, got.XDP)
	}

	c.fails(t, "get NodeIndex n1", "gateway", "rotate-keys", "n1")
	for i, name := range []string{"n1", "n2"} {
		n := &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pelagov1alpha1.NodeIndexSpec{Index: int32(i) + 1, NodeUID: "u"}}
		if err := member.Create(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	requests := func() (out []string) {
		for _, name := range []string{"n1", "n2", "n3"} {
			out = append(out, m.node(name).Annotations[pelagov1alpha1.AnnotationRotateKeys])
		}
		return out
	}
	gateway := func(name string, serves bool) {
		t.Helper()
		if err := report(member, name, func(s *pelagov1alpha1.NodeIndexStatus) { s.Gateway = serves }); err != nil {
			t.Fatal(err)
		}
	}
	gateway("n1", true)
	c.fails(t, "name one gateway's node, or give --all", "gateway", "rotate-keys")
	c.fails(t, "name one gateway's node, or give --all", "gateway", "rotate-keys", "n1", "--all")
	c.fails(t, `nodes "n9" not found`, "gateway", "rotate-keys", "n9")
	c.fails(t, "node n3 is no gateway", "gateway", "rotate-keys", "n3")
	c.fails(t, "gateway n2 is not in service", "gateway", "rotate-keys", "--all")
	if got := strings.Join(requests(), ""); got != "" {
		t.Errorf("a gateway got a request before all were checked: %q", got)
	}

	c.fails(t, "pelago-node on n1 has not started the rotation after 1s", "gateway", "rotate-keys", "n1", "--timeout", "1s")
	first := requests()[0]
	if _, err := time.Parse(time.RFC3339, first); err != nil {
		t.Error(err)
	}
	stuck := pelagov1alpha1.KeyRotation{Request: first, TunnelsLeft: 1, Message: "tunnel 0 has its new key, no handshake with it yet by g2/g2-n1"}
	if err := report(member, "n1", func(s *pelagov1alpha1.NodeIndexStatus) { s.KeyRotation = &stuck }); err != nil {
		t.Fatal(err)
	}
	c.fails(t, "has not rotated all its keys after 1s: tunnel 0 has its new key, no handshake with it yet by g2/g2-n1. The rotation continues",
		"gateway", "rotate-keys", "n1", "--timeout", "1s")
	if again := requests()[0]; again != first {
		t.Errorf("requested at %s during the rotation of %s", again, first)
	}
	if err := report(member, "n1", func(s *pelagov1alpha1.NodeIndexStatus) {
		s.KeyRotation = &pelagov1alpha1.KeyRotation{Request: first}
	}); err != nil {
		t.Fatal(err)
	}
	anotherSecond(t, first)

	gateway("n2", true)
	stop := nodeDaemon(t, member, func(request string) []pelagov1alpha1.KeyRotation {
		if request == "" || request == first {
			return nil
		}
		return []pelagov1alpha1.KeyRotation{{Request: request, TunnelsLeft: 2, Message: "tunnel 4 is being emptied"}, {Request: request}}
	})
	out := c.must(t, "gateway", "rotate-keys", "--all")
	t.Log(out)
	for _, want := range []string{"Requesting new keys of gateway n1", "Tunnels left: 2; tunnel 4 is being emptied", "Gateway n1 has new keys", "Gateway n2 has new keys"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not printed", want)
		}
	}
	if got := requests(); got[0] == first || got[0] == "" || got[1] == "" || got[2] != "" {
		t.Errorf("requests of the three nodes: %q", got)
	}
	stop()
	anotherSecond(t, requests()[0])
	stop = nodeDaemon(t, member, func(request string) []pelagov1alpha1.KeyRotation {
		return []pelagov1alpha1.KeyRotation{{Request: request, Message: "no handshake with the new keys was made by g2/g2-n1"}}
	})
	defer stop()
	c.fails(t, "no handshake with the new keys was made by g2/g2-n1: check `pelago show connections`", "gateway", "rotate-keys", "n1")

	t.Run("completion", func(t *testing.T) {
		for _, verb := range []string{"drain", "undrain", "rotate-keys"} {
			if got := completed(t, "gateway", verb, "--kubeconfig", c.kubeconfig, "n"); got != "n1 n2" {
				t.Errorf("%s: %q; want the gateways n1 and n2", verb, got)
			}
		}
	})
	t.Run("vxlan", func(t *testing.T) {
		c.must(t, c.join("--clusterid", "g1", "--cable-driver", "vxlan", "--cable-tunnels", "1")...)
		c.fails(t, "is not encrypted and has no keys", "gateway", "rotate-keys", "--all")
	})
	for _, name := range []string{"n1", "n2"} {
		n := m.node(name)
		delete(n.Labels, submarinerv1.LabelGateway)
		if err := member.Update(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	c.must(t, c.join("--clusterid", "g1", "--cable-driver", "wireguard", "--gateway-node", "n3")...)
	n := m.node("n3")
	delete(n.Labels, submarinerv1.LabelGateway)
	if err := member.Update(ctx, n); err != nil {
		t.Fatal(err)
	}
	c.fails(t, "no node is a gateway", "gateway", "rotate-keys", "--all")
}
