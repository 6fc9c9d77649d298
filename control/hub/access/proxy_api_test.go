package access_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/access"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/deploy/manifests"
	join "github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

const (
	brokerNamespace = "submariner-k8s-broker"
	// audit has the requests of users: the policy of the member's audit log.
	audit = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, omitStages: [RequestReceived]}]\n"
)

// set is a hub with replicas of the proxy, and one API server that is the members m1 (Push) and m2
// (Pull).
type set struct {
	*apiserver.Cluster // the hub
	member             *apiserver.Cluster
	auditLog           string
	token, ca          []byte // of the hub's account in the member
	id                 string
	front              *balancer
	// karmada is where the last replica serves Karmada's tools; tokens and certificates are given
	// by the caller.
	karmada rest.Config
}

func newSet(t *testing.T) *set {
	t.Helper()
	s := &set{front: newBalancer(t)}
	s.Cluster = apiserver.Connect(t, apiserver.Start(t, apiserver.CRDs(), apiserver.HubControllers()), clusterv1alpha1.AddToScheme,
		workv1alpha1.AddToScheme, workv1alpha2.AddToScheme, searchv1alpha1.AddStoredToScheme)
	member, err := apiserver.Open(apiserver.Audit(audit), apiserver.Controllers("serviceaccount-token-controller"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := member.Close(); err != nil {
			t.Error(err)
		}
	})
	s.member, s.auditLog = apiserver.Connect(t, member.Config()), member.AuditLog()
	s.Make(namespace(manifests.SystemNamespace), namespace(clusterv1alpha1.SecretNamespace), namespace(brokerNamespace))
	s.member.Make(namespace("shop"))
	c, err := manifests.NewClient(member.Config())
	if err != nil {
		t.Fatal(err)
	}
	if s.token, s.ca, err = (join.PushAccount{Cluster: "m1", HubID: "h"}).Install(t.Context(), c, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	system := &corev1.Namespace{}
	if err := s.member.Get(t.Context(), key("", metav1.NamespaceSystem), system); err != nil {
		t.Fatal(err)
	}
	s.id = string(system.UID)
	// alice and bob may enter m1 and m2; alice sees namespace shop of the member, whose rights
	// carol has as well.
	s.Make(&rbacv1.ClusterRole{ObjectMeta: metaOf("", "entrants"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{pelagov1alpha1.ProxyGroup},
		Resources: []string{"clusters/proxy"}, ResourceNames: []string{"m1", "m2", "m3"}, Verbs: []string{"*"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metaOf("", "entrants"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "entrants"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}, {Kind: "User", APIGroup: rbacv1.GroupName, Name: "bob"}}})
	s.member.Make(&rbacv1.Role{ObjectMeta: metaOf("shop", "shop"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""},
		Resources: []string{"configmaps", "pods", "pods/exec"}, Verbs: []string{"*"}}}},
		&rbacv1.RoleBinding{ObjectMeta: metaOf("shop", "shop"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "shop"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}, {Kind: "User", APIGroup: rbacv1.GroupName, Name: "carol"}}})
	return s
}

func key(namespace, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: name}
}

