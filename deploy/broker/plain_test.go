package broker

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// A clusterset without globalnet: whoever joins has addresses of its own, and claims those and its
// part of the fabric.
func TestClustersetWithoutGlobalnet(t *testing.T) {
	plain, err := NewBook(false, netip.Prefix{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := openHubWith(t, plain)
	ctx := context.Background()
	one, first := h.joinWith(t, "c1", "", prefixes("10.7.0.0/16", "10.77.0.0/16"))
	if first.ClusterIndex != 1 || len(first.GlobalCIDR) > 0 {
		t.Errorf("c1 got %+v, want index 1 and no GlobalCIDR", first)
	}
	if err := Admit(ctx, h.registrar, manifests.BrokerNamespace, Member{Entry: first, PodCIDR: prefixes("10.7.0.0/16"), ServiceCIDR: prefixes("10.77.0.0/16"),
		Fabric: fabric, Needed: []netip.Addr{netip.MustParseAddr("172.31.1.2"), netip.MustParseAddr("172.31.1.53")}}); err != nil {
		t.Fatal(err)
	}

	good := Request{ClusterID: "c2", ClusterUID: "uid-of-c2", Pods: prefixes("10.8.0.0/16", "10.88.0.0/16"), Fabric: fabric,
		Nodes: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	for name, tt := range map[string]struct {
		change func(*Request)
		words  []string
	}{
		"another's pods": {func(r *Request) { r.Pods = prefixes("10.7.128.0/17", "10.88.0.0/16") },
			[]string{"10.7.128.0/17 overlaps 10.7.0.0/16", `"c1"`, "globalnet"}},
		"pods that are another's services": {func(r *Request) { r.Pods = prefixes("10.76.0.0/15", "10.88.0.0/16") },
			[]string{"10.76.0.0/15 overlaps 10.77.0.0/16"}},
		"nodes among another's pods": {func(r *Request) { r.Nodes = []netip.Addr{netip.MustParseAddr("10.7.3.4")} },
			[]string{"10.7.3.4/32 overlaps 10.7.0.0/16"}},
		"pods in the fabric": {func(r *Request) { r.Pods = prefixes("241.9.0.0/16", "10.88.0.0/16") },
			[]string{"241.9.0.0/16", "fabric range 241.0.0.0/8", "--fabric-cidr"}},
		"nodes in the fabric": {func(r *Request) { r.Nodes = []netip.Addr{netip.MustParseAddr("241.1.1.1")} },
			[]string{"241.1.1.1/32", "fabric range 241.0.0.0/8"}},
		"a link-local range": {func(r *Request) { r.Pods = prefixes("169.254.0.0/24", "10.88.0.0/16") },
			[]string{"169.254.0.0/24 overlaps 169.254.0.0/16 (link-local)", "--globalnet"}},
		"a range larger than a /8": {func(r *Request) { r.Pods = prefixes("64.0.0.0/7", "10.88.0.0/16") },
			[]string{"64.0.0.0/7 is larger than a /8"}},
		"the hub's address": {func(r *Request) {
			r.Pods, r.Hub = prefixes("203.0.113.0/24", "10.88.0.0/16"), []netip.Addr{netip.MustParseAddr("203.0.113.7")}
		},
			[]string{"203.0.113.0/24 contains the hub's address 203.0.113.7"}},
		"external hosts among another's pods": {func(r *Request) { r.External = prefixes("10.7.9.0/24") },
			[]string{"10.7.9.0/24 overlaps 10.7.0.0/16", `"c1"`}},
		"public pods": {func(r *Request) { r.Pods, r.Allowed = prefixes("11.0.0.0/16", "10.88.0.0/16"), spec.PrivateRanges() },
			[]string{"11.0.0.0/16 lies outside", "10.0.0.0/8, 172.16.0.0/12", "pelago deploy-broker --cluster-ranges 11.0.0.0/16"}},
		"public hosts": {func(r *Request) { r.External, r.Allowed = prefixes("198.51.100.0/24"), spec.PrivateRanges() },
			[]string{"198.51.100.0/24 lies outside"}},
		"external hosts with a node among them": {func(r *Request) { r.External = prefixes("192.0.2.0/24") },
			[]string{"spec.externalCIDR 192.0.2.0/24 contains the address 192.0.2.2 of a node", "without the nodes"}},
		"pods among its own nodes": {func(r *Request) { r.Pods = prefixes("192.0.0.0/16", "10.88.0.0/16") },
			[]string{"spec.clusterCIDR 192.0.0.0/16 contains the address 192.0.2.2 of a node", "use a clusterset with globalnet"}},
		"services among its own nodes": {func(r *Request) { r.Services = prefixes("192.0.2.0/28") },
			[]string{"spec.serviceCIDR 192.0.2.0/28 contains the address 192.0.2.2 of a node"}},
		"another's API server": {func(r *Request) { r.Pods = prefixes("10.8.0.0/16", "172.31.1.0/29") },
			[]string{`172.31.1.0/29 contains 172.31.1.2, the address of the API server, a name server or a node of cluster "c1"`, "globalnet"}},
		"an API server among another's pods": {func(r *Request) { r.Needed = []netip.Addr{netip.MustParseAddr("10.7.3.4")} },
			[]string{"10.7.3.4/32 overlaps 10.7.0.0/16"}},
		"a GlobalCIDR": {func(r *Request) { r.GlobalCIDR = netip.MustParsePrefix("120.1.0.0/24") },
			[]string{"no globalnet", "join without spec.globalCIDR"}},
	} {
		r := good
		tt.change(&r)
		_, err := Claim(ctx, h.registrar, manifests.BrokerNamespace, r)
		refused(t, name, err, tt.words...)
	}
	_, second := h.joinWith(t, "c2", "", prefixes("10.8.0.0/16", "10.88.0.0/16"))

	// A registered cluster grows as it joins: into no other's ranges, whatever its own `join` checks.
	registered := func() []any {
		c, book := &submarinerv1.Cluster{}, &corev1.ConfigMap{}
		for name, obj := range map[string]client.Object{"c2": c, AllocationConfigMap: book} {
			if err := h.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj); err != nil {
				t.Fatal(err)
			}
		}
		return []any{c, book}
	}
	before := registered()
	grown := good
	grown.Pods = prefixes("10.6.0.0/15", "10.8.0.0/16", "10.88.0.0/16")
	_, err = Claim(ctx, h.registrar, manifests.BrokerNamespace, grown)
	refused(t, "growth into another's pods", err, "10.6.0.0/15 overlaps 10.7.0.0/16", `"c1"`)
	err = Admit(ctx, h.registrar, manifests.BrokerNamespace, Member{Entry: second, PodCIDR: prefixes("10.6.0.0/15", "10.8.0.0/16"), ServiceCIDR: prefixes("10.88.0.0/16"), Fabric: fabric})
	refused(t, "growth into another's pods, unclaimed", err, "overlap those of cluster 'c1'")
	if diff := cmp.Diff(before, registered()); diff != "" {
		t.Errorf("what is registered of c2 has changed: -before +after\n%s", diff)
	}

	reach := func(ip string) *submarinerv1.Endpoint {
		e := endpoint("c1", "192.0.2.1", "10.7.0.0/16")
		e.Spec.BackendConfig = map[string]string{submarinerv1.BackendFabricIP: ip}
		return e
	}
	settle(t, one, endpoint("c1", "192.0.2.1", "10.7.0.0/16", "10.77.0.0/16", "241.0.64.0/18"))
	for name, tt := range map[string]struct {
		obj  client.Object
		want string // "" = allowed
	}{
		"its fabric":                     {endpoint("c1", "192.0.2.1", "241.0.64.0/18"), ""},
		"another's fabric":               {endpoint("c1", "192.0.2.1", "241.0.128.0/18"), "spec.subnets of cluster 'c1'"},
		"the whole fabric":               {endpoint("c1", "192.0.2.1", "241.0.0.0/8"), "spec.subnets of cluster 'c1'"},
		"its fabric address":             {reach("241.0.64.1"), ""},
		"another's fabric address":       {reach("241.0.128.1"), "must lie inside its share of the fabric, 241.0.64.0/18"},
		"a fabric address that is none":  {reach("here"), "must lie inside its share of the fabric"},
		"a pod in a slice":               {slice("c1", "web.abc", "10.7.2.5"), ""},
		"a node's fabric address in one": {slice("c1", "web.abc", "241.0.64.3"), ""},
		// by either of two rules, of which the server names one
		"another's fabric address in one":   {slice("c1", "web.abc", "241.0.128.3"), "lie inside"},
		"a node's own address in one":       {slice("c1", "web.abc", "192.0.2.1"), "must lie inside"},
		"a contribution with its ClusterIP": {contribution("c1", "web", "10.77.0.9"), ""},
		"a contribution with a pod":         {contribution("c1", "web", "10.7.0.9"), "must lie inside"},
	} {
		err := one.Create(ctx, tt.obj, client.DryRunAll)
		if tt.want == "" && err != nil {
			t.Errorf("%s: refused: %v", name, err)
		} else if tt.want != "" {
			refused(t, name, err, tt.want)
		}
	}

	// What a join with a changed command line could register: the hub's policies refuse it.
	if err := one.Create(ctx, endpoint("c1", "198.51.100.1")); err != nil {
		t.Fatal(err)
	}
	for pods, want := range map[string]string{
		"10.8.4.0/24":        "", // c2 itself was registered with 10.8.0.0/16
		"169.254.169.254/32": "hosts do not route", "127.0.0.0/8": "hosts do not route", "224.0.0.0/24": "hosts do not route",
		// by one of several, of which the server names one
		"0.0.0.0/32": "hosts do not route", "255.255.255.255/32": "hosts do not route", "0.0.0.0/0": "ValidatingAdmissionPolicy 'pelago-clusters",

		"::/0": "hosts do not route", "::1/128": "hosts do not route", "fe80::/64": "hosts do not route", "ff02::/16": "hosts do not route",
		"64.0.0.0/7": "larger than a /8", "::ffff:10.8.0.0/112": "ValidatingAdmissionPolicy 'pelago-clusters", "10.8.0.1/16": "CIDR notation",
		"8.8.8.0/24": "lie outside of those", "11.0.0.0/16": "lie outside of those",
		"203.0.113.0/24": "contain an address of the hub: 203.0.113.7", "198.51.100.0/24": "the address of a gateway of cluster 'c1'",
		"172.31.1.0/29": "contain an address of the API server, a name server or a node of cluster 'c1': 172.31.1.2, 172.31.1.53", "172.31.1.56/29": "",
	} {
		var err error
		if waited := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			cluster := &submarinerv1.Cluster{}
			if err := h.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "c2"}, cluster); err != nil {
				return false, err
			}
			cluster.Spec.ClusterCIDR = []string{pods}
			err = h.admin.Update(ctx, cluster, client.DryRunAll)
			return (err == nil) == (want == ""), nil
		}); waited != nil {
			t.Errorf("%s: %v, want %q", pods, err, want)
		} else if want != "" {
			refused(t, pods, err, want)
		}
	}

	// The fabric stays what clusters have joined with.
	set, err := ReadClusterset(ctx, h.registrar, manifests.BrokerNamespace)
	if err != nil || set.Fabric != fabric {
		t.Fatalf("the clusterset's fabric is %s, %v; want %s", set.Fabric, err, fabric)
	}
	set.Fabric = netip.MustParsePrefix("242.0.0.0/8")
	_, err = Setup(ctx, h.admin, plain, set, nil)
	refused(t, "another fabric", err, "from 241.0.0.0/8 to 242.0.0.0/8", "2 clusters have joined", "pelago unjoin")
	set.Fabric = netip.MustParsePrefix("10.0.0.0/8")
	_, err = Setup(ctx, h.admin, plain, set, nil)
	refused(t, "a fabric over a cluster's pods", err, "10.7.0.0/16", "fabric range 10.0.0.0/8", "--fabric-cidr")
}

// Of a clusterset with globalnet no cluster stays outside.
func TestGlobalnetIsForAll(t *testing.T) {
	_, _, err := walkthrough(t).Allocate(Request{ClusterID: "c2", ClusterUID: "uid-2", NoGlobalnet: true, Pods: prefixes("10.8.0.0/16")})
	refused(t, "a cluster without globalnet", err, "has globalnet (120.0.0.0/8)", "without spec.globalnet=false", "pelago deploy-broker")
}
