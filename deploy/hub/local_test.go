package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/need"
)

// running is a hub in the foreground.
type running struct {
	client.Client
	typed   kubernetes.Interface
	address string
	end     func()
}

// start brings the hub up as `pelago init --local --foreground` does, with a pelago-hub that only
// writes its arguments.
func start(t *testing.T, l *Local) running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan []byte, 1), make(chan error, 1)
	go func() {
		ended <- l.Install(ctx, t.Logf, func(admin []byte) error { ready <- admin; return nil })
	}()
	r := running{address: l.Address, end: func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}}
	t.Cleanup(r.end)
	select {
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	case admin := <-ready:
		cfg, err := clientcmd.RESTConfigFromKubeConfig(admin)
		check(t, err)
		r.Client, err = manifests.NewClient(cfg)
		check(t, err)
		r.typed, err = kubernetes.NewForConfig(cfg)
		check(t, err)
	}
	return r
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newLocal(t *testing.T) *Local {
	t.Helper()
	kube, err := binaries.Kubernetes(t.Context(), func(line string) { t.Log(line) })
	check(t, err)
	programs := t.TempDir()
	check(t, os.WriteFile(filepath.Join(programs, "pelago-hub"), []byte("#!/bin/sh\necho \"$@\"\nexec sleep 1000000\n"), 0o755))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	// below the range from which the kernel gives ports out
	port := 20000 + free.Addr().(*net.TCPAddr).Port%10000
	check(t, free.Close())
	return &Local{Dir: filepath.Join(t.TempDir(), "hub"), BinDir: kube, Address: fmt.Sprintf("127.0.0.1:%d", port), Foreground: true, KarmadaTools: true,
		Timeout: 5 * time.Minute, programs: programs, systemd: Systemd{Dir: t.TempDir()}}
}

