package apiserver_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestServesTheCRDs(t *testing.T) {
	lists, err := client(t, server.Config(t)).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			got = append(got, list.GroupVersion+" "+r.Name)
		}
	}
	for _, want := range []string{
		"submariner.io/v1 globalingressips", "pelago.io/v1alpha1 portblocks", "multicluster.x-k8s.io/v1beta1 serviceexports",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("not served: %s", want)
		}
	}
}

func TestPodsNeedNoServiceAccount(t *testing.T) {
	pods := client(t, server.Config(t)).CoreV1().Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestKubeconfigGivesTheSameAccess(t *testing.T) {
	text, err := apiserver.Kubeconfig(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A hub fills token Secrets and really deletes namespaces.
func TestHubControllers(t *testing.T) {
	c := client(t, apiserver.Start(t, apiserver.HubControllers()))
	ctx := t.Context()
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	await.True(t, "ServiceAccount default exists", func() bool {
		_, err := c.CoreV1().ServiceAccounts("gone").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	if _, err := c.CoreV1().Secrets("gone").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the token Secret is filled", func() bool {
		s, err := c.CoreV1().Secrets("gone").Get(ctx, "token", metav1.GetOptions{})
		return err == nil && len(s.Data["token"]) > 0 && len(s.Data["ca.crt"]) > 0
	})
	if err := c.CoreV1().Namespaces().Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the namespace is gone", func() bool {
		_, err := c.CoreV1().Namespaces().Get(ctx, "gone", metav1.GetOptions{})
		return err != nil
	})
}

func TestStopLeavesNothing(t *testing.T) {
	before := processes(t)
	t.Setenv("TMPDIR", t.TempDir())
	t.Run("two servers", func(t *testing.T) {
		a, b := apiserver.Start(t), apiserver.Start(t)
		if a.Host == b.Host {
			t.Errorf("both servers listen on %s", a.Host)
		}
	})
	if after := processes(t); !slices.Equal(before, after) {
		t.Errorf("processes before %q, after %q", before, after)
	}
	files, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > 0 {
		t.Errorf("files left: %v", files)
	}
}

// processes lists the children of this process.
func processes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil && !os.IsNotExist(err) { // a thread may end meanwhile
			t.Fatal(err)
		}
		pids = append(pids, strings.Fields(string(text))...)
	}
	slices.Sort(pids)
	return pids
}

func TestMissingBinaryNamesTheCommand(t *testing.T) {
	for _, variable := range []string{"PELAGO_KUBE_BIN", "PELAGO_CACHE"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv("PELAGO_KUBE_BIN", "")
			t.Setenv(variable, t.TempDir())
			f := &fatal{TB: t}
			func() {
				defer func() { _ = recover() }()
				apiserver.Start(f)
			}()
			if !strings.Contains(f.text, "make setup") {
				t.Errorf("failure %q names no command", f.text)
			}
		})
	}
}

// fatal records the text of a Fatal.
type fatal struct {
	testing.TB
	text string
}

func (f *fatal) Helper() {}

func (f *fatal) Fatal(args ...any) {
	f.text = args[0].(error).Error()
	panic("fatal")
}

// Servers are clusters of their own, though their data comes from one copy.
func TestServersHaveDifferentIdentities(t *testing.T) {
	seen := map[types.UID]bool{}
	for range 2 {
		ns, err := client(t, apiserver.Start(t)).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if seen[ns.UID] {
			t.Errorf("two servers have the kube-system with UID %s", ns.UID)
		}
		seen[ns.UID] = true
	}
}
