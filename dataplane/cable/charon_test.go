//go:build linux

package cable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// charonEnd bounds the end of a daemon on a busy machine. strongSwan 5.9.8 hangs for ever, once in
// about a thousand times, when a vici connection is closed at the moment of SIGTERM: its last
// thread waits for one that has ended (watcher's remove below vici's destroy). By then it has
// notified its peers. Supervisor kills it, too.
const charonEnd = 10 * time.Second

// ikeDaemon is strongSwan's IKE daemon, from Debian's package, in a network namespace: as many run
// on one machine as a test has gateways. In production it has a container of its own.
type ikeDaemon struct {
	command *exec.Cmd
	done    chan error
}

// startIKEDaemon starts a daemon and waits until its vici socket answers. start runs a command in
// the gateway's network namespace (netns.NS.Start). conf is the content of strongswan.conf
// (Charon.File), written into dir; socket is the vici socket named there. Both lie outside /run, of
// which the daemon gets one of its own for its pid file.
func startIKEDaemon(start func(*exec.Cmd) error, conf, socket, dir string) (*ikeDaemon, error) {
	if _, err := os.Stat(charonBinary); err != nil {
		return nil, fmt.Errorf("find the IKE daemon: %w: apt-get install strongswan-charon strongswan-swanctl libstrongswan-standard-plugins libcharon-extra-plugins", err)
	}
	file := filepath.Join(dir, "strongswan.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of the IKE daemon: %w", err)
	}
	command := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "mount -t tmpfs none /run && exec "+charonBinary)
	command.Env = append(os.Environ(), "STRONGSWAN_CONF="+file)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := start(command); err != nil {
		return nil, fmt.Errorf("start the IKE daemon: %w", err)
	}
	d := &ikeDaemon{command: command, done: make(chan error, 1)}
	go func() { d.done <- command.Wait() }()
	// It takes 50 ms, in an emulated machine that shares its processor seconds.
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if s, err := net.Dial("unix", socket); err == nil {
			s.Close() // it answers, that is all
			return d, nil
		}
		select {
		case err := <-d.done:
			return nil, fmt.Errorf("the IKE daemon ended: %w: see the log that %s names", err, file)
		default:
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("the IKE daemon does not listen on %s: see the log that %s names", socket, file), d.Stop())
		}
	}
}

// Stop ends the daemon in order: it notifies its peers. One that hangs is killed.
func (d *ikeDaemon) Stop() error { return d.end(syscall.SIGTERM) }

// Kill ends it at once, as a crash would.
func (d *ikeDaemon) Kill() error { return d.end(syscall.SIGKILL) }

func (d *ikeDaemon) end(with syscall.Signal) error {
	if err := d.command.Process.Signal(with); errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	select {
	case <-d.done:
	case <-time.After(charonEnd):
		_ = d.command.Process.Kill() // it may have ended this moment
		<-d.done
	}
	return nil
}

// fakeCharon confirms registrations of events (0x03 → 0x05) and answers no other request, which it
// counts. A packet is its length in 4 bytes, its type in one, and more.
func fakeCharon(t *testing.T) (socket string, requests *atomic.Int32) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "vici")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	requests = new(atomic.Int32)
	serve := func(c net.Conn) {
		defer c.Close()
		for {
			var length uint32
			if binary.Read(c, binary.BigEndian, &length) != nil {
				return
			}
			packet := make([]byte, length)
			if _, err := io.ReadFull(c, packet); err != nil {
				return
			}
			if packet[0] != 0x03 {
				requests.Add(1)
			} else if _, err := c.Write([]byte{0, 0, 0, 1, 0x05}); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return socket, requests
}

// Of a daemon that hangs one request is awaited: with a hundred connections, each of which needs
// several, pelago-node would stand still.
func TestHangingDaemonIsAskedOnce(t *testing.T) {
	socket, requests := fakeCharon(t)
	c, err := dialCharon(socket)
	must(t, err)
	defer c.close()
	c.timeout = 200 * time.Millisecond
	for range 3 {
		if _, err := c.call("stats"); !errors.Is(err, errDaemon) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that there is no answer", err)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// A hanging daemon is not asked again within one Ensure, and its status is not awaited afterwards.
func TestHangingDaemonIsNotRedialed(t *testing.T) {
	socket, requests := fakeCharon(t)
	w := NewIPsec(IPsecOptions{Socket: socket, Log: slog.New(slog.DiscardHandler)})
	must(t, w.connect())
	w.vici.timeout = 200 * time.Millisecond
	g := newSet(t, 1).gateways[0]
	g.wire = w
	if err := g.tryEnsure(); !errors.Is(err, errDaemon) {
		t.Errorf("error %v, want that there is no answer", err)
	}
	if _, err := w.Status(); err != nil || requests.Load() != 1 {
		t.Errorf("%v, and %d requests; want 1", err, requests.Load())
	}
}