// TestLocal runs the programs of a hub: their arguments are those of a hub in a host cluster.
func TestLocal(t *testing.T) {
	need.Kubernetes(t)
	l := newLocal(t)
	hub := start(t, l)
	ctx := t.Context()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"}, StringData: map[string]string{"key": "plain-text"}}
	check(t, hub.Create(ctx, secret))
	work := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work", Annotations: map[string]string{"note": "plain-text"}}}
	check(t, hub.Create(ctx, work))

	t.Run("data at rest are encrypted", func(t *testing.T) { testEncrypted(t, l) })
	t.Run("a killed program is started again", func(t *testing.T) { testKilled(t, l, hub, secret) })
	t.Run("certificates are renewed without an outage", func(t *testing.T) { testRenewed(t, l, hub) })
	t.Run("what pelago-hub is given", func(t *testing.T) {
		await.True(t, "pelago-hub runs", func() bool {
			text, err := os.ReadFile(filepath.Join(l.Dir, "pelago-hub.log"))
			return err == nil && strings.Contains(string(text), "--kubeconfig="+l.Dir+"/pki/hub.kubeconfig") &&
				strings.Contains(string(text), "--karmada-tls-cert-file="+l.Dir+"/pki/karmada.crt")
		})
		cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(l.Dir, "pki", "hub.kubeconfig"))
		check(t, err)
		c, err := manifests.NewClient(cfg)
		check(t, err)
		check(t, c.List(t.Context(), &workv1alpha1.WorkList{}))
		if err := c.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}); err == nil {
			t.Error("pelago-hub may create Secrets: it has more rights than its account")
		}
	})
	t.Run("the audit log has no contents", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(l.Dir, "audit.log"))
		check(t, err)
		if !strings.Contains(string(text), `"name":"first"`) || strings.Contains(string(text), "plain-text") {
			t.Errorf("audit.log has %d bytes; it must name the Secret, without its content", len(text))
		}
	})
	if err := l.stop(ctx); err == nil || !strings.Contains(err.Error(), "runs: end its") {
		t.Errorf("a hub in the foreground that runs: %v", err)
	}

	// A member's credential, and what it trusts.
	token := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.HubName}}
	check(t, hub.SubResource("token").Create(ctx, account, token))
	backup := filepath.Join(t.TempDir(), "backup")
	check(t, l.Backup(ctx, backup))
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %v (%v), want 0600", info.Mode(), err)
	}
	later := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "later"}}
	check(t, hub.Create(ctx, later))
	before, err := os.ReadFile(filepath.Join(l.Dir, "pki", "ca.crt"))
	check(t, err)
	hub.end()

	// On another machine: another directory, with keys of its own.
	other := newLocal(t)
	start(t, other).end()
	former, err := os.ReadFile(filepath.Join(other.Dir, "pki", "encryption.yaml"))
	check(t, err)
	check(t, other.Restore(ctx, backup, agree, t.Logf))
	if kept, err := os.ReadFile(filepath.Join(other.Dir, "former", "pki", "encryption.yaml")); err != nil || string(kept) != string(former) ||
		!exists(filepath.Join(other.Dir, "former", "etcd", "member")) {
		t.Errorf("the data and the keys of before are not in former: %v", err)
	}
	after, err := os.ReadFile(filepath.Join(other.Dir, "pki", "ca.crt"))
	check(t, err)
	if string(before) != string(after) {
		t.Error("the restored hub has another authority: members would not trust it")
	}
	restored := start(t, other)
	if exists(filepath.Join(other.Dir, "former", unfinished)) {
		t.Error("the restored hub runs, and the restore has not completed")
	}
	member, err := manifests.NewClient(&rest.Config{Host: "https://" + other.Address, BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: before}})
	check(t, err)
	if err := member.List(ctx, &workv1alpha1.WorkList{}); err != nil {
		t.Errorf("a token of before, and the authority of before: %v", err)
	}
	have := &corev1.Secret{}
	check(t, restored.Get(ctx, client.ObjectKeyFromObject(secret), have))
	if have.UID != secret.UID || string(have.Data["key"]) != "plain-text" {
		t.Errorf("Secret first has UID %s, want %s, and data %s", have.UID, secret.UID, have.Data)
	}
	if err := restored.Get(ctx, client.ObjectKeyFromObject(later), later); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("what came after the backup: %v, want none", err)
	}
	fresh := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fresh"}}
	check(t, restored.Create(ctx, fresh))
	if len(fresh.ResourceVersion) <= len(later.ResourceVersion) {
		t.Errorf("the version after the restore is %s, before it was %s: watches of before would miss changes", fresh.ResourceVersion, later.ResourceVersion)
	}
}

func testEncrypted(t *testing.T, l *Local) {
	pki, err := l.pki()
	check(t, err)
	pair, err := tls.X509KeyPair(pki.Issued["apiserver-etcd.crt"], pki.Issued["apiserver-etcd.key"])
	check(t, err)
	o, _, err := l.options()
	check(t, err)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{fmt.Sprintf("https://127.0.0.1:%d", o.Port+1)}, Logger: zap.NewNop(),
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}})
	check(t, err)
	defer etcd.Close()
	for _, key := range []string{"/registry/secrets/default/first", "/registry/work.karmada.io/works/default/work"} {
		a, err := etcd.Get(t.Context(), key)
		check(t, err)
		if len(a.Kvs) != 1 || !strings.HasPrefix(string(a.Kvs[0].Value), "k8s:enc:secretbox:") {
			t.Errorf("%s in etcd is not encrypted, or missing: %d values", key, len(a.Kvs))
		}
	}
}

