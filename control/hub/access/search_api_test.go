package access_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
	join "github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

const (
	searchPath   = "/apis/search.karmada.io/v1alpha1/search/cache"
	proxyingPath = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy"
)

// searchSet is a set with a second member, m2, and the rights of search for all its users.
type searchSet struct {
	*set
	second *apiserver.Cluster
	run    func(args ...string) (string, error) // kubectl at the hub
}

func newSearchSet(t *testing.T) *searchSet {
	t.Helper()
	s := &searchSet{set: newSet(t)}
	s.replica(t, true)
	s.run = apiserver.Kubectl(t, s.Config)
	s.join(t, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1", Labels: map[string]string{"tier": "gold"}}, Spec: clusterv1alpha1.ClusterSpec{
		ID: s.id, SyncMode: clusterv1alpha1.Push, APIEndpoint: s.member.Config.Host}}, s.token)
	second, err := apiserver.Open(apiserver.Controllers("serviceaccount-token-controller"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	s.second = apiserver.Connect(t, second.Config())
	s.second.Make(namespace("shop"))
	c, err := manifests.NewClient(second.Config())
	if err != nil {
		t.Fatal(err)
	}
	token, ca, err := (join.PushAccount{Cluster: "m2", HubID: "h"}).Install(t.Context(), c, func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	system := &corev1.Namespace{}
	if err := s.second.Get(t.Context(), key("", metav1.NamespaceSystem), system); err != nil {
		t.Fatal(err)
	}
	s.ca = ca
	s.join(t, &clusterv1alpha1.Cluster{ObjectMeta: metaOf("", "m2"), Spec: clusterv1alpha1.ClusterSpec{ID: string(system.UID), SyncMode: clusterv1alpha1.Push,
		APIEndpoint: s.second.Config.Host}}, token)
	shop := rbacv1.Role{ObjectMeta: metaOf("shop", "shop"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""},
		Resources: []string{"configmaps", "pods", "pods/exec"}, Verbs: []string{"*"}}}}
	bound := &rbacv1.RoleBinding{ObjectMeta: metaOf("shop", "shop"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "shop"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}, {Kind: "User", APIGroup: rbacv1.GroupName, Name: "dave"}}}
	s.second.Make(&shop, bound)
	s.Make(namespace("shop"), &rbacv1.Role{ObjectMeta: metaOf("shop", "shop"), Rules: shop.Rules},
		&rbacv1.RoleBinding{ObjectMeta: metaOf("shop", "shop"), RoleRef: bound.RoleRef, Subjects: bound.Subjects},
		&rbacv1.ClusterRole{ObjectMeta: metaOf("", "search"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{"search.karmada.io"},
			Resources: []string{"search/api", "search/apis", "proxying/proxy"}, Verbs: []string{"*"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metaOf("", "search"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "search"},
			Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:authenticated"}}},
		// dave may enter m2 alone.
		&rbacv1.ClusterRole{ObjectMeta: metaOf("", "second"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{"proxy.pelago.io"},
			Resources: []string{"clusters/proxy"}, ResourceNames: []string{"m2"}, Verbs: []string{"*"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metaOf("", "second"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "second"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "dave"}}})
	for _, name := range []string{"m1", "m2"} {
		s.serves(t, name)
	}
	var last string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(last)
		}
	})
	await.True(t, "the search is served", func() (ok bool) {
		code, _, text := s.raw(t, "alice", http.MethodGet, proxyingPath+"/version", "", "")
		last = text
		return code == http.StatusOK
	})
	return s
}

