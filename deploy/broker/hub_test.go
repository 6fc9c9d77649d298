package broker

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

// One hub for all tests of the package; tests keep apart by cluster ids.
var server = apiserver.NewShared(apiserver.HubControllers())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// hub is a hub with globalnet range 120.0.0.0/8 as deploy-broker leaves it.
type hub struct {
	admin  client.Client
	config *rest.Config
	// registrar has the credential of broker-info.subm.
	registrar client.Client
}

var fabric = netip.MustParsePrefix("241.0.0.0/8")

// openHub sets the shared hub up; doing so again for every test is part of the test.
func openHub(t *testing.T) hub {
	t.Helper()
	book, err := NewBook(true, netip.MustParsePrefix("120.0.0.0/8"), 65536)
	if err == nil {
		book, err = book.WithClusterSetIPs(netip.MustParsePrefix("243.0.0.0/8"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return openHubWith(t, book)
}

func openHubWith(t *testing.T, book Book) hub {
	t.Helper()
	ctx := context.Background()
	cfg := server.Config(t)
	if err := manifests.HubBase(ctx, newClient(t, cfg), t.Logf); err != nil {
		t.Fatal(err)
	}
	admin := newClient(t, cfg)
	uid, err := ClusterUID(ctx, admin)
	if err != nil {
		t.Fatal(err)
	}
	set := Clusterset{Mode: "submariner", HubID: uid, Components: []string{"connectivity", "service-discovery"}, Fabric: fabric,
		// each policy refuses alone what tests have it refuse
		ClusterRanges: prefixes("198.0.0.0/8", "203.0.0.0/8", "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "64.0.0.0/7"), AutoAcceptNetwork: true, Hub: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}
	if _, err := Setup(ctx, admin, book, set, nil); err != nil {
		t.Fatal(err)
	}
	if err := manifests.Hub(ctx, admin, t.Logf); err != nil {
		t.Fatal(err)
	}
	secret, err := Credential(ctx, admin, cfg.CAData)
	if err != nil {
		t.Fatal(err)
	}
	return hub{admin: admin, config: cfg, registrar: withToken(t, cfg, string(secret.Data[corev1.ServiceAccountTokenKey]))}
}

func newClient(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := manifests.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withToken is a client that has the token's rights alone.
func withToken(t *testing.T, cfg *rest.Config, token string) client.Client {
	t.Helper()
	anonymous := rest.AnonymousClientConfig(cfg)
	anonymous.BearerToken = token
	anonymous.QPS = -1
	return newClient(t, anonymous)
}

// join registers a cluster as `pelago join` does and returns a client with its credential. Its pod
// and service ranges are those of the walk-through.
func (h hub) join(t *testing.T, id string, cidr string) (client.Client, Entry) {
	t.Helper()
	return h.joinWith(t, id, cidr, prefixes("10.7.0.0/16", "10.77.0.0/16"))
}

// joinWith is join with these ranges of pods and services.
func (h hub) joinWith(t *testing.T, id string, cidr string, local []netip.Prefix) (client.Client, Entry) {
	t.Helper()
	ctx := context.Background()
	r := Request{ClusterID: id, ClusterUID: "uid-of-" + id, Pods: local, Fabric: fabric}
	if cidr != "" {
		r.GlobalCIDR = netip.MustParsePrefix(cidr)
	}
	entry, err := Claim(ctx, h.registrar, manifests.BrokerNamespace, r)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := Identity(ctx, h.registrar, manifests.BrokerNamespace, id, "")
	if err != nil {
		t.Fatal(err)
	}
	token, err := Token(ctx, h.registrar, manifests.BrokerNamespace, id, proof)
	if err != nil {
		t.Fatal(err)
	}
	if err := Admit(ctx, h.registrar, manifests.BrokerNamespace, Member{Entry: entry, PodCIDR: local[:1], ServiceCIDR: local[1:], Fabric: fabric}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unregister(ctx, h.admin, manifests.BrokerNamespace, id); err != nil {
			t.Error(err)
		}
	})
	return withToken(t, h.config, token), entry
}

// refused fails the test unless err is a refusal that names what is wrong.
func refused(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: allowed, want a refusal", what)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: refused with %q, which does not say %q", what, err, word)
		}
	}
}
