package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/spec"
	"github.com/pelago-net/pelago/test/apiserver"
)

// agree is the confirmation of a restore.
func agree(string) error { return nil }

// backupOf writes a backup with these keys.
func backupOf(t *testing.T, kept map[string][]byte) string {
	t.Helper()
	page := make([]byte, 512)
	sum := sha256.Sum256(page)
	var out bytes.Buffer
	check(t, EncodeBackup(&out, nil, kept, bytes.NewReader(append(page, sum[:]...))))
	file := filepath.Join(t.TempDir(), "backup")
	check(t, os.WriteFile(file, out.Bytes(), 0o600))
	return file
}

// TestRestoreLocal: data and keys from before the first attempt of a restore stay until it has
// completed, and nothing changes before the backup is read and confirmed.
func TestRestoreLocal(t *testing.T) {
	bin := t.TempDir()
	for name, text := range map[string]string{"etcd": "", "kube-apiserver": "", "kube-controller-manager": "", "pelago": "", "pelago-hub": "", "systemctl": "",
		"etcdutl": "for a; do case $a in --data-dir=*) mkdir ${a#*=} && echo restored > ${a#*=}/data;; esac; done\n"} {
		check(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755))
	}
	l := &Local{Dir: filepath.Join(t.TempDir(), "hub"), BinDir: bin, Address: "192.0.2.7:26443", programs: bin,
		systemd: Systemd{Dir: t.TempDir(), Program: filepath.Join(bin, "systemctl")}}
	_, err := l.Prepare(time.Now())
	check(t, err)
	data := func(dir string) string {
		text, err := os.ReadFile(filepath.Join(l.Dir, dir, "data"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	write := func(text string) {
		check(t, os.MkdirAll(filepath.Join(l.Dir, "etcd"), 0o700))
		check(t, os.WriteFile(filepath.Join(l.Dir, "etcd", "data"), []byte(text), 0o600))
	}
	keys := func() map[string][]byte {
		pki, err := l.pki()
		check(t, err)
		return pki.Kept
	}
	former := func(want string, key map[string][]byte) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(l.Dir, "former", "pki", "encryption.yaml"))
		check(t, err)
		if data("former/etcd") != want || !bytes.Equal(text, key["encryption.yaml"]) || data("etcd") != "restored" {
			t.Errorf("former data are %q, want %q, with their key: %t; the hub has %q", data("former/etcd"), want, bytes.Equal(text, key["encryption.yaml"]), data("etcd"))
		}
	}
	write("original")
	original := keys()
	var other PKI
	_, err = other.Complete(PKINames{Internal: "https://127.0.0.1:1", External: "https://127.0.0.1:1"}, time.Now())
	check(t, err)
	file := backupOf(t, other.Kept)
	whole, err := os.ReadFile(file)
	check(t, err)

	cut := filepath.Join(t.TempDir(), "cut")
	check(t, os.WriteFile(cut, whole[:len(whole)-4], 0o600))
	if err := l.Restore(t.Context(), cut, agree, t.Logf); err == nil || !strings.Contains(err.Error(), "a part of one") {
		t.Errorf("a part of a backup: %v", err)
	}
	refused := errors.New("refused")
	if err := l.Restore(t.Context(), file, func(string) error { return refused }, t.Logf); !errors.Is(err, refused) {
		t.Errorf("without confirmation: %v", err)
	}
	if data("etcd") != "original" || exists(filepath.Join(l.Dir, "former")) {
		t.Error("data have changed before the backup was read and confirmed")
	}

	check(t, l.Restore(t.Context(), file, agree, t.Logf))
	former("original", original)
	asked := ""
	// the hub has not started
	check(t, l.Restore(t.Context(), file, func(question string) error { asked = question; return nil }, t.Logf))
	former("original", original)
	if !strings.Contains(asked, "An earlier restore has not completed: the data from before it stay") {
		t.Errorf("a repeated restore asks %q", asked)
	}
	// An attempt that ended while it moved the data.
	check(t, os.Rename(filepath.Join(l.Dir, "former", "etcd"), filepath.Join(l.Dir, "moved")))
	check(t, os.RemoveAll(filepath.Join(l.Dir, "etcd")))
	check(t, os.Rename(filepath.Join(l.Dir, "moved"), filepath.Join(l.Dir, "etcd")))
	check(t, l.Restore(t.Context(), file, agree, t.Logf))
	former("original", original)

	check(t, l.completeRestore()) // the hub has started
	write("later")
	second := keys()
	check(t, l.Restore(t.Context(), file, agree, t.Logf))
	former("later", second)
}

// TestExchangeKeys: the keys from before the first attempt of a restore stay until the hub runs.
func TestExchangeKeys(t *testing.T) {
	c := apiserver.Connect(t, apiserver.Start(t))
	h := &Hosted{Hub: spec.Hub{Namespace: "hub"}}
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}},
		&corev1.Secret{ObjectMeta: h.meta(HostedCA), Data: map[string][]byte{"key": []byte("original")}})
	key := func(secret string) string {
		s := &corev1.Secret{}
		check(t, c.Get(t.Context(), client.ObjectKey{Namespace: h.Namespace, Name: secret}, s))
		return string(s.Data["key"])
	}
	exchange := func(ctx context.Context, to, former string) string {
		t.Helper()
		restore, err := h.exchangeKeys(ctx, c.Client, map[string][]byte{"key": []byte(to)})
		check(t, err)
		if key(HostedCA) != to || key(HostedFormerCA) != former {
			t.Errorf("keys %s, former %s; want %s and %s", key(HostedCA), key(HostedFormerCA), to, former)
		}
		return restore
	}
	check(t, h.completeRestore(t.Context(), c.Client)) // init of a hub that was never restored
	first := exchange(t.Context(), "a", "original")
	if again := exchange(t.Context(), "b", "original"); again != first || first == "" {
		t.Errorf("a repeated restore is called %q, the first attempt %q", again, first)
	}
	check(t, h.completeRestore(t.Context(), c.Client))
	exchange(t.Context(), "c", "b")
}