// serves writes what a cluster serves, as its collector does.
func (s *searchSet) serves(t *testing.T, name string) {
	t.Helper()
	c := &clusterv1alpha1.Cluster{}
	if err := s.Get(t.Context(), key("", name), c); err != nil {
		t.Fatal(err)
	}
	c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "v1", Resources: []clusterv1alpha1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap"}, {Name: "pods", Kind: "Pod"}, {Name: "nodes", Kind: "Node"}}}}
	if err := s.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// raw is a request at the hub's API server as a user.
func (s *searchSet) raw(t *testing.T, user, method, path, accept, body string) (code int, header http.Header, text string) {
	t.Helper()
	as := rest.CopyConfig(s.Config)
	as.Impersonate.UserName = user
	rt, err := rest.TransportFor(as)
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), method, s.Config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		q.Header.Set("Accept", accept)
	}
	r, err := rt.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(all)
}

// proxied is a client of the view over all members.
func (s *searchSet) proxied(t *testing.T, user string) *kubernetes.Clientset {
	t.Helper()
	as := rest.CopyConfig(s.Config)
	as.Host += proxyingPath
	as.Impersonate.UserName = user
	as.WarningHandler = rest.NoWarnings{}
	as.ContentType, as.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	c, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func registry(name string, clusters []string, selectors ...searchv1alpha1.ResourceSelector) *searchv1alpha1.ResourceRegistry {
	return &searchv1alpha1.ResourceRegistry{ObjectMeta: metaOf("", name), Spec: searchv1alpha1.ResourceRegistrySpec{
		TargetCluster: policyv1alpha1.ClusterAffinity{ClusterNames: clusters}, ResourceSelectors: selectors}}
}

var configMaps = searchv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap"}

func settings(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels}}
}

// found lists ConfigMaps of namespace shop as name@cluster.
func found(t *testing.T, c kubernetes.Interface, o metav1.ListOptions) (names []string, list *corev1.ConfigMapList) {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("shop").List(t.Context(), o)
	if err != nil {
		t.Logf("list: %v", err)
		return nil, &corev1.ConfigMapList{}
	}
	for _, m := range list.Items {
		names = append(names, m.Name+"@"+m.Annotations[searchv1alpha1.AnnotationCluster])
	}
	return names, list
}

func TestSearch(t *testing.T) {
	s := newSearchSet(t)
	s.Make(settings("hub", nil))
	s.member.Make(settings("a", map[string]string{"app": "a"}), settings("both", nil), settings("c", nil))
	s.second.Make(settings("b", map[string]string{"app": "b"}), settings("both", nil))
	alice := s.proxied(t, "alice")

	t.Run("nothing is selected", func(t *testing.T) {
		if names, _ := found(t, alice, metav1.ListOptions{}); len(names) == 0 || names[0] != "hub@" {
			t.Errorf("proxying lists %v, want the hub's", names)
		}
		code, _, text := s.raw(t, "alice", http.MethodGet, searchPath+"/api/v1/configmaps", "", "")
		if code != http.StatusOK || !strings.Contains(text, `"kind":"ConfigMapList"`) || !strings.Contains(text, `"items":[]`) {
			t.Errorf("search: %d %s", code, text)
		}
		if _, err := alice.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("another namespace of the hub: %v, want Forbidden", err)
		}
	})

	t.Run("registries", func(t *testing.T) { s.testRegistries(t) })

	s.Make(registry("all", nil, configMaps, searchv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "Pod"}))
	await.True(t, "the members are listed", func() bool {
		names, _ := found(t, alice, metav1.ListOptions{})
		return slices.Equal(names, []string{"a@m1", "both@m1", "c@m1", "kube-root-ca.crt@m1", "b@m2", "both@m2", "kube-root-ca.crt@m2"}) ||
			slices.Equal(names, []string{"a@m1", "both@m1", "c@m1", "b@m2", "both@m2"})
	})
	t.Run("list", func(t *testing.T) { s.testList(t, alice) })
	t.Run("one object", func(t *testing.T) { s.testObject(t, alice) })
	t.Run("watch", func(t *testing.T) { s.testWatch(t, alice) })
	t.Run("rights", func(t *testing.T) { s.testRights(t) })
	t.Run("upgrade", func(t *testing.T) {
		s.execAt(t, "m1", proxyingPath+"/api/v1/namespaces/shop/pods/m1/exec?command=cat&stdin=true&stdout=true")
	})
	t.Run("unreachable member", func(t *testing.T) { s.testUnreachable(t, alice) })
}

