//go:build linux

package cable

import (
	"os"
	"path/filepath"
	"testing"
)

// daemon is the IKE daemon next to a gateway.
type daemon struct {
	*ikeDaemon
	conf    Charon
	dir     string
	gateway *gateway
}

func newDaemon(t testing.TB, g *gateway, userspace bool) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "charon") // the path of a socket is short
	must(t, err)
	d := &daemon{
		conf: Charon{Socket: filepath.Join(dir, "vici"), Port: g.local.Listen, Userspace: userspace, Log: filepath.Join(dir, "log")},
		dir:  dir, gateway: g,
	}
	t.Cleanup(func() {
		if d.ikeDaemon != nil {
			must(t, d.Stop())
		}
		if t.Failed() {
			log, err := os.ReadFile(d.conf.Log)
			t.Logf("log of the IKE daemon of g%d: %v\n%s", g.number, err, log[max(0, len(log)-16000):])
		}
		must(t, os.RemoveAll(dir))
	})
	d.start(t)
	return d
}

func (d *daemon) start(t testing.TB) {
	t.Helper()
	running, err := startIKEDaemon(d.gateway.ns.Start, d.conf.File(), d.conf.Socket, d.dir)
	must(t, err)
	d.ikeDaemon = running
}