func metaOf(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func namespace(name string) *corev1.Namespace { return &corev1.Namespace{ObjectMeta: metaOf("", name)} }

// replica starts a replica of pelago-hub's proxy, with the controller of memberships if that is
// wanted, and returns how to kill it.
func (s *set) replica(t *testing.T, membership bool) (stop func()) {
	t.Helper()
	address := freeAddress(t)
	certificate, private, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tools := access.Front{Address: freeAddress(t), CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	if err := errors.Join(os.WriteFile(tools.CertFile, certificate, 0o600), os.WriteFile(tools.KeyFile, private, 0o600)); err != nil {
		t.Fatal(err)
	}
	s.karmada = rest.Config{Host: "https://" + tools.Address, TLSClientConfig: rest.TLSClientConfig{CAData: certificate}}
	setup := []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return access.Setup(mgr, access.Options{Address: address, Host: s.front.address, Namespace: manifests.SystemNamespace, Name: manifests.HubName,
			BrokerNamespace: brokerNamespace, Hub: s.Config, Karmada: tools, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	}}
	if membership {
		setup = append(setup, func(mgr ctrl.Manager) error {
			return cluster.SetupMembership(mgr, cluster.MembershipOptions{HubUID: "hub", Grace: time.Hour, Registry: prometheus.NewRegistry()})
		})
	}
	end := apiserver.Manager{Scheme: s.Scheme(), Setup: setup}.Run(t, s.Config)
	s.front.add(address, true)
	return func() {
		s.front.add(address, false)
		end()
	}
}

// join makes a Cluster, with its Secret if it is a push member, and waits until it is a member.
func (s *set) join(t *testing.T, c *clusterv1alpha1.Cluster, token []byte) {
	t.Helper()
	if token != nil {
		s.Make(&corev1.Secret{ObjectMeta: metaOf(clusterv1alpha1.SecretNamespace, c.Name), Data: map[string][]byte{
			clusterv1alpha1.SecretKeyToken: token, clusterv1alpha1.SecretKeyCA: s.ca}})
		c.Spec.SecretRef = &clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: c.Name}
	}
	s.Make(c)
	await.True(t, c.Name+" is a member", func() bool { return s.Get(t.Context(), key("", c.Name), c) == nil && c.Member() })
}

// as is a client of a member through the hub, as a user of the hub.
func (s *set) as(t *testing.T, cluster, user string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.through(cluster, user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *set) through(cluster, user string, groups ...string) *rest.Config {
	cfg := rest.CopyConfig(s.Config)
	cfg.Host += pelagov1alpha1.ProxyPath(cluster, "proxy")
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return cfg
}

// list lists the ConfigMaps of a namespace, and returns the error.
func list(t *testing.T, c *kubernetes.Clientset, namespace string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Not by the client's own methods, which repeat what is unavailable.
	return c.RESTClient().Get().MaxRetries(0).AbsPath("/api/v1/namespaces/" + namespace + "/configmaps").Do(ctx).Error()
}

// served waits until a user reaches a member.
func (s *set) served(t *testing.T, cluster string) {
	t.Helper()
	var last error
	await.True(t, cluster+" is reached", func() bool {
		last = list(t, s.as(t, cluster, "alice"), "shop")
		return last == nil
	})
}

// audited reports whether the member's audit log has a request of the hub's account for a user.
func (s *set) audited(t *testing.T, user string) bool {
	t.Helper()
	text, err := os.ReadFile(s.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e struct {
			User, ImpersonatedUser *struct {
				Username string
				Groups   []string
			}
		}
		if json.Unmarshal(line, &e) == nil && e.ImpersonatedUser != nil && e.ImpersonatedUser.Username == user &&
			strings.HasPrefix(e.User.Username, "system:serviceaccount:karmada-cluster:") {
			for _, g := range e.ImpersonatedUser.Groups {
				if g == "system:masters" || g == "kubeadm:cluster-admins" {
					t.Errorf("%s enters with %s", user, g)
				}
			}
			return true
		}
	}
	return false
}

func TestPush(t *testing.T) {
	s := newSet(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metaOf("", manifests.HubName)}
	s.Make(role)
	stop := s.replica(t, true)
	s.join(t, &clusterv1alpha1.Cluster{ObjectMeta: metaOf("", "m1"), Spec: clusterv1alpha1.ClusterSpec{ID: s.id, SyncMode: clusterv1alpha1.Push,
		APIEndpoint: s.member.Config.Host}}, s.token)
	s.served(t, "m1")

	t.Run("rights", func(t *testing.T) {
		for name, c := range map[string]struct {
			cluster, user, namespace string
			groups                   []string
			code                     int32
			says                     string
		}{
			"in her namespace":              {"m1", "alice", "shop", nil, 200, ""},
			"in another one":                {"m1", "alice", "default", nil, 403, `User "alice" cannot list resource "configmaps"`},
			"without rights in the member":  {"m1", "bob", "shop", nil, 403, `User "bob" cannot list resource "configmaps"`},
			"without rights at the hub":     {"m1", "carol", "shop", nil, 403, `User "carol" cannot get resource "clusters/proxy"`},
			"in another cluster":            {"m4", "alice", "shop", nil, 403, `User "alice" cannot get resource "clusters/proxy"`},
			"an administrator of the hub":   {"m1", "root", "shop", []string{"system:masters", "kubeadm:cluster-admins"}, 403, `User "root" cannot list resource "configmaps"`},
			"a component of the hub":        {"m1", "system:kube-scheduler", "shop", []string{"system:masters"}, 403, "is a component of the hub"},
			"a cluster that does not exist": {"m3", "alice", "shop", nil, 404, `"m3" not found`},
		} {
			t.Run(name, func(t *testing.T) {
				err := list(t, s.as(t, c.cluster, c.user, c.groups...), c.namespace)
				if code := codeOf(err); code != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%d: %v, want %d: %s", code, err, c.code, c.says)
				}
			})
		}
		await.True(t, "the member's audit log names alice", func() bool { return s.audited(t, "alice") })
		await.True(t, "the member's audit log names root", func() bool { return s.audited(t, "root") })
	})

	t.Run("writes and watches", func(t *testing.T) {
		maps := s.as(t, "m1", "alice").CoreV1().ConfigMaps("shop")
		w, err := maps.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		large := &corev1.ConfigMap{ObjectMeta: metaOf("shop", "large"), Data: map[string]string{"x": strings.Repeat("x", 500_000)}}
		if _, err := maps.Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for e := range w.ResultChan() {
			if m, ok := e.Object.(*corev1.ConfigMap); ok && m.Name == "large" {
				return
			}
		}
		t.Error("the watch ended without the object")
	})

	t.Run("upgrade", func(t *testing.T) { s.exec(t, "m1") })

	t.Run("only by the API server", func(t *testing.T) {
		insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.front.address+pelagov1alpha1.ProxyPath("m1", "proxy/version"), nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("X-Remote-User", "alice")
		r, err := insecure.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusUnauthorized {
			t.Errorf("status %s for a client without the API server's certificate, want 401", r.Status)
		}
	})

	t.Run("Karmada's tools", func(t *testing.T) { s.tools(t) })

	t.Run("paths", func(t *testing.T) {
		for _, path := range []string{"proxy/../../m2/proxy/version", "proxy/api/%2e%2e/x", "proxy/a%2F..%2Fb"} {
			if err := raw(t, s.through("m1", "alice"), s.Config.Host+pelagov1alpha1.ProxyPath("m1", path)); err != http.StatusBadRequest {
				t.Errorf("%s: status %d, want 400", path, err)
			}
		}
	})

	t.Run("credentials", func(t *testing.T) {
		c := &clusterv1alpha1.Cluster{ObjectMeta: metaOf("", "m1")}
		refer := func(ref *clusterv1alpha1.SecretReference) {
			t.Helper()
			if err := s.Get(t.Context(), key("", "m1"), c); err != nil {
				t.Fatal(err)
			}
			c.Spec.ImpersonatorSecretRef = ref
			if err := s.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		says := func(what, want string) {
			t.Helper()
			var last error
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(last)
				}
			})
			await.True(t, what, func() bool {
				last = list(t, s.as(t, "m1", "alice"), "shop")
				return codeOf(last) == 503 && strings.Contains(last.Error(), want)
			})
		}
		refer(&clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: "m1-impersonator"})
		says("the Secret does not exist", "spec.impersonatorSecretRef names Secret karmada-cluster/m1-impersonator")
		s.member.Make(&corev1.ServiceAccount{ObjectMeta: metaOf("shop", "weak")}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "weak",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "weak"}}, Type: corev1.SecretTypeServiceAccountToken})
		weak := &corev1.Secret{}
		await.True(t, "the token is there", func() bool {
			return s.member.Get(t.Context(), key("shop", "weak"), weak) == nil && len(weak.Data[corev1.ServiceAccountTokenKey]) > 0
		})
		s.Make(&corev1.Secret{ObjectMeta: metaOf(clusterv1alpha1.SecretNamespace, "m1-impersonator"),
			Data: map[string][]byte{clusterv1alpha1.SecretKeyToken: weak.Data[corev1.ServiceAccountTokenKey]}})
		says("the account may not impersonate", "does not let the hub act for users: join it again")
		refer(nil)
		s.served(t, "m1")
		secret := &corev1.Secret{ObjectMeta: metaOf(clusterv1alpha1.SecretNamespace, "m1")}
		if err := s.Get(t.Context(), key(secret.Namespace, secret.Name), secret); err != nil {
			t.Fatal(err)
		}
		secret.Data[clusterv1alpha1.SecretKeyToken] = []byte("revoked")
		if err := s.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		says("the token is revoked", "cluster m1 refuses the credential of the hub: join it again")
		s.Remove(secret)
		says("the Secret is gone", "its spec.secretRef names Secret karmada-cluster/m1, which does not exist: join the cluster again")
	})

	t.Run("an uninstalled hub", func(t *testing.T) {
		stop()
		if err := s.Delete(t.Context(), role); err != nil {
			t.Fatal(err)
		}
		services := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIServiceList"}}
		await.Equal(t, nil, func() (left []string) { // else no namespace of the hub could end
			if err := s.List(t.Context(), services); err != nil {
				return []string{err.Error()}
			}
			for _, u := range services.Items { // those of definitions lead to the API server itself
				if of, _, _ := unstructured.NestedString(u.Object, "spec", "service", "name"); of == manifests.HubName {
					left = append(left, u.GetName())
				}
			}
			return left
		})
	})
}

