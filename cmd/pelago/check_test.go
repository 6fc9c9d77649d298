package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// execute runs a command line.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root("pelago")
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// A verb that does not exist below another is an error with a suggestion; without one the help of
// the group is printed.
func TestUnknownVerb(t *testing.T) {
	for line, want := range map[string]string{
		"show conections":                 "unknown command \"conections\" of `pelago show`: did you mean connections?",
		"gateway drian n1":                "did you mean drain?",
		"clusters list":                   "see `pelago clusters --help`",
		"diagnose k8s-versions":           "unknown command",
		"check --explain PLG-X":           "there is no such code",
		"check --only X":                  "--only X",
		"check broker-info.subm":          "--pre only",
		"check --kubeconfig /nonexistent": "kubeconfig",
	} {
		if _, err := execute(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pelago %s: %v, want %q", line, err, want)
		}
	}
	if out, err := execute(t, "show"); err != nil || !strings.Contains(out, "connections") {
		t.Errorf("pelago show: %v\n%s", err, out)
	}
}

func TestExplainCheck(t *testing.T) {
	out, err := execute(t, "check", "--explain", "plg-n013")
	if err != nil || !strings.Contains(out, "PLG-N013") || !strings.Contains(out, "UDP 4500") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A cluster that refuses everything is unknown, with exit status 3 and the name of its context.
func TestCheckStatus(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }))
	t.Cleanup(s.Close)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["a"] = &clientcmdapi.Cluster{Server: s.URL}
	kc.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "check", "--kubeconfig", file)
	var status inspect.Status
	if !errors.As(err, &status) || status.Code != statusUnknown || !strings.Contains(out, "context a") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = execute(t, "status", "--kubeconfig", file)
	if !errors.As(err, &status) || status.Code != statusUnknown || !strings.Contains(out, "CLUSTER   PLANES") || !strings.Contains(out, "PLG-N000") {
		t.Errorf("status: %v\n%s", err, out)
	}
	for verdict, code := range map[check.Verdict]int{check.OK: 0, check.Warning: 0, check.Error: 1, check.Unknown: 3} {
		err := checkStatus(check.Result{Outcomes: []check.Outcome{{Verdict: verdict}}})
		status := inspect.Status{}
		if errors.As(err, &status); status.Code != code {
			t.Errorf("%s: exit status %d, want %d", verdict, status.Code, code)
		}
	}
}

// join refuses a cluster that cannot work, with the remedy, and names --skip-checks.
func TestPreflight(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.0"}`)) // a test server's connection
	}))
	t.Cleanup(s.Close)
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(version string) view.Member {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium"}}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "cilium-agent", Image: "quay.io/cilium/cilium:v" + version}}
		typed := fake.NewClientset(d, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: map[string]string{
			"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true"}})
		typed.PrependReactor("create", "selfsubjectaccessreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
		})
		return view.Member{Config: &rest.Config{Host: s.URL}, Client: ctrlfake.NewClientBuilder().WithScheme(scheme).Build(), Typed: typed}
	}
	var said []string
	progress := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	err = preflight(t.Context(), allowed("1.15.19"), progress)
	for _, want := range []string{"PLG-P002", "Cilium 1.15.19", "enable-host-legacy-routing=true", "--skip-checks"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if err := preflight(t.Context(), allowed("1.20.2"), progress); err != nil || len(said) > 0 {
		t.Errorf("Cilium 1.20.2: %v, %q", err, said)
	}
}

// init and deploy-broker refuse an API server that cannot be a hub; in a host cluster only its
// readiness counts.
func TestPreflightHub(t *testing.T) {
	ready := "[+]ping ok\n"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(map[string]string{"/version": `{"gitVersion":"v1.36.0"}`, "/readyz": ready}[r.URL.Path])) // a test server's connection
	}))
	t.Cleanup(s.Close)
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cfg := &rest.Config{Host: s.URL}
	real, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	denies := fake.NewClientset()
	denies.PrependReactor("create", "selfsubjectaccessreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{}, nil
	})
	m := view.Member{Config: cfg, Client: ctrlfake.NewClientBuilder().WithScheme(scheme).Build(), Typed: reviewer{denies, real}}
	quiet := func(string, ...any) {}
	err = preflightHub(t.Context(), m, quiet)
	for _, want := range []string{"PLG-P020", "may not create namespaces", "PLG-P022", "--skip-checks"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if err := preflightHost(t.Context(), m, quiet); err != nil {
		t.Errorf("a host cluster: %v", err)
	}
	ready = "[-]etcd failed\n"
	if err := preflightHost(t.Context(), m, quiet); err == nil || !strings.Contains(err.Error(), "PLG-P021") {
		t.Errorf("a host cluster that is not ready: %v", err)
	}
	if _, err := execute(t, "check", "--hub"); err == nil || !strings.Contains(err.Error(), "--pre") {
		t.Errorf("--hub without --pre: %v", err)
	}
}

