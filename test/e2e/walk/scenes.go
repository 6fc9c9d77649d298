package walk

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const domain = "." + Namespace + ".svc.clusterset.local"

// FromFirst: a pod of g1 resolves the service of g2 and reaches all of its pods.
func (w *Walk) FromFirst(ctx context.Context, client Pod) error {
	if _, err := w.Resolve(ctx, client, ServiceName+domain, 1, w.ShownServices("g2")); err != nil {
		return err
	}
	return w.ReachesAll(ctx, client, ServiceName+domain, 3)
}

// Headless: the name of the headless service has one address per pod, and each pod has a name of
// its own.
func (w *Walk) Headless(ctx context.Context, client Pod) error {
	if _, err := w.Resolve(ctx, client, HeadlessName+domain, 3, w.ShownPods("g2")); err != nil {
		return err
	}
	pod := "whereami-0"
	name := pod + ".g2." + HeadlessName + domain
	if _, err := w.Resolve(ctx, client, name, 1, w.ShownPods("g2")); err != nil {
		return err
	}
	return w.ReachesPod(ctx, client, name, pod)
}

// Reverse: g1 gets the workload too and exports it, and a pod of g2 reaches g1's pods under g1's
// name; the plain name leads to g2's own pods.
func (w *Walk) Reverse(ctx context.Context) (Pod, error) {
	client := Pod{}
	if err := w.Workload(ctx, "g1"); err != nil {
		return client, err
	}
	if err := w.Export(ctx, "g1", ServiceName, HeadlessName); err != nil {
		return client, err
	}
	client, err := w.Client(ctx, "g2")
	if err != nil {
		return client, err
	}
	if _, err := w.Resolve(ctx, client, "g1."+ServiceName+domain, 1, w.ShownServices("g1")); err != nil {
		return client, err
	}
	if err := w.ReachesAll(ctx, client, "g1."+ServiceName+domain, 3); err != nil {
		return client, err
	}
	_, err = w.Resolve(ctx, client, ServiceName+domain, 1, w.Services("g2"))
	return client, err
}

// Translations shows the flows of the client's node.
func (w *Walk) Translations(ctx context.Context) error {
	out, err := w.Pelago(ctx, "nat", "list", "--context", "g1", "--protocol", "tcp", "--role", "client")
	if err != nil {
		return err
	}
	service := netip.MustParsePrefix(w.ShownServices("g2"))
	if !slices.ContainsFunc(strings.Fields(out), func(word string) bool {
		a, err := netip.ParseAddrPort(word)
		return err == nil && service.Contains(a.Addr())
	}) {
		return fmt.Errorf("no flow towards g2 in %q", out)
	}
	_, err = w.Pelago(ctx, "show", "gateways", "--contexts", "g1,g2")
	return err
}
