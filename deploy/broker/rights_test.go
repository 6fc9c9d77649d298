package broker

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/peering"
	"github.com/pelago-net/pelago/deploy/manifests"
)

const namespace = manifests.BrokerNamespace

func endpoint(id, ip string, subnets ...string) *submarinerv1.Endpoint {
	subnets = append([]string{}, subnets...) // never null
	cable := "submariner-cable-" + id + "-" + strings.NewReplacer(".", "-", ":", "-").Replace(ip)
	return &submarinerv1.Endpoint{
		ObjectMeta: metav1.ObjectMeta{Name: id + "-" + cable, Namespace: namespace, Labels: map[string]string{submarinerv1.LabelClusterID: id}},
		Spec:       submarinerv1.EndpointSpec{ClusterID: id, CableName: cable, PrivateIP: ip, Backend: "vxlan", Subnets: subnets},
	}
}

func contribution(id, service string, ips ...string) *pelagov1alpha1.ServiceContribution {
	return &pelagov1alpha1.ServiceContribution{
		ObjectMeta: metav1.ObjectMeta{Name: id + ".sample." + service, Namespace: namespace, Labels: map[string]string{
			submarinerv1.LabelClusterID: id, submarinerv1.LabelSourceNamespace: "sample", mcs.LabelServiceName: service}},
		Spec: pelagov1alpha1.ServiceContributionSpec{Cluster: id, Namespace: "sample", Service: service,
			Type: pelagov1alpha1.ContributionClusterSetIP, IPs: ips, ExportedAt: metav1.NewTime(time.Unix(1700000000, 0))},
	}
}

func slice(id, name string, addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: id + "." + name, Namespace: namespace, Labels: map[string]string{
			submarinerv1.LabelClusterID: id, "multicluster.kubernetes.io/source-cluster": id,
			"service.kubernetes.io/service-proxy-name": "pelago",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
	}
}

// settle waits until the policies know the Clusters that were just made: their caches follow the
// writes.
func settle(t *testing.T, member client.Client, obj client.Object) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		last = member.Create(ctx, obj.DeepCopyObject().(client.Object), client.DryRunAll)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("a member's own object is still refused: %v", last)
	}
}

// two joins two clusters, g1 and g2, and returns their clients once the policies know both.
func (h hub) two(t *testing.T) (one, two client.Client) {
	t.Helper()
	one, _ = h.join(t, "g1", "120.1.0.0/24") // the entries in the book are not needed
	two, _ = h.join(t, "g2", "120.2.0.0/24")
	settle(t, one, endpoint("g1", "192.0.2.1", "120.1.0.0/24"))
	settle(t, two, endpoint("g2", "192.0.2.2", "120.2.0.0/24"))
	return one, two
}