// tools reaches m1 as Karmada's tools do.
func (s *set) tools(t *testing.T) {
	t.Helper()
	const m1 = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy"
	hub, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	as := func(path string, change func(*rest.Config)) *kubernetes.Clientset {
		cfg := rest.CopyConfig(&s.karmada)
		cfg.Host += path
		change(cfg)
		c, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	account := func(name string) func(*rest.Config) {
		s.Make(&corev1.ServiceAccount{ObjectMeta: metaOf("default", name)})
		token, err := hub.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return func(c *rest.Config) { c.BearerToken = token.Status.Token }
	}
	certificate := func(c *rest.Config) { c.CertData, c.KeyData = s.Config.CertData, s.Config.KeyData }
	entrant, stranger := account("entrant"), account("stranger")
	self, err := as("", certificate).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// As Karmada's users have it; entrant also impersonates alice.
	s.Make(&rbacv1.ClusterRole{ObjectMeta: metaOf("", "tools"), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{clusterv1alpha1.GroupVersion.Group}, Resources: []string{"clusters/proxy"}, ResourceNames: []string{"m1"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"alice"}, Verbs: []string{"impersonate"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metaOf("", "tools"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "tools"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "entrant"}, {Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}}})
	s.member.Make(&rbacv1.RoleBinding{ObjectMeta: metaOf("shop", "tools"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "shop"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "entrant"}, {Kind: "User", APIGroup: rbacv1.GroupName, Name: self.Status.UserInfo.Username}}})
	impersonate := func(name string) func(*rest.Config) {
		return func(c *rest.Config) {
			entrant(c)
			c.Impersonate.UserName = name
		}
	}
	for name, c := range map[string]struct {
		path, namespace string
		as              func(*rest.Config)
		code            int32
		says            string
	}{
		"a token": {m1, "shop", entrant, 200, ""},
		"a token, without rights in the member": {m1, "default", entrant, 403,
			`User "system:serviceaccount:default:entrant" cannot list resource "configmaps"`},
		"a token, without rights at the hub": {m1, "shop", stranger, 403,
			`user "system:serviceaccount:default:stranger" cannot get resource "clusters/proxy" in API group "cluster.karmada.io"`},
		"a token, another cluster":                    {strings.Replace(m1, "m1", "m2", 1), "shop", entrant, 403, `cannot get resource "clusters/proxy"`},
		"a token that impersonates":                   {m1, "shop", impersonate("alice"), 200, ""},
		"a token that may not impersonate":            {m1, "shop", impersonate("bob"), 403, "cannot impersonate"},
		"a certificate":                               {m1, "shop", certificate, 200, ""},
		"a certificate, without rights in the member": {m1, "default", certificate, 403, `cannot list resource "configmaps"`},
		"a certificate, a cluster that does not exist": {strings.Replace(m1, "m1", "m9", 1), "shop", certificate, 404,
			`clusters.cluster.karmada.io "m9" not found`},
		"no credential":          {m1, "shop", func(*rest.Config) {}, 403, "system:anonymous"},
		"an invalid token":       {m1, "shop", func(c *rest.Config) { c.BearerToken = "x" }, 401, "Unauthorized"},
		"the hub by certificate": {"", "default", certificate, 200, ""},
		"the hub without rights": {"", "default", entrant, 403, `User "system:serviceaccount:default:entrant" cannot list resource "configmaps"`},
		"the hub, no credential": {"", "default", func(*rest.Config) {}, 403, `User "system:anonymous" cannot list`},
	} {
		t.Run(name, func(t *testing.T) {
			err := list(t, as(c.path, c.as), c.namespace)
			if code := codeOf(err); code != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d: %v, want %d: %s", code, err, c.code, c.says)
			}
		})
	}
	await.True(t, "the member's audit log names the caller", func() bool { return s.audited(t, "system:serviceaccount:default:entrant") })
	t.Run("upgrade", func(t *testing.T) {
		s.kubelet(t, "tools")
		cfg := rest.Config{}
		entrant(&cfg)
		execBy(t, &s.karmada, m1+"/api/v1/namespaces/shop/pods/tools/exec?command=cat&stdin=true&stdout=true", "Authorization: Bearer "+cfg.BearerToken)
	})
}

