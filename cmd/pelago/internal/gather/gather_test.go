package gather

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// The forms of credentials; each is made of parts, so that scanners of repositories do not report
// it.
var (
	jwt = "eyJ" + "hbGciOiJSUzI1NiJ9" + ".eyJ" + "pc3MiOiJrdWJlcm5ldGVzIn0" + ".c2lnbmF0dXJl"
	pem = "-----BEGIN " + "EC PRIVATE KEY-----\nMHcCAQEE\nIIrY\n-----END " + "EC PRIVATE KEY-----"
)

func TestRedact(t *testing.T) {
	for name, tt := range map[string]struct{ text, stays, goes string }{
		"token":                   {"level=info token " + jwt + " end", "level=info", jwt},
		"private key":             {"a\n" + pem + "\nb", "b", "MHcCAQEE"},
		"private key in JSON":     {`{"k":"` + strings.ReplaceAll(pem, "\n", `\n`) + `"}`, `"k"`, "MHcCAQEE"},
		"private key, cut off":    {"x\n" + pem[:50], "x", "MHcC"},
		"private key in base64":   {"client-key-data: LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCk1IY0NBUUVFSUlyWQ==", "client-key-data", "QUlWQVRF"},
		"bearer":                  {"Authorization: Bearer abcdefghijklmnop", "Authorization", "abcdefghijklmnop"},
		"bootstrap token":         {"use abcdef.0123456789abcdef now", "use", "0123456789abcdef"},
		"password in a URL":       {"https://joe:hunter22@example.org/x", "example.org/x", "hunter22"},
		"password in YAML":        {"  password: hunter22hunter22\n  user: joe", "user: joe", "hunter22"},
		"psk in JSON":             {"{\n\"psk\": \"hunter22hunter22\"\n}", "psk", "hunter22"},
		"a certificate stays":     {"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "MIIB", ""},
		"a public key stays":      {"publicKey: 3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=", "3p7bfXt9wb", ""},
		"a secret's name stays":   {"secretRef:\n  name: cluster-c1", "cluster-c1", ""},
		"a version stays":         {"v1.37.2-alpha.0123456789abcdef-x", "v1.37.2", ""},
		"what is cut out already": {"token: " + mark, "token", ""},
	} {
		got, n := redact([]byte(tt.text))
		if !strings.Contains(string(got), tt.stays) || tt.goes != "" && strings.Contains(string(got), tt.goes) || (n > 0) != (tt.goes != "") {
			t.Errorf("%s: %d in %q", name, n, got)
		}
		if _, again := redact(got); again > 0 {
			t.Errorf("%s: redacted twice: %q", name, got)
		}
	}
}

// An archive of a cluster and of one that is away: an index that names what is missing, objects and
// logs, no Secret, no credential.
func TestArchive(t *testing.T) {
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	at := metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: "one"}
	pod := &corev1.Pod{ObjectMeta: at, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "HUB_TOKEN", Value: "envsecret"}}}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}}}}
	work := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-c1", Name: "secret"}}
	work.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"Secret","data":{"k":"d29ya3NlY3JldA=="}}`)}}}
	c := ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(pod, work, &submarinerv1.Gateway{ObjectMeta: at},
		&corev1.Secret{ObjectMeta: at, Data: map[string][]byte{"token": []byte(jwt)}},
		&corev1.ConfigMap{ObjectMeta: at, Data: map[string]string{"x": pem}}).Build()
	typed := fake.NewClientset(pod)
	typed.Resources = []*metav1.APIResourceList{
		{GroupVersion: "submariner.io/v1", APIResources: []metav1.APIResource{{Name: "gateways", Kind: "Gateway", Verbs: []string{"list"}}}},
		{GroupVersion: "work.karmada.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "works", Kind: "Work", Verbs: []string{"list"}}}},
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "secrets", Kind: "Secret", Verbs: []string{"list"}}}},
	}
	var a Archive
	a.Add("check.txt", []byte("0 errors\n"))
	a.Collect(t.Context(), []Source{
		{"c1", func() (view.Member, error) { return view.Member{Client: c, Typed: typed}, nil }},
		{"c2", func() (view.Member, error) { return view.Member{}, errors.New("connection refused, token " + jwt) }},
	}, time.Minute)
	var out bytes.Buffer
	if err := a.Write(&out, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
		for _, secret := range []string{jwt, "MHcCAQEE", "envsecret", "d29ya3NlY3JldA"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s has %q", h.Name, secret)
			}
		}
	}
	for name, want := range map[string]string{
		"pelago/index.md": "c2: connection refused", "pelago/check.txt": "0 errors", "pelago/c1/gateway.submariner.io.yaml": "name: one",
		"pelago/c1/pelago-system/pod.yaml": "HUB_TOKEN", "pelago/c1/pelago-system/configmap.yaml": mark, "pelago/c1/work.work.karmada.io.yaml": "kind: Secret",
		"pelago/c1/logs/one-c.log": "fake logs",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %q", name, want, files[name])
		}
	}
	for name := range files {
		if strings.Contains(name, "secret.yaml") {
			t.Errorf("the archive has %s", name)
		}
	}
}