// verbs are the ways to write an object.
var verbs = map[string]func(context.Context, client.Client, client.Object) error{
	"create": func(ctx context.Context, c client.Client, o client.Object) error { return c.Create(ctx, o) },
	"update": func(ctx context.Context, c client.Client, o client.Object) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		o.SetAnnotations(map[string]string{"touched": "by update"})
		return c.Update(ctx, o)
	},
	"patch": func(ctx context.Context, c client.Client, o client.Object) error {
		return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"by patch"}}}`)))
	},
	"delete": func(ctx context.Context, c client.Client, o client.Object) error { return c.Delete(ctx, o) },
}

func TestMemberWritesItsOwnObjectsOnly(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, two := h.two(t)

	steal := func(ctx context.Context, c client.Client, o client.Object) error {
		return c.Patch(ctx, o, client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"submariner-io/clusterID":"g1","multicluster.kubernetes.io/source-cluster":"g1"}}}`)))
	}
	all := func(ctx context.Context, c client.Client, o client.Object) error {
		return c.DeleteAllOf(ctx, o, client.InNamespace(namespace))
	}
	apply := func(ctx context.Context, c client.Client, o client.Object) error {
		o.GetObjectKind().SetGroupVersionKind(gvk(t, c, o))
		data, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return c.Patch(ctx, o, client.RawPatch(types.ApplyPatchType, data), client.FieldOwner("test"), client.ForceOwnership)
	}
	foreign := maps.Clone(verbs)
	foreign["take over by its labels"], foreign["delete collection"], foreign["apply"] = steal, all, apply

	for kind, p := range map[string]struct{ own, other client.Object }{
		"Endpoint":            {endpoint("g1", "192.0.2.1", "120.1.0.0/24"), endpoint("g2", "192.0.2.2", "120.2.0.0/24")},
		"ServiceContribution": {contribution("g1", "web", "120.1.0.9"), contribution("g2", "web", "120.2.0.9")},
		"EndpointSlice":       {slice("g1", "web.abc", "120.1.0.9"), slice("g2", "web.abc", "120.2.0.9")},
	} {
		t.Run(kind, func(t *testing.T) {
			if err := foreign["create"](ctx, one, p.other.DeepCopyObject().(client.Object)); !apierrors.IsForbidden(err) {
				t.Errorf("g1 creates g2's: %v, want 403", err)
			}
			if err := two.Create(ctx, p.other.DeepCopyObject().(client.Object)); err != nil {
				t.Fatalf("g2 creates its own: %v", err)
			}
			for verb, do := range foreign {
				o := p.other.DeepCopyObject().(client.Object)
				if err := do(ctx, one, o); !apierrors.IsForbidden(err) {
					t.Errorf("g1 does %s to g2's: %v, want 403", verb, err)
				}
			}
			for _, verb := range []string{"create", "update", "patch", "delete"} {
				if err := verbs[verb](ctx, one, p.own.DeepCopyObject().(client.Object)); err != nil {
					t.Errorf("g1 does %s to its own: %v", verb, err)
				}
			}
			if err := one.Get(ctx, client.ObjectKeyFromObject(p.other), p.other); err != nil {
				t.Errorf("g1 reads g2's: %v", err)
			}
		})
	}
}