func testKilled(t *testing.T, l *Local, hub running, secret *corev1.Secret) {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		killed := pidOf(t, l.Dir, name)
		check(t, syscall.Kill(killed, syscall.SIGKILL))
		await.True(t, name+" is started again", func() bool {
			pid := pidOf(t, l.Dir, name)
			return pid != 0 && pid != killed
		})
		// It answers before that, without the custom resources.
		await.True(t, "the API server is ready", func() bool {
			return hub.typed.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error() == nil
		})
		have := &corev1.Secret{}
		check(t, hub.Get(t.Context(), client.ObjectKeyFromObject(secret), have))
		if have.UID != secret.UID {
			t.Errorf("after the death of %s Secret first has UID %s, want %s", name, have.UID, secret.UID)
		}
	}
}

// pidOf is the process of the program that has an argument in the directory, 0 if none exists.
func pidOf(t *testing.T, dir, program string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if args := strings.Split(string(text), "\x00"); err == nil && filepath.Base(args[0]) == program && strings.Contains(string(text), dir+"/") {
			var pid int
			if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil {
				return pid
			}
		}
	}
	return 0
}

// testRenewed: certificates that have 65 days left are replaced, and the servers use the new ones;
// no request fails meanwhile.
func testRenewed(t *testing.T, l *Local, r running) {
	serial := func() string {
		c, err := tls.Dial("tcp", r.address, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
		if err != nil {
			return ""
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if err := r.List(t.Context(), &corev1.SecretList{}); err != nil {
				failed <- err
				return
			}
		}
	}()
	first := serial()
	pki, err := l.pki()
	check(t, err)
	_, names, err := l.options()
	check(t, err)
	kept := pki.Issued
	pki.Issued = nil
	_, err = pki.Complete(names, time.Now().AddDate(0, 0, -300))
	check(t, err)
	// what clients of this test use stays
	for _, name := range []string{AdminName, "hub", "controller-manager"} {
		for _, end := range []string{".crt", ".key", ".kubeconfig"} {
			pki.Issued[name+end] = kept[name+end]
		}
	}
	check(t, l.write(pki))
	await.True(t, "the old certificate is served", func() bool { s := serial(); return s != "" && s != first })
	old := serial()
	renewed, err := l.Renew(time.Now())
	check(t, err)
	if len(renewed) != 5 {
		t.Errorf("renewed are %v, want the five old ones", renewed)
	}
	await.True(t, "the renewed certificate is served", func() bool { s := serial(); return s != "" && s != old })
	if again, err := l.Renew(time.Now()); err != nil || len(again) > 0 {
		t.Errorf("renewed again: %v (%v)", again, err)
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a request failed: %v", err)
	}
}

func TestLocalErrors(t *testing.T) {
	l := &Local{Dir: t.TempDir(), Address: "127.0.0.1:6443", BinDir: t.TempDir(), systemd: Systemd{Dir: t.TempDir()}}
	t.Setenv("PATH", t.TempDir())
	for want, do := range map[string]func() error{
		"find etcd in --bin-dir":             func() error { _, err := l.Prepare(time.Now()); return err },
		"find the hub in --dir":              func() error { _, err := l.Renew(time.Now()); return err },
		"read backup":                        func() error { return l.Restore(t.Context(), filepath.Join(l.Dir, "none"), agree, t.Logf) },
		"give a port from 1024":              func() error { _, _, err := (&Local{Address: "h:1"}).options(); return err },
		"without blanks":                     func() error { _, _, err := (&Local{Dir: "a b", Address: "h"}).options(); return err },
		"find out whether clusters are regi": func() error { return checkMembers(t.Context(), closedHub(t), false) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := checkMembers(t.Context(), nil, true); err != nil {
		t.Error(err)
	}
	if err := errors.Join(l.stop(t.Context())); err != nil {
		t.Errorf("stop where nothing runs: %v", err)
	}
}

// closedHub is the kubeconfig of an API server that does not answer.
func closedHub(t *testing.T) []byte {
	var pki PKI
	_, err := pki.Complete(PKINames{Internal: "https://127.0.0.1:1", External: "https://127.0.0.1:1"}, time.Now())
	check(t, err)
	return pki.Issued[AdminKubeconfig]
}
