package node

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/test/clusterset"
)

// keyed is a wire of which only the keys matter here.
type keyed struct {
	cable.Wire
	rotation cable.Rotation
	begun    int
	err      error
}

func (k *keyed) Capabilities() cable.Capabilities { return cable.Capabilities{Keys: k} }

func (k *keyed) Rotate(request string) error {
	if k.err == nil && request != k.rotation.Request {
		k.rotation = cable.Rotation{Request: request, Left: 2, Waits: "tunnel 4 is being emptied"}
		k.begun++
	}
	return k.err
}

func (k *keyed) Rotation() cable.Rotation { return k.rotation }

func TestRotateKeys(t *testing.T) {
	const first, second = "2026-01-31T12:00:00Z", "2026-01-31T12:10:00+01:00"
	w := &keyed{}
	ask := func(w cable.Wire, driver, request string) (cable.Rotation, []string) {
		objs, _ := clusterset.Encrypted("n1")
		objs.Config.CableDriver = driver
		for i := range objs.Nodes {
			if objs.Nodes[i].Name == "n1" && request != "" {
				objs.Nodes[i].Annotations = map[string]string{pelagov1alpha1.AnnotationRotateKeys: request}
			}
		}
		return rotateKeys(w, objs)
	}
	expect := func(what string, begun int, want, got cable.Rotation) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || w.begun != begun {
			t.Errorf("%s: begun %d times, want %d; -want +got\n%s", what, w.begun, begun, diff)
		}
	}
	running := func(request string) cable.Rotation {
		return cable.Rotation{Request: request, Left: 2, Waits: "tunnel 4 is being emptied"}
	}
	got, _ := ask(w, config.CableWireGuard, "")
	expect("nobody asks", 0, cable.Rotation{}, got)
	got, _ = ask(w, config.CableWireGuard, first)
	expect("asked for", 1, running(first), got)
	got, _ = ask(w, config.CableWireGuard, first)
	expect("the same once more", 1, running(first), got)
	w.rotation.Left, w.rotation.Waits = 0, ""
	got, _ = ask(w, config.CableWireGuard, first)
	expect("done", 1, cable.Rotation{Request: first}, got)
	got, _ = ask(w, config.CableWireGuard, second)
	expect("asked for later", 2, running(second), got)
	got, problems := ask(w, config.CableWireGuard, "now")
	expect("no time", 2, cable.Rotation{}, got)
	if want := []string{`annotation pelago.io/rotate-keys of node n1: "now" is no RFC 3339 time such as 2026-01-31T12:00:00Z`}; !cmp.Equal(problems, want) {
		t.Errorf("problems %q, want %q", problems, want)
	}
	got, _ = ask(&cable.VXLAN{}, config.CableVXLAN, first)
	expect("in the clear", 2, cable.Rotation{Request: first, Waits: "the wire vxlan is not encrypted and has no keys"}, got)
	got, problems = ask(&cable.IPsec{}, config.CableLibreswan, first)
	expect("IPsec before its first Ensure", 2, cable.Rotation{}, got)
	if want := []string{"rotate the key of IKE: it has none yet: call Ensure first"}; !cmp.Equal(problems, want) {
		t.Errorf("problems %q, want %q", problems, want)
	}
	w.err = errors.New("the disk is full")
	got, problems = ask(w, config.CableWireGuard, second)
	expect("it cannot", 2, cable.Rotation{}, got)
	if want := []string{"the disk is full"}; !cmp.Equal(problems, want) {
		t.Errorf("problems %q, want %q", problems, want)
	}
}

// The annotation wakes the daemon; the wire's rotation is reported of gateways only, and while it
// runs the wire is inspected often.
func TestRotationIsFollowed(t *testing.T) {
	before := corev1.Node{}
	after := *before.DeepCopy()
	after.Annotations = map[string]string{pelagov1alpha1.AnnotationRotateKeys: "2026-01-31T12:00:00Z"}
	if tables.SameNode(&before, &after) {
		t.Error("a node that is to change its keys is the same as before")
	}
	want := cable.Rotation{Request: "2026-01-31T12:00:00Z", Left: 1}
	for name, gateway := range map[string]bool{"n1": true, "n2": false} {
		objs, host := clusterset.Encrypted(name)
		host.Wire.Rotation = want
		r := tables.Desired(objs, host)
		if got := r.Rotation == want; got != gateway {
			t.Errorf("rotation of %s: %+v", name, r.Rotation)
		}
		d := &Daemon{latest: status.NewSnapshot(objs, r, tables.Reach{}, false)}
		d.settled.Store(true)
		if got := d.awaitsWire(); got != gateway {
			t.Errorf("%s is to be looked at often: %t", name, got)
		}
	}
}