func codeOf(err error) int32 {
	if err == nil {
		return 200
	}
	if status, ok := err.(apierrors.APIStatus); ok {
		return status.Status().Code
	}
	return 0
}

// raw requests a path as it stands and returns the status code.
func raw(t *testing.T, as *rest.Config, url string) int {
	t.Helper()
	rt, err := rest.TransportFor(as)
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := rt.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close() // read only
	return r.StatusCode
}

// exec opens an exec of a pod of the member, whose kubelet is the test, and has it return what is
// sent.
func (s *set) exec(t *testing.T, cluster string) {
	t.Helper()
	s.execAt(t, cluster, pelagov1alpha1.ProxyPath(cluster, "proxy/api/v1/namespaces/shop/pods/"+cluster+"/exec?command=cat&stdin=true&stdout=true"))
}

func (s *set) execAt(t *testing.T, cluster, path string) {
	t.Helper()
	s.kubelet(t, cluster)
	execBy(t, s.Config, path, "Impersonate-User: alice")
}

// execBy opens the exec with a header that names the user.
func execBy(t *testing.T, to *rest.Config, path, header string) {
	t.Helper()
	settings, err := rest.TLSConfigFor(to)
	if err != nil {
		t.Fatal(err)
	}
	settings.NextProtos = nil // HTTP/1.1
	conn, err := tls.Dial("tcp", strings.TrimPrefix(to.Host, "https://"), settings)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: hub\r\n%s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n", path, header)
	if err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(conn)
	r, err := http.ReadResponse(answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(r.Body, 1000))
		t.Fatalf("%s: %s, want 101", r.Status, text)
	}
	for _, text := range []string{"first\n", "second\n"} {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if got, err := answer.ReadString('\n'); got != text {
			t.Fatalf("got %q, %v, want %q", got, err, text)
		}
	}
}