func gvk(t *testing.T, c client.Client, o client.Object) schema.GroupVersionKind {
	t.Helper()
	g, err := c.GroupVersionKindFor(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestMemberClaimsItsOwnRangesOnly(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, _ := h.join(t, "g1", "120.1.0.0/24")
	h.join(t, "g2", "120.2.0.0/24")
	settle(t, one, endpoint("g1", "192.0.2.1", "120.1.0.0/24"))

	index := func(n string) *submarinerv1.Endpoint {
		e := endpoint("g1", "192.0.2.1", "120.1.0.0/24")
		e.Spec.BackendConfig = map[string]string{submarinerv1.BackendClusterIndex: n}
		return e
	}
	named := func(name string) *submarinerv1.Endpoint {
		e := endpoint("g1", "192.0.2.1", "120.1.0.0/24")
		e.Name = name
		return e
	}
	labelled := func(key, value string) *discoveryv1.EndpointSlice {
		s := slice("g1", "web.abc", "120.1.0.9")
		if value == "" {
			delete(s.Labels, key)
		} else {
			s.Labels[key] = value
		}
		return s
	}
	names := func() *discoveryv1.EndpointSlice {
		s := slice("g1", "web.abc", "example.org")
		s.AddressType = discoveryv1.AddressTypeFQDN
		return s
	}
	contributionTo := func(namespace, service string) *pelagov1alpha1.ServiceContribution {
		c := contribution("g1", "web", "120.1.0.9")
		c.Labels[submarinerv1.LabelSourceNamespace], c.Labels[mcs.LabelServiceName] = namespace, service
		return c
	}
	vip := func(ip string) *pelagov1alpha1.ServiceContribution {
		c := contribution("g1", "web", "120.1.0.9")
		c.Spec.ClusterSetIP = ip
		return c
	}
	with := func(o client.Object, annotations int) client.Object {
		o.SetAnnotations(map[string]string{"example.org/note": strings.Repeat("x", annotations)})
		return o
	}
	exporting := func(bytes int) *pelagov1alpha1.ServiceContribution {
		c := contribution("g1", "web", "120.1.0.9")
		c.Spec.ExportedAnnotations = map[string]string{"note": strings.Repeat("x", bytes)}
		return c
	}
	settings := func(bytes int) *submarinerv1.Endpoint {
		e := index("1")
		e.Spec.BackendConfig["note"] = strings.Repeat("x", bytes)
		return e
	}
	protocol := contribution("g1", "web", "120.1.0.9")
	protocol.Spec.Ports = []pelagov1alpha1.ContributionPort{{Protocol: corev1.ProtocolTCP, Port: 80, AppProtocol: ptr.To(strings.Repeat("x", 254))}}
	for name, tt := range map[string]struct {
		obj  client.Object
		want string // "" = allowed
	}{
		"contribution with 4,000 bytes":         {with(contribution("g1", "web", "120.1.0.9"), 4000), ""},
		"contribution with 5,000 bytes":         {with(contribution("g1", "web", "120.1.0.9"), 5000), "at most 4 KiB of labels and 4 KiB of annotations"},
		"slice with 250 KiB":                    {with(slice("g1", "web.abc", "120.1.0.9"), 250<<10), "at most 4 KiB of labels and 4 KiB of annotations"},
		"Endpoint with 5,000 bytes":             {with(endpoint("g1", "192.0.2.1"), 5000), "at most 4 KiB of labels and 4 KiB of annotations"},
		"exported annotations of 8,000 bytes":   {exporting(8000), ""},
		"exported annotations of 9,000 bytes":   {exporting(9000), "at most 8 KiB of exportedLabels and 8 KiB of exportedAnnotations"},
		"a long appProtocol":                    {protocol, "an appProtocol of at most 253 characters"},
		"backend settings of 3,000 bytes":       {settings(3000), "backend settings of at most 2,048 characters"},
		"its GlobalCIDR":                        {endpoint("g1", "192.0.2.1", "120.1.0.0/24"), ""},
		"a part of it":                          {endpoint("g1", "192.0.2.1", "120.1.0.128/25"), ""},
		"an IPv6 underlay":                      {endpoint("g1", "2001:db8::1", "120.1.0.0/24"), ""},
		"nothing":                               {endpoint("g1", "192.0.2.1"), ""},
		"more than it":                          {endpoint("g1", "192.0.2.1", "120.0.0.0/8"), "spec.subnets of cluster 'g1'"},
		"a free range":                          {endpoint("g1", "192.0.2.1", "120.3.0.0/24"), "must lie inside the ranges of its Cluster object: 120.1.0.0/24"},
		"its pods under globalnet":              {endpoint("g1", "192.0.2.1", "10.7.0.0/16"), "must lie inside"},
		"another's besides its own":             {endpoint("g1", "192.0.2.1", "120.1.0.0/24", "120.2.0.0/24"), "spec.subnets of cluster 'g1'"},
		"everything":                            {endpoint("g1", "192.0.2.1", "0.0.0.0/0"), "spec.subnets of cluster 'g1'"},
		"no range":                              {endpoint("g1", "192.0.2.1", "g2"), "spec.subnets of cluster 'g1'"},
		"host bits":                             {endpoint("g1", "192.0.2.1", "120.1.0.1/24"), "must lie inside"},
		"its index":                             {index("1"), ""},
		"another's index":                       {index("2"), "must be the index of its Cluster object, 1"},
		"a name with another's prefix":          {named("g1-x-submariner-cable-g1-x-192-0-2-1"), "is named <cluster id>-submariner-cable-"},
		"contribution":                          {contribution("g1", "web", "120.1.0.9"), ""},
		"contribution, headless":                {contribution("g1", "web"), ""},
		"contribution of another's address":     {contribution("g1", "web", "120.2.0.9"), "spec.ips of cluster 'g1'"},
		"contribution of an address of nobody":  {contribution("g1", "web", "8.8.8.8"), "must lie inside"},
		"contribution of no address":            {contribution("g1", "web", "localhost"), "spec.ips of cluster 'g1'"},
		"contribution labelled as another's":    {contributionTo("shop", "web"), "must be its spec.namespace and spec.service"},
		"contribution labelled as no service's": {contributionTo("sample", ""), "must be its spec.namespace and spec.service"},
		"a ClusterSetIP":                        {vip("243.0.0.9"), ""},
		"a copy of another's ClusterSetIP":      {vip("243.0.16.9"), ""},
		"a ClusterSetIP of no cluster":          {vip("8.8.8.8"), "must lie inside the clusterset's range of ClusterSetIPs: 243.0.0.0/8"},
		"a ClusterSetIP that is no address":     {vip("243.0.0.300"), "must lie inside the clusterset's range of ClusterSetIPs"},
		"slice":                                 {slice("g1", "web.abc", "120.1.0.9", "120.1.0.10"), ""},
		"slice with another's address":          {slice("g1", "web.abc", "120.1.0.9", "120.2.0.9"), "of cluster 'g1'"},
		"slice with an address of nobody":       {slice("g1", "web.abc", "10.7.0.5"), "must lie inside"},
		"slice with names":                      {names(), "of cluster 'g1'"},
		"slice for a Service of the hub":        {labelled("kubernetes.io/service-name", "kubernetes"), "never kubernetes.io/service-name"},
		"slice for kube-proxy":                  {labelled("service.kubernetes.io/service-proxy-name", ""), "service-proxy-name=pelago"},
		"slice in another's name":               {labelled("multicluster.kubernetes.io/source-cluster", "g2"), "with its own id in the labels"},
	} {
		t.Run(name, func(t *testing.T) {
			err := one.Create(ctx, tt.obj, client.DryRunAll)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && !apierrors.IsForbidden(err):
				t.Errorf("%v, want 403", err)
			case tt.want != "" && !strings.Contains(err.Error(), tt.want):
				t.Errorf("refused with %q, which does not say %q", err, tt.want)
			}
		})
	}
}

// A member that pelago-hub has found at its limit makes no further object of that kind, and the
// refusal names the remedy. It may change what it has, and others are not affected.
func TestMemberNumbersAreLimited(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, two := h.two(t)
	if err := one.Create(ctx, contribution("g1", "web", "120.1.0.9")); err != nil {
		t.Fatal(err)
	}
	set := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ClustersetConfigMap}}
	mark := func(members string) {
		t.Helper()
		if err := h.admin.Patch(ctx, set, client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"`+pelagov1alpha1.AnnotationAtLimit+`":"`+members+`"}}}`))); err != nil {
			t.Fatal(err)
		}
	}
	mark("g1/servicecontributions,g3/endpointslices")
	t.Cleanup(func() { mark("") })
	var err error
	if waited := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err = one.Create(ctx, contribution("g1", "shop", "120.1.0.9"), client.DryRunAll)
		return err != nil, nil
	}); waited != nil {
		t.Fatal("g1 exports more services than it may")
	}
	refused(t, "another service", err, "cluster 'g1' has as many servicecontributions at the hub as a member may have, 5000",
		"an administrator of the hub run pelago deploy-broker --member-objects")
	if !apierrors.IsForbidden(err) {
		t.Errorf("another service: %v, want 403", err)
	}
	openHub(t) // deploy-broker again
	refused(t, "another service after deploy-broker", one.Create(ctx, contribution("g1", "shop", "120.1.0.9"), client.DryRunAll), "at the hub as a member may have")
	for what, err := range map[string]error{
		"an update": verbs["update"](ctx, one, contribution("g1", "web", "120.1.0.9")),
		"a slice":   one.Create(ctx, slice("g1", "web.abc", "120.1.0.9"), client.DryRunAll),
		"another":   two.Create(ctx, contribution("g2", "web", "120.2.0.9"), client.DryRunAll),
		"deletion":  verbs["delete"](ctx, one, contribution("g1", "web", "120.1.0.9")),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	mark("")
	settle(t, one, contribution("g1", "shop", "120.1.0.9"))
}

// Who published a key first keeps it, also as the key of the standby tunnel; so does an address on
// the wire vxlan.
func TestAKeyBelongsToTheClusterThatPublishesItFirst(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, _ := h.join(t, "g1", "120.1.0.0/24")
	two, _ := h.join(t, "g2", "120.2.0.0/24")
	keys := func(id, ip, keys, standby string) *submarinerv1.Endpoint {
		e := endpoint(id, ip)
		e.Spec.Backend = "wireguard"
		e.Spec.BackendConfig = map[string]string{submarinerv1.BackendPublicKey: keys, submarinerv1.BackendStandbyKey: standby}
		return e
	}
	settle(t, one, endpoint("g1", "192.0.2.1"))
	settle(t, two, endpoint("g2", "192.0.2.2"))
	victim, vxlan := keys("g2", "192.0.2.2", "a,b", "c"), endpoint("g2", "192.0.2.3")
	for _, e := range []*submarinerv1.Endpoint{victim, vxlan} {
		if err := two.Create(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	behindNAT := endpoint("g1", "192.0.2.1")
	behindNAT.Spec.NATEnabled, behindNAT.Spec.PublicIP = true, "192.0.2.3"
	for name, e := range map[string]*submarinerv1.Endpoint{
		"a key": keys("g1", "192.0.2.1", "b", ""), "a key as standby": keys("g1", "192.0.2.1", "d", "a"),
		"the standby key": keys("g1", "192.0.2.1", "d,c", ""), "an address": endpoint("g1", "192.0.2.3"), "an address behind NAT": behindNAT,
	} {
		var err error
		if waited := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			err = one.Create(ctx, e.DeepCopy(), client.DryRunAll)
			return apierrors.IsForbidden(err), nil
		}); waited != nil {
			t.Errorf("g1 copies %s of g2: %v, want 403", name, err)
			continue
		}
		refused(t, name, err, "belongs to cluster 'g2'", "pelago gateway rotate-keys")
	}
	own := keys("g1", "192.0.2.1", "d", "e")
	if err := one.Create(ctx, own); err != nil {
		t.Fatalf("g1 publishes its own keys: %v", err)
	}
	own.Spec.BackendConfig[submarinerv1.BackendStandbyKey] = "a"
	refused(t, "g1 changes its standby key", one.Update(ctx, own), "belongs to cluster 'g2'")
	if err := two.Create(ctx, keys("g2", "192.0.2.9", "a,b", "c"), client.DryRunAll); err != nil {
		t.Errorf("g2's gateway moves to another address: %v", err)
	}
	victim.Spec.BackendConfig[submarinerv1.BackendDraining] = "0"
	if err := two.Update(ctx, victim); err != nil {
		t.Errorf("g2 updates its Endpoint: %v", err)
	}
}

func TestMemberReadsNoSecretAndChangesNoRight(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, _ := h.join(t, "g1", "")
	h.join(t, "g2", "")
	settle(t, one, endpoint("g1", "192.0.2.1"))
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }

	registration := &corev1.Secret{}
	if err := h.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: RegistrationName("g1")}, registration); err != nil {
		t.Fatal(err)
	}
	// renewed requests a token as the agent does; without a UID it is not bound to the registration.
	renewed := func(uid types.UID, life time.Duration) error {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second))}}
		if uid != "" {
			request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: registration.Name, UID: uid}
		}
		return one.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta("cluster-g1")}, request)
	}
	for name, err := range map[string]error{
		"list Clusters":                                one.List(ctx, &submarinerv1.ClusterList{}, client.InNamespace(namespace)),
		"list Endpoints":                               one.List(ctx, &submarinerv1.EndpointList{}, client.InNamespace(namespace)),
		"list contributions":                           one.List(ctx, &pelagov1alpha1.ServiceContributionList{}, client.InNamespace(namespace)),
		"list EndpointSlices":                          one.List(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(namespace)),
		"get the allocations":                          one.Get(ctx, client.ObjectKey{Namespace: namespace, Name: AllocationConfigMap}, &corev1.ConfigMap{}),
		"get the clusterset":                           one.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ClustersetConfigMap}, &corev1.ConfigMap{}),
		"renew its token":                              renewed(registration.UID, TokenLife),
		"get the token by which it returns":            renewed(registration.UID, peering.ReturnLife),
		"renew a token without end, of older clusters": renewed("", TokenLife),
		"watch the clusterset":                         one.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": ClustersetConfigMap}),
	} {
		if err != nil {
			t.Errorf("%s: %v, want it allowed", name, err)
		}
	}

	own := &submarinerv1.Cluster{ObjectMeta: meta("g1")}
	if err := one.Get(ctx, client.ObjectKeyFromObject(own), own); err != nil {
		t.Fatal(err)
	}
	own.Spec.GlobalCIDR = []string{"120.200.0.0/16"}
	for name, err := range map[string]error{
		"get the IPsec key":             one.Get(ctx, client.ObjectKey{Namespace: namespace, Name: PSKSecret}, &corev1.Secret{}),
		"get another's registration":    one.Get(ctx, client.ObjectKey{Namespace: namespace, Name: RegistrationName("g2")}, &corev1.Secret{}),
		"get its own registration":      one.Get(ctx, client.ObjectKey{Namespace: namespace, Name: RegistrationName("g1")}, &corev1.Secret{}),
		"list Secrets":                  one.List(ctx, &corev1.SecretList{}, client.InNamespace(namespace)),
		"list Secrets of kube-system":   one.List(ctx, &corev1.SecretList{}, client.InNamespace("kube-system")),
		"list ConfigMaps":               one.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(namespace)),
		"list ServiceAccounts":          one.List(ctx, &corev1.ServiceAccountList{}, client.InNamespace(namespace)),
		"list Endpoints elsewhere":      one.List(ctx, &submarinerv1.EndpointList{}),
		"update its own Cluster":        one.Update(ctx, own),
		"delete its own Cluster":        one.Delete(ctx, own),
		"delete another's Cluster":      one.Delete(ctx, &submarinerv1.Cluster{ObjectMeta: meta("g2")}),
		"change the allocations":        verbs["patch"](ctx, one, &corev1.ConfigMap{ObjectMeta: meta(AllocationConfigMap)}),
		"change the clusterset":         verbs["patch"](ctx, one, &corev1.ConfigMap{ObjectMeta: meta(ClustersetConfigMap)}),
		"get a token for longer":        renewed(registration.UID, peering.ReturnLife+time.Second),
		"get one that is not bound":     renewed("", 30*24*time.Hour),
		"get another's token":           one.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta("cluster-g2")}, &authenticationv1.TokenRequest{}),
		"get the registrar's token":     one.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta(manifests.RegistrarAccount)}, &authenticationv1.TokenRequest{}),
		"create a ServiceAccount":       one.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta("cluster-x")}),
		"change its role binding":       verbs["patch"](ctx, one, &rbacv1.RoleBinding{ObjectMeta: meta("cluster-g1")}),
		"delete an admission policy":    one.Delete(ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "pelago-member-endpoints"}}),
		"create a Pod":                  one.Create(ctx, &corev1.Pod{ObjectMeta: meta("x"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}),
		"create an Endpoint in default": one.Create(ctx, &submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", name, err)
		}
	}
}

// A member reports how it reaches the hub in its own Lease, reads what the hub announces and cannot
// forge it; neither can the holder of broker-info.subm.
func TestMembersDoNotForgeTheHubsAddress(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, _ := h.join(t, "g1", "")
	h.join(t, "g2", "")
	settle(t, one, endpoint("g1", "192.0.2.1"))
	lease := func(name, server string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &server}}
	}
	set := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ClustersetConfigMap, Namespace: namespace}}
	}
	if err := one.Create(ctx, lease("cluster-g1", "https://hub.example.com")); err != nil {
		t.Errorf("a member creates its Lease: %v", err)
	}
	if err := h.admin.Create(ctx, lease("cluster-g2", "https://hub.example.com")); err != nil {
		t.Fatal(err)
	}
	long := func() error {
		l := lease("cluster-g1", "")
		if err := one.Get(ctx, client.ObjectKeyFromObject(l), l); err != nil {
			return err
		}
		*l.Spec.HolderIdentity = strings.Repeat("x", 513)
		return one.Update(ctx, l)
	}
	for name, err := range map[string]error{
		"write another's Lease":          verbs["update"](ctx, one, lease("cluster-g2", "")),
		"create a Lease of no cluster":   one.Create(ctx, lease("pelago-hub", "https://evil.example.com")),
		"a Lease with a long text":       long(),
		"delete its Lease":               one.Delete(ctx, lease("cluster-g1", "")),
		"the registrar creates a Lease":  h.registrar.Create(ctx, lease(manifests.RegistrarAccount, "")),
		"write the announcement":         verbs["update"](ctx, one, set()),
		"delete the announcement":        one.Delete(ctx, set()),
		"the registrar writes it":        verbs["patch"](ctx, h.registrar, set()),
		"the registrar deletes it":       h.registrar.Delete(ctx, set()),
		"a member creates a ConfigMap":   one.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: namespace}}),
		"the registrar reports for g1":   h.registrar.Create(ctx, lease("cluster-g3", "")),
		"a member lists what others use": one.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace)),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", name, err)
		}
	}
	// With the rights that RBAC does not give, the policy still refuses it.
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "careless", Namespace: namespace},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: AccountName("g1"), Namespace: namespace}}}
	if err := h.admin.Create(ctx, binding); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.admin.Delete(context.Background(), binding) }) // the hub ends with the package
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return one.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace)) == nil, nil
	})
	if err != nil {
		t.Fatal("the careless binding has no effect")
	}
	if err := verbs["update"](ctx, one, set()); err == nil || !strings.Contains(err.Error(), "pelago-member-address") {
		t.Errorf("a member with rights to write ConfigMaps writes the announcement: %v, want the policy's refusal", err)
	}
	left, err := NotFollowing(ctx, h.admin, namespace)
	if err != nil || len(left) != 0 {
		t.Errorf("without an announcement these do not follow: %v, %v", left, err)
	}
	announced := set()
	if err := h.admin.Get(ctx, client.ObjectKeyFromObject(announced), announced); err != nil {
		t.Fatal(err)
	}
	announced.Data["broker-url"] = "https://next.example.com"
	if err := h.admin.Update(ctx, announced); err != nil {
		t.Fatal(err)
	}
	if left, err = NotFollowing(ctx, h.admin, namespace); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range left {
		if f.ClusterID == "g1" || f.ClusterID == "g2" {
			lines = append(lines, f.String())
		}
	}
	if got := strings.Join(lines, "; "); got != "g1: uses https://hub.example.com; g2: uses https://hub.example.com" {
		t.Errorf("not following: %s", got)
	}
}

// A member whose Cluster object is deleted loses its rights, as its role bindings go with it, and
// gets them back by joining again.
func TestRightsEndWithTheClusterObject(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, entry := h.join(t, "g1", "")
	settle(t, one, endpoint("g1", "192.0.2.1"))
	if err := h.admin.Delete(ctx, &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "g1", Namespace: namespace}}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		return apierrors.IsForbidden(one.List(ctx, &submarinerv1.EndpointList{}, client.InNamespace(namespace))), nil
	})
	if err != nil {
		t.Errorf("minutes after its Cluster was deleted the member still reads Endpoints")
	}
	// At once after a deletion the former bindings are still there, about to be collected.
	m := Member{Entry: entry, PodCIDR: prefixes("10.7.0.0/16"), ServiceCIDR: prefixes("10.77.0.0/16"), Fabric: fabric}
	for range 2 {
		if err := h.admin.Delete(ctx, &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "g1", Namespace: namespace}}); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if err := Admit(ctx, h.registrar, namespace, m); err != nil {
			t.Fatal(err)
		}
		settle(t, one, endpoint("g1", "192.0.2.1"))
	}
}
