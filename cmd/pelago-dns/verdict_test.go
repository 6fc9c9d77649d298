package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/need"
)

// TestVerdictsWithoutRoot: the user of the pod can read the socket that
// pelago-node serves as root.
func TestVerdictsWithoutRoot(t *testing.T) {
	need.Root(t)
	const user = 65532 // of deploy/member/workloads/dns.yaml
	if os.Getuid() != 0 {
		t.Fatal("this test changes its user: run it as root")
	}
	node, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(node); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(node, 0o755); err != nil { // as /run
		t.Fatal(err)
	}
	socket := filepath.Join(node, "pelago", "verdict.sock")
	ctx, cancel := context.WithCancel(context.Background())
	server, served := topology.NewUnreachableClustersServer(), make(chan error, 1)
	server.Publish([]string{"g2"})
	go func() { served <- server.Run(ctx, socket) }()
	await.True(t, "served", func() bool { i, err := os.Stat(socket); return err == nil && i.Mode().Perm() == 0o666 })

	got, watched := make(chan []string, 1), make(chan error, 1)
	go func() {
		defer close(watched)
		// Not unlocked: the thread ends with this goroutine, and its user with it.
		runtime.LockOSThread()
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, user, user, user); errno != 0 {
			watched <- errno
			return
		}
		if err := os.WriteFile(filepath.Join(node, "pelago", "file"), nil, 0o600); !errors.Is(err, os.ErrPermission) {
			watched <- errors.Join(errors.New("this thread still has root's rights"), err)
			return
		}
		topology.WatchUnreachableClusters(ctx, socket, func(dead []string) {
			select {
			case got <- dead:
			default:
			}
		}, slog.Default())
	}()
	select {
	case dead := <-got:
		if !slices.Equal(dead, []string{"g2"}) {
			t.Errorf("dead clusters %q, want g2", dead)
		}
	case err := <-watched:
		t.Error(err)
	}
	cancel()
	if err := errors.Join(<-served, <-watched); err != nil {
		t.Error(err)
	}
}