// kubelet makes a pod on a node whose kubelet returns what it gets by an exec.
func (s *set) kubelet(t *testing.T, name string) {
	t.Helper()
	// the API server verifies none
	cert, err := tls.X509KeyPair(s.member.Config.CertData, s.member.Config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // the test has ended
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				if q, err := http.ReadRequest(in); err != nil || !strings.HasPrefix(q.URL.Path, "/exec/shop/") {
					return
				}
				// the copy fails as well
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
				_, _ = io.Copy(conn, in)
			}()
		}
	}()
	node := &corev1.Node{ObjectMeta: metaOf("", name)}
	pod := &corev1.Pod{ObjectMeta: metaOf("shop", name), Spec: corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	s.member.Make(node, pod)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(listener.Addr().(*net.TCPAddr).Port)
	if err := s.member.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// balancer leads connections to the replicas in turn, as a Service does.
type balancer struct {
	address string
	mu      sync.Mutex
	to      []string
	next    int
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // the test has ended
	b := &balancer{address: listener.Addr().String()}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go b.join(near)
		}
	}()
	return b
}

func (b *balancer) add(address string, add bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var to []string
	for _, a := range b.to {
		if a != address {
			to = append(to, a)
		}
	}
	if b.to = to; add {
		b.to = append(b.to, address)
	}
}

func (b *balancer) join(near net.Conn) {
	defer near.Close()
	b.mu.Lock()
	if len(b.to) == 0 {
		b.mu.Unlock()
		return
	}
	b.next++
	to := b.to[b.next%len(b.to)]
	b.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		_, _ = io.Copy(far, near) // however it ends, both ends close
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
