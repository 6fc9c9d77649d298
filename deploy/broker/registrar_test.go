package broker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/await"
)

// The credential of broker-info.subm registers clusters and does nothing else; least of all to a
// registered member.
func TestRegistrarOnlyRegisters(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	h.join(t, "g1", "120.1.0.0/24")
	r := h.registrar
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	token := func(account string, spec authenticationv1.TokenRequestSpec) error {
		return r.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta(account)}, &authenticationv1.TokenRequest{Spec: spec})
	}
	bound := func(name string, uid types.UID) authenticationv1.TokenRequestSpec {
		return authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: name, UID: uid}}
	}
	secret := func(name string, kind corev1.SecretType, annotations map[string]string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: meta(name), Type: kind}
		s.Annotations = annotations
		return s
	}
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: meta(name), Rules: rules}
	}
	renew := func(accounts ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"}, ResourceNames: accounts}
	}
	binding := func(name, kind, role, account, cluster string) *rbacv1.RoleBinding {
		b := &rbacv1.RoleBinding{ObjectMeta: meta(name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: namespace}}}
		b.OwnerReferences = []metav1.OwnerReference{{APIVersion: "submariner.io/v1", Kind: "Cluster", Name: cluster, UID: "u"}}
		return b
	}
	week := int64(TokenLife / time.Second)
	month := 4 * week
	long := bound(RegistrationName("g1"), "x")
	long.ExpirationSeconds = &month

	chosen := &submarinerv1.Cluster{ObjectMeta: meta("g7"), Spec: submarinerv1.ClusterSpec{ClusterID: "g7", GlobalCIDR: []string{"120.7.0.0/24"}}}
	chosen.Labels = map[string]string{submarinerv1.LabelClusterID: "g7", "env": "prod"}
	chosen.Annotations = map[string]string{"pelago.io/cluster-uid": "u", "pelago.io/cluster-index": "7"}
	if err := r.Create(ctx, chosen); err == nil || !strings.Contains(err.Error(), "the administrator of the hub does") {
		t.Errorf("a Cluster with labels of its own choice: %v, want it refused", err)
	}

	for name, err := range map[string]error{
		"token of a member":                          token("cluster-g1", authenticationv1.TokenRequestSpec{}),
		"token of a member bound by name":            token("cluster-g1", bound(RegistrationName("g1"), "")),
		"token of a member bound to another's":       token("cluster-g1", bound(RegistrationName("g2"), "x")),
		"token for a month":                          token("cluster-g1", long),
		"its own token":                              token(manifests.RegistrarAccount, authenticationv1.TokenRequestSpec{}),
		"token of the default account":               token("default", authenticationv1.TokenRequestSpec{}),
		"read a registration":                        r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: RegistrationName("g1")}, &corev1.Secret{}),
		"read the IPsec key":                         r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: PSKSecret}, &corev1.Secret{}),
		"list Secrets":                               r.List(ctx, &corev1.SecretList{}, client.InNamespace(namespace)),
		"read a ServiceAccount":                      r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "cluster-g1"}, &corev1.ServiceAccount{}),
		"delete a ServiceAccount":                    r.Delete(ctx, &corev1.ServiceAccount{ObjectMeta: meta("cluster-g1")}),
		"delete a registration":                      r.Delete(ctx, &corev1.Secret{ObjectMeta: meta(RegistrationName("g1"))}),
		"learn a registration's UID by a deletion":   r.Delete(ctx, &corev1.Secret{ObjectMeta: meta(RegistrationName("g1"))}, client.DryRunAll, client.Preconditions{UID: new(types.UID)}),
		"apply a registration":                       verbs["patch"](ctx, r, &corev1.Secret{ObjectMeta: meta(RegistrationName("g1"))}),
		"ServiceAccount of another name":             r.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta("admin")}),
		"ServiceAccount of no valid id":              r.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta("cluster-a.b")}),
		"ServiceAccount of a long id":                r.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta("cluster-" + strings.Repeat("a", 49))}),
		"ServiceAccount in kube-system":              r.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cluster-x", Namespace: "kube-system"}}),
		"Secret that gets a token":                   r.Create(ctx, secret(RegistrationName("g9"), corev1.SecretTypeServiceAccountToken, map[string]string{"kubernetes.io/service-account.name": "cluster-g1"})),
		"Secret of another name":                     r.Create(ctx, secret("x", pelagov1alpha1.SecretTypeRegistration, nil)),
		"Role with other rights":                     r.Create(ctx, role("cluster-x.token", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"}})),
		"Role for another's token":                   r.Create(ctx, role("cluster-x.token", renew("cluster-g1"))),
		"Role for two tokens":                        r.Create(ctx, role("cluster-x.token", renew("cluster-x", "cluster-g1"))),
		"Role of another name":                       r.Create(ctx, role("x", renew("cluster-x"))),
		"binding of another account to the members'": r.Create(ctx, binding("cluster-x", "Role", manifests.MemberRole, "default", "x")),
		"binding to the registrar's role":            r.Create(ctx, binding("cluster-x", "Role", manifests.RegistrarAccount, "cluster-x", "x")),
		"binding to cluster-admin":                   r.Create(ctx, binding("cluster-x", "ClusterRole", "cluster-admin", "cluster-x", "x")),
		"binding to another's token":                 r.Create(ctx, binding("cluster-x.token", "Role", "cluster-g1.token", "cluster-x", "x")),
		"binding that is not owned by the Cluster":   r.Create(ctx, binding("cluster-x", "Role", manifests.MemberRole, "cluster-x", "g1")),
		"binding of another name":                    r.Create(ctx, binding("x", "Role", manifests.MemberRole, "cluster-x", "x")),
		"change of a member's Cluster":               verbs["patch"](ctx, r, &submarinerv1.Cluster{ObjectMeta: meta("g1")}),
		"deletion of a member's Cluster":             r.Delete(ctx, &submarinerv1.Cluster{ObjectMeta: meta("g1")}),
		"Endpoint in a member's name":                r.Create(ctx, endpoint("g1", "192.0.2.1", "120.1.0.0/24")),
		"change of the clusterset":                   verbs["patch"](ctx, r, &corev1.ConfigMap{ObjectMeta: meta(ClustersetConfigMap)}),
		"another ConfigMap":                          r.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("x")}),
		"patch of a RoleBinding":                     verbs["patch"](ctx, r, &rbacv1.RoleBinding{ObjectMeta: meta("cluster-g1")}),
		"deletion of a RoleBinding":                  r.Delete(ctx, &rbacv1.RoleBinding{ObjectMeta: meta("cluster-g1")}),
		"range of the clusterset":                    changeData(ctx, r, "globalnetCidrRange", "0.0.0.0/0"),
		"size of a share":                            changeData(ctx, r, "globalnetClusterSize", "16"),
		"new key of the allocations":                 changeData(ctx, r, "x", "y"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", name, err)
		}
	}

	// With a guessed UID the policy lets the request pass, and the API server itself refuses it.
	err := token("cluster-g1", bound(RegistrationName("g1"), "00000000-0000-0000-0000-000000000000"))
	registration := &corev1.Secret{}
	if err := h.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: RegistrationName("g1")}, registration); err != nil {
		t.Fatal(err)
	}
	if !apierrors.IsConflict(err) || strings.Contains(err.Error(), string(registration.UID)) {
		t.Errorf("token with a guessed UID: %v, want a conflict that does not tell the right one", err)
	}
}