// reviewer answers requests for raw paths by a server, all others, such as reviews of rights, by
// a fake.
type reviewer struct {
	kubernetes.Interface
	raw kubernetes.Interface
}

func (r reviewer) Discovery() discovery.DiscoveryInterfaces { return r.raw.Discovery() }

// Warnings of the API server are written once each where the command asks for them.
func TestAPIWarnings(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Warning", `299 - "policy would be violated"`)
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.0"}`)) // a test server's connection
	}))
	t.Cleanup(s.Close)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["a"] = &clientcmdapi.Cluster{Server: s.URL}
	kc.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	kc.CurrentContext = "a"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := access{kubeconfig: file, warnings: &out}
	for range 2 {
		c, err := a.open()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := c.Typed.Discovery().ServerVersion(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := strings.Count(out.String(), "policy would be violated"); n != 2 { // each client counts for itself
		t.Errorf("%d warnings of two clients: %s", n, &out)
	}
}

// gather writes an archive although a cluster is away, and does not overwrite one.
func TestGather(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }))
	t.Cleanup(s.Close)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["a"] = &clientcmdapi.Cluster{Server: s.URL}
	kc.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	dir := t.TempDir()
	file, archive := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "a.tar.gz")
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "gather", "--kubeconfig", file, "--file", archive)
	if info, failed := os.Stat(archive); err != nil || failed != nil || info.Size() == 0 || !strings.Contains(out, "warning: a: ") {
		t.Errorf("%v, %v\n%s", err, failed, out)
	}
	if _, err := execute(t, "gather", "--kubeconfig", file, "--file", archive); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("the archive is written again: %v", err)
	}
}

// analyze ends with the status of what it finds.
func TestAnalyzeCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte("a: [b"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "analyze", "-f", file)
	var status inspect.Status
	if !errors.As(err, &status) || status.Code != 1 || !strings.Contains(out, "PLG-A001") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := execute(t, "analyze", "-f", filepath.Join("..", "..", "api", "examples", "overridepolicy")); err != nil && !errors.As(err, &status) {
		t.Errorf("%v\n%s", err, out)
	}
}

// testCheck checks a member and a hub of API servers, in which no component runs: each source can
// be read, what is installed is ok, and what does not run is an error. What gather writes has none
// of the secrets.
func (c clusterset) testCheck(t *testing.T, secrets ...map[string][]byte) {
	out, err := c.pelago("check", "--contexts", "g1,hub", "-o", "json")
	var status inspect.Status
	if !errors.As(err, &status) || status.Code != 1 {
		t.Errorf("%v, want exit status 1", err)
	}
	var r check.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	verdicts := map[string]check.Verdict{}
	for _, o := range r.Outcomes {
		verdicts[o.Cluster+" "+o.Code] = o.Verdict
		for _, f := range o.Findings {
			t.Logf("%s %s %s: %s: %s", f.Verdict, f.Code, f.Cluster, f.Object, f.Reason)
		}
	}
	for name, want := range map[string]check.Verdict{
		"g1 PLG-N001": check.Error, "g1 PLG-N004": check.OK, "g1 PLG-N010": check.Error, "g1 PLG-N040": check.OK, "g1 PLG-N041": check.Error,
		"g1 PLG-N043": check.Warning, "g1 PLG-D002": check.OK, "hub PLG-H001": check.OK, "hub PLG-H003": check.OK, "hub PLG-H004": check.OK, "hub PLG-H011": check.OK, "hub PLG-H012": check.OK, "hub PLG-N042": check.OK,
	} {
		if verdicts[name] != want {
			t.Errorf("%s is %q, want %q", name, verdicts[name], want)
		}
	}
	if n := r.Count(check.Unknown); n > 0 {
		t.Errorf("%d checks could not be made", n)
	}

	archive := filepath.Join(t.TempDir(), "a.tar.gz")
	if out := c.must(t, "gather", "--contexts", "g1,hub", "--file", archive); strings.Contains(out, "warning:") {
		t.Errorf("gather: %s", out)
	}
	packed, err := os.Open(archive)
	must(t, err)
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	must(t, err)
	all, err := io.ReadAll(z)
	must(t, err)
	for _, s := range secrets {
		for key, value := range s {
			// six digits may occur by chance
			if key == config.KeyBrokerCA || key == config.KeyBrokerServer || key == config.KeyNamespace || len(value) < 16 {
				continue
			}
			if bytes.Contains(all, value) || bytes.Contains(all, []byte(base64.StdEncoding.EncodeToString(value))) {
				t.Errorf("the archive has the value of key %s of a Secret", key)
			}
		}
	}
	for _, want := range []string{"pelago/index.md", "pelago/g1/clusterglobalegressip.submariner.io.yaml", "pelago/hub/cluster.submariner.io.yaml", "pelago/check.json"} {
		if !bytes.Contains(all, []byte(want)) {
			t.Errorf("the archive lacks %s", want)
		}
	}
}
