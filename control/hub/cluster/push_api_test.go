package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// otherID is the id of no cluster.
const otherID = "7a1c2f0e-3d3a-4a55-9a0d-1f1f0a6b9a01"

// PushServer is the API server of the tests inside the package; TestMain stops it.
var PushServer = apiserver.NewShared(apiserver.CRDs("clusters.cluster.karmada.io"))

// hub runs the controller; executed notes what it runs for whom.
type hub struct {
	*apiserver.Cluster
	mu sync.Mutex
	// cluster → tokens of the runs so far, the last with a * while it runs
	executed map[string][]string
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{Cluster: apiserver.Connect(t, PushServer.Config(t), clusterv1alpha1.AddToScheme), executed: map[string][]string{}}
	h.Empty(&clusterv1alpha1.Cluster{}, &corev1.Secret{})
	await.Equal(t, 0, func() int {
		var all clusterv1alpha1.ClusterList
		if err := h.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	})
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return SetupPush(mgr, PushOptions{Execute: h.execute, Log: slog.New(slog.DiscardHandler), Status: collect.CollectorOptions{
			Every: 200 * time.Millisecond, Delay: 50 * time.Millisecond, FailureThreshold: time.Second, SuccessThreshold: time.Second,
		}})
	}}}.Run(t, h.Config)
	return h
}

func (h *hub) execute(ctx context.Context, cluster string, member *rest.Config) error {
	h.mu.Lock()
	h.executed[cluster] = append(h.executed[cluster], member.BearerToken+"*")
	at := len(h.executed[cluster]) - 1
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	h.executed[cluster][at] = member.BearerToken
	h.mu.Unlock()
	return nil
}

// runs tells the runs of a cluster so far, tokens shortened to what the test calls them.
func (h *hub) ran(cluster string, names map[string]string) func() string {
	return func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		text := strings.Join(h.executed[cluster], " ")
		for token, name := range names {
			text = strings.ReplaceAll(text, token, name)
		}
		return text
	}
}

// join makes the Cluster of a member, with its Secret.
func (h *hub) join(name, endpoint string, data map[string][]byte, id ...string) (*clusterv1alpha1.Cluster, *corev1.Secret) {
	h.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: data}
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{clusterv1alpha1.FinalizerCluster}}}
	c.Spec.SyncMode, c.Spec.APIEndpoint = clusterv1alpha1.Push, endpoint
	c.Spec.SecretRef = &clusterv1alpha1.SecretReference{Namespace: "default", Name: name}
	c.Spec.ID = strings.Join(id, "")
	h.Make(secret, c)
	h.Cleanup(func() { h.free(name) })
	return c, secret
}

// free takes the finalizer, as control/hub/cluster does in the end.
func (h *hub) free(name string) {
	h.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	err := h.Patch(context.Background(), c, none)
	if client.IgnoreNotFound(err) != nil {
		h.Fatal(err)
	}
}

func (h *hub) ready(name string) func() string {
	return func() string {
		c := &clusterv1alpha1.Cluster{}
		if err := h.Get(context.Background(), client.ObjectKey{Name: name}, c); err != nil {
			return err.Error()
		}
		if r := c.Ready(); r != nil {
			return string(r.Status) + " " + r.Reason
		}
		return ""
	}
}

func (h *hub) update(o client.Object, change func()) {
	h.Helper()
	await.True(h, "the update is written", func() bool {
		if err := h.Get(context.Background(), client.ObjectKeyFromObject(o), o); err != nil {
			h.Fatal(err)
		}
		change()
		err := h.Update(context.Background(), o)
		if err != nil && !apierrors.IsConflict(err) {
			h.Fatal(err)
		}
		return err == nil
	})
}

// pushMember is a cluster of its own, and a ServiceAccount there with all rights.
type pushMember struct {
	*apiserver.Cluster
	account *corev1.ServiceAccount
}

func newMember(t *testing.T, config *rest.Config) pushMember {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "pelago-"}}
	m := pushMember{apiserver.Connect(t, config), account}
	m.Make(account)
	m.Make(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account.Name}},
	})
	return m
}

func (m pushMember) token() string {
	m.Helper()
	r := &authenticationv1.TokenRequest{}
	if err := m.SubResource("token").Create(context.Background(), m.account, r); err != nil {
		m.Fatal(err)
	}
	return r.Status.Token
}

func (m pushMember) secret(token string) map[string][]byte {
	return map[string][]byte{"token": []byte(token), "caBundle": m.Config.CAData}
}

// A push member from its join to its end, on an API server of its own: Karmada, conditions
// (StatusCollectionFailed) and lifecycle.
func TestPushMember(t *testing.T) {
	h := newHub(t)
	m := newMember(t, apiserver.Start(t))
	one, two := m.token(), m.token()+"\n"
	called := map[string]string{one: "one", strings.TrimSpace(two): "two"}
	c, secret := h.join("m1", m.Config.Host, m.secret(one))
	await.Equal(t, "True ClusterReady", h.ready("m1"))
	await.Equal(t, "one*", h.ran("m1", called))

	h.update(c, func() { c.Spec.Region = "somewhere" })
	h.update(secret, func() { secret.Data["token"] = []byte(two) })
	await.Equal(t, "one two*", h.ran("m1", called)) // the region is no reason, the token is
	await.Equal(t, "True ClusterReady", h.ready("m1"))

	h.update(secret, func() { delete(secret.Data, "token") })
	await.Equal(t, "False StatusCollectionFailed", h.ready("m1"))
	await.Equal(t, "one two", h.ran("m1", called))
	says := func(words string) func() bool {
		return func() bool {
			err := h.Get(t.Context(), client.ObjectKeyFromObject(c), c)
			return err == nil && strings.Contains(c.Ready().Message, words)
		}
	}
	await.True(t, "the message names the key", says("key token of Secret default/m1 is missing"))
	h.Remove(secret)
	await.True(t, "the message names the Secret", says("its spec.secretRef names Secret default/m1, which does not exist"))
	h.Make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m1"}, Data: m.secret(one)})
	await.Equal(t, "True ClusterReady", h.ready("m1"))
	await.Equal(t, "one two one*", h.ran("m1", called))

	// A Cluster that is being deleted is worked with until its end: its Works' objects are to be
	// removed.
	h.Remove(c)
	h.update(c, func() { c.Spec.Region = "elsewhere" })
	await.Never(t, 300*time.Millisecond, "the run of a Cluster that is being deleted ends", func() bool { return h.ran("m1", called)() != "one two one*" })
	h.free("m1")
	await.Equal(t, "one two one", h.ran("m1", called))
}