// TestClustersWaitForApproval: the credential of broker-info.subm registers a cluster that others
// do not connect to, and an administrator alone changes that.
func TestClustersWaitForApproval(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	accepts := func(value string) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ClustersetConfigMap, Namespace: namespace}}
		if err := manifests.Put(ctx, h.admin, cm, func() { cm.Data[keyAutoAcceptNetwork] = value }); err != nil {
			t.Fatal(err)
		}
	}
	_, entry := h.join(t, "g1", "120.1.0.0/24") // before there was an approval
	accepts("false")
	t.Cleanup(func() { accepts("true") })
	if set, err := ReadClusterset(ctx, h.admin, namespace); err != nil || !set.Asks {
		t.Errorf("the settings: %+v, %v, want that they ask for approval", set, err)
	}
	waits := func(id string, want bool) {
		t.Helper()
		if got, err := Unapproved(ctx, h.admin, namespace, id); err != nil || got != want {
			t.Errorf("cluster %s waits: %t, %v, want %t", id, got, err, want)
		}
	}
	waits("g1", false)
	m := Member{Entry: entry, PodCIDR: prefixes("10.7.0.0/16"), ServiceCIDR: prefixes("10.77.0.0/16"), Fabric: fabric}
	m.ClusterID, m.ClusterUID, m.ClusterIndex, m.GlobalCIDR = "g2", "uid-of-g2", 902, prefixes("120.2.0.0/24")
	m.ClusterSetIPCIDR = nil
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(h.admin.Delete(ctx, &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "g2", Namespace: namespace}})); err != nil {
			t.Error(err)
		}
	})
	var err error
	await.True(t, "the policy sees the setting", func() bool {
		_, err = publish(ctx, client.NewDryRunClient(h.registrar), namespace, m)
		return err != nil
	})
	refused(t, "a cluster that accepts itself", err, "pelago.io/unapproved", "pelago clusters accept")
	m.Unapproved = true
	if _, err := publish(ctx, h.registrar, namespace, m); err != nil {
		t.Fatal(err)
	}
	waits("g2", true)
	have := &submarinerv1.Cluster{}
	if err := h.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "g2"}, have); err != nil {
		t.Fatal(err)
	}
	delete(have.Annotations, pelagov1alpha1.AnnotationUnapproved)
	if err := h.registrar.Update(ctx, have); !apierrors.IsForbidden(err) {
		t.Errorf("the registrar accepts: %v, want 403", err)
	}
	for _, approved := range []bool{true, false, true} {
		if found, err := Approve(ctx, h.admin, "g2", approved, map[string]string{"env": "prod"}); err != nil || !found {
			t.Errorf("approve %t: %t, %v", approved, found, err)
		}
		waits("g2", !approved)
	}
	if _, err := publish(ctx, h.registrar, namespace, m); err != nil { // joined again
		t.Error(err)
	}
	waits("g2", false)
	if found, err := Approve(ctx, h.admin, "g9", true, nil); err != nil || found {
		t.Errorf("approve a cluster that is none: %t, %v", found, err)
	}
}