// testRegistries: ResourceRegistries are objects of v1alpha1 as before, although that version is
// served by pelago-hub.
func (s *searchSet) testRegistries(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registry.yaml")
	manifest := `apiVersion: search.karmada.io/v1alpha1
kind: ResourceRegistry
metadata: {name: kubectl}
spec:
  targetCluster: {clusterNames: [m9]}
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]
`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says string
		args []string
	}{
		{"resourceregistry.search.karmada.io/kubectl created", []string{"apply", "--validate=strict", "-f", file}},
		{"resourceregistry.search.karmada.io/kubectl unchanged", []string{"apply", "-f", file}},
		{"resourceregistry.search.karmada.io/kubectl serverside-applied", []string{"apply", "--server-side", "--force-conflicts", "-f", file}},
		{"kubectl", []string{"get", "rr"}},
		{"apiVersion: search.karmada.io/v1alpha1", []string{"get", "rr", "kubectl", "-o", "yaml", "--show-managed-fields"}},
		{"resourceregistry.search.karmada.io/kubectl patched", []string{"patch", "rr", "kubectl", "--type=json", "-p", `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`}},
		{"resourceregistry.search.karmada.io/kubectl patched", []string{"patch", "rr", "kubectl", "--subresource=status", "--type=merge", "-p", `{"status":{"conditions":[]}}`}},
		{"VERSION:    v1alpha1", []string{"explain", "resourceregistries.spec.targetCluster"}},
		{"search.karmada.io/v1alpha1", []string{"api-resources", "--api-group=search.karmada.io"}},
		{`"name":"proxying/proxy"`, []string{"get", "--raw", "/apis/search.karmada.io/v1alpha1"}},
		{"unknown field", []string{"patch", "rr", "kubectl", "--type=merge", "-p", `{"spec":{"wrong":1}}`}},
		{`{"type":"ADDED","object":{"apiVersion":"search.karmada.io/v1alpha1","kind":"ResourceRegistry"`, []string{"get", "--raw", "/apis/search.karmada.io/v1alpha1/resourceregistries?watch=true&timeoutSeconds=1"}},
		{"User \"alice\" cannot get resource", []string{"get", "rr", "kubectl", "--as=alice"}},
		{`resourceregistry.search.karmada.io "kubectl" deleted`, []string{"delete", "rr", "kubectl"}},
	} {
		var said string
		var err error
		// The API server takes the service for unavailable, or serves only the stored version,
		// while it cannot reach pelago-hub.
		await.True(t, "pelago-hub is reached", func() bool {
			said, err = s.run(c.args...)
			return !strings.Contains(said, "ServiceUnavailable") && !strings.Contains(said, "search.karmada.io/stored")
		})
		if !strings.Contains(said, c.says) {
			t.Errorf("kubectl %q: %v: %s, want %s", c.args, err, said, c.says)
		}
	}
}