// What is no push member is not worked with: a Cluster that was not taken, one that is refused, a
// pull member.
func TestNoMember(t *testing.T) {
	h := newHub(t)
	m := newMember(t, PushServer.Config(t))
	token := m.token()
	c, _ := h.join("m2", m.Config.Host, m.secret(token))
	await.Equal(t, "t*", h.ran("m2", map[string]string{token: "t"}))
	h.update(c, func() { c.Spec.SyncMode = clusterv1alpha1.Pull })
	await.Equal(t, "t", h.ran("m2", map[string]string{token: "t"}))
	h.update(c, func() { c.Spec.SyncMode = clusterv1alpha1.Push })
	await.Equal(t, "t t*", h.ran("m2", map[string]string{token: "t"}))
	h.free("m2")
	await.Equal(t, "t t", h.ran("m2", map[string]string{token: "t"}))
}

// A real API server is the member that spec.id names, or another cluster, which the condition says.
func TestIdentity(t *testing.T) {
	h := newHub(t)
	m := newMember(t, PushServer.Config(t))
	system := &corev1.Namespace{}
	if err := m.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		t.Fatal(err)
	}
	h.join("right", m.Config.Host, m.secret(m.token()), string(system.UID))
	// its Secret is not read
	other, _ := h.join("other", m.Config.Host, m.secret(m.token()), otherID)
	await.Equal(t, "True ClusterReady", h.ready("right"))
	await.Equal(t, "False ClusterIDMismatch", h.ready("other"))
	if err := h.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil {
		t.Fatal(err)
	}
	if said := other.Ready().Message; !strings.Contains(said, string(system.UID)) || !strings.Contains(said, otherID) {
		t.Errorf("message %q", said)
	}
}

// Members that refuse connections, some that hang, and one that is well: none waits for another,
// and each reports how it is. If those that hang, for five seconds each, were queried one after the
// other, the one that is well would not be ready within the time of await.
func TestDeadMembersBlockNobody(t *testing.T) {
	h := newHub(t)
	m := newMember(t, PushServer.Config(t))
	token := m.token()
	var dead []string
	for i := range 40 {
		dead = append(dead, fmt.Sprintf("hanging-%d", i))
		h.join(dead[i], hanging(t), m.secret(token))
	}
	for i := range 5 {
		dead = append(dead, fmt.Sprintf("refusing-%d", i))
		h.join(dead[len(dead)-1], "https://127.0.0.1:1", m.secret(token))
	}
	h.join("well", m.Config.Host, m.secret(token))
	await.Equal(t, "True ClusterReady", h.ready("well"))
	for _, name := range dead {
		await.Equal(t, "False ClusterNotReachable", h.ready(name))
	}
	if got := h.ready("well")(); got != "True ClusterReady" {
		t.Errorf("the one that is well is %s", got)
	}
}

// Twenty members come and go, some of them dead: no goroutine and no connection stays.
func TestNothingStaysOfAMember(t *testing.T) {
	h := newHub(t)
	m := newMember(t, PushServer.Config(t))
	token := m.token()
	// informers that start on demand have started
	c, _ := h.join("warm-up", m.Config.Host, m.secret(token))
	await.Equal(t, "True ClusterReady", h.ready("warm-up"))
	h.Remove(c)
	h.free("warm-up")
	await.Equal(t, "t", h.ran("warm-up", map[string]string{token: "t"}))
	before, since := 0, time.Now()
	await.True(t, "the number of goroutines is the same for 200 ms", func() bool {
		if n := runtime.NumGoroutine(); n != before {
			before, since = n, time.Now()
		}
		return time.Since(since) > 200*time.Millisecond
	})

	var all []*clusterv1alpha1.Cluster
	for i := range 20 {
		endpoint := m.Config.Host
		if i%5 == 0 {
			endpoint = hanging(t)
		}
		c, _ := h.join(fmt.Sprintf("n%d", i), endpoint, m.secret(token))
		all = append(all, c)
	}
	for i, c := range all {
		want := "True ClusterReady"
		if i%5 == 0 {
			want = "False ClusterNotReachable"
		}
		await.Equal(t, want, h.ready(c.Name))
	}
	if during := runtime.NumGoroutine(); during < before+5*len(all) {
		t.Errorf("%d goroutines before, %d with 20 members: they do not run", before, during)
	}
	for _, c := range all {
		h.Remove(c)
		h.free(c.Name)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
		return runtime.NumGoroutine() <= before, nil
	})
	if err != nil {
		stacks := make([]byte, 1<<20)
		t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
	}
}

// hanging is the address of a member that takes connections and never answers, until the test ends.
func hanging(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // how it ends does not matter
	return "https://" + l.Addr().String()
}