func changeData(ctx context.Context, c client.Client, key, value string) error {
	cm := &corev1.ConfigMap{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: AllocationConfigMap}, cm); err != nil {
		return err
	}
	cm.Data[key] = value
	return c.Update(ctx, cm)
}

// Cluster objects are checked whoever writes them.
func TestClustersAreDisjoint(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, _ := h.join(t, "g1", "120.1.0.0/24")
	settle(t, one, endpoint("g1", "192.0.2.1", "120.1.0.0/24"))
	cluster := func(id, uid, index string, cidrs ...string) *submarinerv1.Cluster {
		return &submarinerv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: id, Namespace: namespace, Labels: map[string]string{submarinerv1.LabelClusterID: id},
				Annotations: map[string]string{pelagov1alpha1.AnnotationClusterUID: uid, pelagov1alpha1.AnnotationClusterIndex: index}},
			Spec: submarinerv1.ClusterSpec{ClusterID: id, GlobalCIDR: cidrs},
		}
	}
	other := cluster("g9", "u9", "9", "120.9.0.0/24")
	other.Name = "g8"
	unlabelled := cluster("g9", "u9", "9", "120.9.0.0/24")
	unlabelled.Labels = nil
	for name, tt := range map[string]struct {
		c    *submarinerv1.Cluster
		want string
	}{
		"right":                  {cluster("g9", "u9", "9", "120.9.0.0/24"), ""},
		"overlap":                {cluster("g9", "u9", "9", "120.0.0.0/9"), "overlap those of cluster 'g1': 120.1.0.0/24"},
		"part of another's":      {cluster("g9", "u9", "9", "120.1.0.64/26"), "overlap those of cluster 'g1'"},
		"outside the range":      {cluster("g9", "u9", "9", "121.0.0.0/24"), "must lie inside the clusterset's range: 120.0.0.0/8"},
		"no GlobalCIDR":          {cluster("g9", "u9", "9"), "must lie inside the clusterset's range"},
		"host bits":              {cluster("g9", "u9", "9", "120.9.0.1/24"), "without host bits"},
		"the same cluster again": {cluster("g9", "uid-of-g1", "9", "120.9.0.0/24"), "already registered as 'g1'"},
		"another's index":        {cluster("g9", "u9", "1", "120.9.0.0/24"), "index belongs to cluster 'g1'"},
		"no index":               {cluster("g9", "u9", "", "120.9.0.0/24"), "carries the annotations"},
		"name is not the id":     {other, "the name of a Cluster and its label"},
		"no label":               {unlabelled, "the name of a Cluster and its label"},
	} {
		t.Run(name, func(t *testing.T) {
			for who, c := range map[string]client.Client{"the registrar": h.registrar, "an administrator": h.admin} {
				err := c.Create(ctx, tt.c.DeepCopy(), client.DryRunAll)
				if tt.want == "" {
					if err != nil {
						t.Errorf("%s is refused: %v", who, err)
					}
					continue
				}
				refused(t, who, err, tt.want)
			}
		})
	}
}