func (s *searchSet) testList(t *testing.T, alice kubernetes.Interface) {
	app := metav1.ListOptions{LabelSelector: "app"}
	names, list := found(t, alice, app)
	if !slices.Equal(names, []string{"a@m1", "b@m2"}) {
		t.Errorf("by label: %v", names)
	}
	for _, c := range []struct{ path, want string }{
		{searchPath + "/api/v1/configmaps?labelSelector=app", "403"}, // alice sees a namespace
		{searchPath + "/api/v1/namespaces/shop/configmaps?labelSelector=app", "a@m1 b@m2"},
		{searchPath + "/api/v1/namespaces/shop/configmaps?labelSelector=app&watch=true", "a@m1 b@m2"},
		{searchPath + "/api/v1/namespaces/shop/configmaps/both", "both@m1 both@m2"},
		{searchPath + "/api/v1/namespaces/shop/configmaps/none", ""},
		{searchPath + "/api/v1/namespaces/shop/configmaps?labelSelector=a,,b", "400"},
		{searchPath + "/api/v1/namespaces/shop/../configmaps", "400"},
		{searchPath + "/api", "404"},
		{proxyingPath + "/api/v1/namespaces/shop/configmaps?limit=x", "400"},
		{proxyingPath + "/api/v1/namespaces/shop/configmaps?continue=x", "410"},
		{proxyingPath + "/api/v1/namespaces/shop/configmaps?resourceVersion=12", "410"},
	} {
		code, _, text := s.raw(t, "alice", http.MethodGet, c.path, "", "")
		got := fmt.Sprint(code)
		if code == http.StatusOK {
			var list corev1.ConfigMapList
			if err := json.Unmarshal([]byte(text), &list); err != nil || list.Kind != "ConfigMapList" {
				t.Errorf("%s: %v: %s", c.path, err, text)
			}
			var names []string
			for _, m := range list.Items {
				if m.Kind != "ConfigMap" || m.APIVersion != "v1" {
					t.Errorf("%s: an item has kind %s of %s", c.path, m.Kind, m.APIVersion)
				}
				names = append(names, m.Name+"@"+m.Annotations[searchv1alpha1.AnnotationCluster])
			}
			got = strings.Join(names, " ")
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s: %s", c.path, got, c.want, text)
		}
	}
	for _, options := range []metav1.ListOptions{{ResourceVersion: "0"}, {ResourceVersion: list.ResourceVersion, ResourceVersionMatch: "NotOlderThan"}} {
		options.LabelSelector = "app"
		if names, _ := found(t, alice, options); !slices.Equal(names, []string{"a@m1", "b@m2"}) {
			t.Errorf("with version %q: %v", options.ResourceVersion, names)
		}
	}
	var all []string
	whole, _ := found(t, alice, metav1.ListOptions{})
	for options := (metav1.ListOptions{Limit: 2}); ; {
		names, list := found(t, alice, options)
		if all = append(all, names...); len(names) > 2 || list.ResourceVersion == "" {
			t.Errorf("a page has %v, version %q", names, list.ResourceVersion)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if !slices.Equal(all, whole) {
		t.Errorf("by pages: %v, want %v", all, whole)
	}
	said, err := s.run("--as=alice", "--server="+s.Config.Host+proxyingPath, "-n", "shop", "get", "configmaps", "-l", "app")
	if err != nil || !strings.Contains(said, "NAME") || !strings.Contains(said, "\na ") || !strings.Contains(said, "\nb ") {
		t.Errorf("kubectl prints: %v: %s", err, said)
	}
	if code, _, text := s.raw(t, "alice", http.MethodGet, proxyingPath+"/api/v1/namespaces/shop/configmaps", "application/yaml", ""); code != http.StatusNotAcceptable {
		t.Errorf("as YAML: %d %s", code, text)
	}
}

func (s *searchSet) testObject(t *testing.T, alice kubernetes.Interface) {
	maps := alice.CoreV1().ConfigMaps("shop")
	m, err := maps.Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil || m.Annotations[searchv1alpha1.AnnotationCluster] != "m2" {
		t.Fatalf("get: %v of %q", err, m.Annotations)
	}
	if _, err := maps.Get(t.Context(), "both", metav1.GetOptions{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "clusters m1, m2 have it") {
		t.Errorf("an object of two clusters: %v", err)
	}
	if _, err := maps.Get(t.Context(), "hub", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object of the hub: %v", err)
	}
	m.Data = map[string]string{"updated": "yes"}
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Errorf("update (protobuf): %v", err)
	}
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
	if _, err := maps.Patch(t.Context(), "b", types.StrategicMergePatchType, []byte(`{"data":{"patched":"yes"}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("patch: %v", err)
	}
	if said, err := s.run("--as=alice", "--server="+s.Config.Host+proxyingPath, "-n", "shop", "annotate", "configmap", "b", "annotated=yes"); err != nil {
		t.Errorf("kubectl annotate: %v: %s", err, said)
	}
	got := &corev1.ConfigMap{}
	if err := s.second.Get(t.Context(), key("shop", "b"), got); err != nil {
		t.Fatal(err)
	}
	if got.Data["updated"] != "yes" || got.Data["patched"] != "yes" || got.Annotations["annotated"] != "yes" || got.Annotations[searchv1alpha1.AnnotationCluster] != "" {
		t.Errorf("in the member: %v, %v", got.Data, got.Annotations)
	}
	if _, err := maps.Create(t.Context(), settings("new", nil), metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), "names no cluster") {
		t.Errorf("create: %v", err)
	}
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("delete all: %v", err)
	}
	if err := maps.Delete(t.Context(), "both", metav1.DeleteOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("delete an object of two clusters: %v", err)
	}
	s.member.Make(settings("gone", nil))
	if err := maps.Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := s.member.Get(t.Context(), key("shop", "gone"), got); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

// testWatch: an informer follows both members, also where its watch ends or other clusters are
// selected; an update with the version of an event reaches the member.
func (s *searchSet) testWatch(t *testing.T, alice kubernetes.Interface) {
	_, list := found(t, alice, metav1.ListOptions{})
	w, err := alice.CoreV1().ConfigMaps("shop").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.member.Make(settings("w1", nil))
	s.second.Make(settings("w2", nil))
	events := map[string]watch.EventType{}
	for len(events) < 2 {
		e, ok := <-w.ResultChan()
		m, is := e.Object.(*corev1.ConfigMap)
		if !ok || !is {
			t.Fatalf("the watch has %v %T", e.Type, e.Object)
		}
		if e.Type == watch.Bookmark {
			continue
		}
		events[m.Name+"@"+m.Annotations[searchv1alpha1.AnnotationCluster]] = e.Type
		m.Data = map[string]string{"by": "event"}
		if _, err := alice.CoreV1().ConfigMaps("shop").Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Errorf("update %s with the version of its event: %v", m.Name, err)
		}
	}
	if events["w1@m1"] != watch.Added || events["w2@m2"] != watch.Added {
		t.Errorf("events: %v", events)
	}

	initial := true
	w2, err := alice.CoreV1().ConfigMaps("shop").Watch(t.Context(), metav1.ListOptions{SendInitialEvents: &initial, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	defer w2.Stop()
	names, _ := found(t, alice, metav1.ListOptions{})
	added := 0
	for e := range w2.ResultChan() {
		if m, ok := e.Object.(*corev1.ConfigMap); e.Type == watch.Bookmark && ok && m.Annotations[metav1.InitialEventsAnnotationKey] != "" {
			break
		} else if !ok {
			t.Fatalf("the watch has %v %v", e.Type, e.Object)
		}
		added++
	}
	if added != len(names) {
		t.Errorf("%d initial events, want %d", added, len(names))
	}

	factory := informers.NewSharedInformerFactoryWithOptions(alice, 0, informers.WithNamespace("shop"))
	store := factory.Core().V1().ConfigMaps().Informer().GetStore()
	factory.Start(t.Context().Done())
	has := func(want string) func() bool {
		return func() bool {
			return slices.ContainsFunc(store.List(), func(o any) bool {
				m := o.(*corev1.ConfigMap)
				return m.Name+"@"+m.Annotations[searchv1alpha1.AnnotationCluster] == want
			})
		}
	}
	cache.WaitForCacheSync(t.Context().Done(), factory.Core().V1().ConfigMaps().Informer().HasSynced)
	await.True(t, "the informer has both members", func() bool { return has("w1@m1")() && has("w2@m2")() })
	r := &searchv1alpha1.ResourceRegistry{}
	selected := func(labels map[string]string) {
		t.Helper()
		if err := s.Get(t.Context(), key("", "all"), r); err != nil {
			t.Fatal(err)
		}
		r.Spec.TargetCluster.LabelSelector = nil
		if labels != nil {
			r.Spec.TargetCluster.LabelSelector = &metav1.LabelSelector{MatchLabels: labels}
		}
		if err := s.Update(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	selected(map[string]string{"tier": "gold"})
	await.True(t, "objects of m2 are gone", func() bool { return has("w1@m1")() && !has("w2@m2")() })
	selected(nil)
	await.True(t, "objects of m2 are back", func() bool { return has("w1@m1")() && has("w2@m2")() })
}

func (s *searchSet) testRights(t *testing.T) {
	path := proxyingPath + "/api/v1/namespaces/shop/configmaps"
	for name, c := range map[string]struct {
		user, path string
		code       int
		says, left string
	}{
		"none in the members":     {"bob", path, 403, `User \"bob\" cannot list resource \"configmaps\"`, ""},
		"none for the clusters":   {"carol", path, 403, `user \"carol\" cannot get resource \"clusters/proxy\"`, ""},
		"for one cluster":         {"dave", path, 200, `"m2"`, "cluster m1 is left out"},
		"one object, one cluster": {"dave", path + "/both", 200, `"m2"`, ""},
		"object elsewhere":        {"dave", path + "/a", 403, "clusters/proxy", ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, header, text := s.raw(t, c.user, http.MethodGet, c.path, "", "")
			warned := strings.Join(header.Values("Warning"), "\n")
			if code != c.code || !strings.Contains(text, c.says) || !strings.Contains(warned, c.left) || (warned == "") != (c.left == "") {
				t.Errorf("%d %s, warned %q", code, text, warned)
			}
			if c.user == "dave" && strings.Contains(text, `"m1"`) && code == 200 {
				t.Errorf("dave sees m1: %s", text)
			}
		})
	}
}

// testUnreachable: a member that does not answer is left out of lists and watches, with a warning;
// objects that it may have cannot be written.
func (s *searchSet) testUnreachable(t *testing.T, alice kubernetes.Interface) {
	before, _ := found(t, alice, metav1.ListOptions{})
	s.join(t, &clusterv1alpha1.Cluster{ObjectMeta: metaOf("", "m3"), Spec: clusterv1alpha1.ClusterSpec{ID: "m3", SyncMode: clusterv1alpha1.Push,
		APIEndpoint: "https://" + freeAddress(t)}}, []byte("token"))
	s.serves(t, "m3")
	path := proxyingPath + "/api/v1/namespaces/shop/configmaps"
	await.True(t, "a warning names m3", func() bool {
		code, header, text := s.raw(t, "alice", http.MethodGet, path, "", "")
		return code == http.StatusOK && strings.Contains(header.Get("Warning"), "cluster m3 is left out: cluster m3 does not answer") && strings.Contains(text, `"m1"`)
	})
	names, list := found(t, alice, metav1.ListOptions{})
	if !slices.Equal(names, before) {
		t.Errorf("lists %v, want %v", names, before)
	}
	paged, _ := found(t, alice, metav1.ListOptions{Limit: 1000})
	if !slices.Equal(paged, before) {
		t.Errorf("with a limit: %v", paged)
	}
	w, err := alice.CoreV1().ConfigMaps("shop").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.second.Make(settings("w3", nil))
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Errorf("the watch has %v", e)
	}
	if m, err := alice.CoreV1().ConfigMaps("shop").Get(t.Context(), "w3", metav1.GetOptions{}); err != nil || m.Name != "w3" {
		t.Errorf("get: %v", err)
	}
	if _, err := alice.CoreV1().ConfigMaps("shop").Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("an object that m3 may have: %v", err)
	}
	code, _, text := s.raw(t, "alice", http.MethodDelete, path+"/w3", "", "")
	if code != http.StatusServiceUnavailable || !bytes.Contains([]byte(text), []byte("cluster m3 does not answer")) {
		t.Errorf("delete: %d %s", code, text)
	}
}