// Clusters that join at the same time get distinct shares, whoever is first.
func TestSimultaneousJoins(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	const n = 8
	entries := make([]Entry, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			entries[i], errs[i] = Claim(ctx, h.registrar, namespace, Request{ClusterID: fmt.Sprintf("s%d", i), ClusterUID: fmt.Sprintf("u%d", i)})
		})
	}
	all.Wait()
	for i := range n {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		for j := range i {
			if entries[i].GlobalCIDR[0].Overlaps(entries[j].GlobalCIDR[0]) || entries[i].ClusterIndex == entries[j].ClusterIndex {
				t.Errorf("%+v and %+v clash", entries[i], entries[j])
			}
		}
	}
	for i := range n {
		if err := Release(ctx, h.admin, namespace, fmt.Sprintf("s%d", i)); err != nil {
			t.Error(err)
		}
	}
	// One id for two clusters: one of them gets it.
	won := make([]error, 2)
	for i := range won {
		all.Go(func() {
			_, won[i] = Claim(ctx, h.registrar, namespace, Request{ClusterID: "same", ClusterUID: fmt.Sprintf("u%d", i)})
		})
	}
	all.Wait()
	if (won[0] == nil) == (won[1] == nil) {
		t.Errorf("two clusters claim one id at once: %v, %v; want one refusal", won[0], won[1])
	}
	if err := Release(ctx, h.admin, namespace, "same"); err != nil {
		t.Error(err)
	}
}

// Without globalnet clusters whose ranges overlap are refused before anything is written.
func TestOverlapWithoutGlobalnet(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), submarinerv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	data, err := Book{}.Data()
	if err != nil {
		t.Fatal(err)
	}
	hub := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: AllocationConfigMap, Namespace: namespace}, Data: data},
		&submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Namespace: namespace},
			Spec: submarinerv1.ClusterSpec{ClusterID: "c1", ClusterCIDR: []string{"10.8.0.0/16"}, ServiceCIDR: []string{"10.88.0.0/16"}}},
	).Build()
	claim := func(id string, local ...string) error {
		_, err := Claim(context.Background(), hub, namespace, Request{ClusterID: id, ClusterUID: "uid-of-" + id, Pods: prefixes(local...)})
		return err
	}
	refused(t, "the same services", claim("c2", "10.9.0.0/16", "10.88.0.0/16"), `overlaps 10.88.0.0/16 of cluster "c1"`, "--globalnet")
	refused(t, "pods in another's pods", claim("c2", "10.8.7.0/24", "10.99.0.0/16"), `overlaps 10.8.0.0/16 of cluster "c1"`)
	if err := claim("c2", "10.9.0.0/16", "10.99.0.0/16"); err != nil {
		t.Errorf("disjoint ranges: %v", err)
	}
	if err := claim("c1", "10.8.0.0/16", "10.88.0.0/16"); err != nil {
		t.Errorf("its own ranges again: %v", err)
	}
}

// What join does again after it was interrupted, or a year later.
func TestJoinAgain(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	_, entry := h.join(t, "g1", "")
	proof, err := Identity(ctx, h.registrar, namespace, "g1", "known")
	if err != nil || proof != "known" {
		t.Errorf("identity of a registered cluster that has its proof: %q, %v", proof, err)
	}
	_, err = Identity(ctx, h.registrar, namespace, "g1", "")
	refused(t, "identity of a registered cluster without proof", err, "registered before", "pelago unjoin --clusterid g1")
	_, err = Token(ctx, h.registrar, namespace, "g1", "00000000-0000-0000-0000-000000000000")
	refused(t, "token with another's proof", err, "registered again by another joiner")

	m := Member{Entry: entry, PodCIDR: prefixes("10.7.0.0/16"), ServiceCIDR: prefixes("10.77.0.0/16"), Fabric: fabric}
	if err := Admit(ctx, h.registrar, namespace, m); err != nil {
		t.Errorf("admitted again: %v", err)
	}
	ranges := func() []string {
		c := &submarinerv1.Cluster{}
		if err := h.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "g1"}, c); err != nil {
			t.Fatal(err)
		}
		return append(slices.Concat(c.Spec.ClusterCIDR, c.Spec.ServiceCIDR), c.Annotations["pelago.io/needed-addresses"])
	}
	m.Needed = []netip.Addr{netip.MustParseAddr("172.31.1.2")}
	if err := Admit(ctx, h.registrar, namespace, m); err != nil {
		t.Errorf("admitted with other needed addresses: %v", err)
	}
	if diff := cmp.Diff([]string{"10.7.0.0/16", "10.77.0.0/16", "172.31.1.2"}, ranges()); diff != "" {
		t.Errorf("its Cluster: -want +got\n%s", diff)
	}
	m.PodCIDR, m.ServiceCIDR = prefixes("10.6.0.0/15", "100.64.0.0/16"), prefixes("10.77.0.0/16", "10.78.0.0/16")
	if err := Admit(ctx, h.registrar, namespace, m); err != nil {
		t.Errorf("admitted with ranges that contain the former: %v", err)
	}
	if diff := cmp.Diff([]string{"10.6.0.0/15", "100.64.0.0/16", "10.77.0.0/16", "10.78.0.0/16", "172.31.1.2"}, ranges()); diff != "" {
		t.Errorf("its grown ranges: -want +got\n%s", diff)
	}
	smaller := m
	smaller.PodCIDR = prefixes("10.7.0.0/16", "100.64.0.0/16")
	refused(t, "admitted with smaller ranges", Admit(ctx, h.registrar, namespace, smaller), "give ranges that contain all of the former")
	c := &submarinerv1.Cluster{}
	for name, change := range map[string]func(){
		"smaller ranges": func() { c.Spec.ClusterCIDR = []string{"10.7.0.0/16"} },
		"no range":       func() { c.Spec.ServiceCIDR = nil },
		"another index":  func() { c.Annotations["pelago.io/cluster-index"] = "77" },
		"another UID":    func() { c.Annotations["pelago.io/cluster-uid"] = "x" },
		"no annotations": func() { c.Annotations = nil },
		"a label":        func() { c.Labels["env"] = "prod" },
		"a GlobalCIDR":   func() { c.Spec.GlobalCIDR = []string{"120.9.0.0/24"} },
		"an owner": func() {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		},
		"a finalizer":      func() { c.Finalizers = []string{"example.org/stays"} },
		"another id label": func() { c.Labels["submariner-io/clusterID"] = "g2" },
	} {
		if err := h.registrar.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "g1"}, c); err != nil {
			t.Fatal(err)
		}
		change()
		if err := h.registrar.Update(ctx, c, client.DryRunAll); err == nil {
			t.Errorf("the broker credential may write %s", name)
		}
	}
	other := m
	other.PodCIDR = prefixes("10.8.0.0/16")
	refused(t, "admitted with other ranges", Admit(ctx, h.registrar, namespace, other), "is registered with ranges of pods and external hosts [10.6.0.0/15 100.64.0.0/16], not [10.8.0.0/16]")
	other = m
	other.ClusterUID = "x"
	refused(t, "admitted as another cluster", Admit(ctx, h.registrar, namespace, other), "belongs to another cluster")
}
