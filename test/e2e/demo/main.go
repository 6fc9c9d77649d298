// Command demo shows what Pelago does, on two real clusters that it brings up itself: `make demo`.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the product's programs")
	images := flag.String("images", "out/images", "directory of the image archives")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *bin, *images); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n\nThe clusters are still there to look at (bin/pelago-lab status); take them down with `make lab-down`.\n", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, bin, images string) error {
	dir, err := filepath.Abs("out/demo")
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	w := &walk.Walk{Dir: dir, Out: os.Stdout, Propagation: true, Gateways: 2}
	if w.Bin, err = filepath.Abs(bin); err != nil {
		return fmt.Errorf("find %s: %w", bin, err)
	}
	if w.Images, err = filepath.Abs(images); err != nil {
		return fmt.Errorf("find %s: %w", images, err)
	}
	begin := time.Now()
	var g1, g2 walk.Pod
	steps := []struct {
		title string
		run   func() error
	}{
		{"Two real clusters with the same pod and service CIDRs, and a hub", func() error { return up(ctx, w) }},
		{"Install Pelago: broker and propagation at the hub, then both clusters join it", func() error { return w.Install(ctx) }},
		{"The clusters see each other", func() error { return w.Connected(ctx) }},
		{"A workload in g2, and a client in g1 on a node that is no gateway", func() (err error) {
			if err := w.Workload(ctx, "g2"); err != nil {
				return err
			}
			g1, err = w.Client(ctx, "g1")
			return err
		}},
		{"g2 exports its services", func() error { return w.Export(ctx, "g2", walk.ServiceName, walk.HeadlessName) }},
		{"g1 reaches the service by its clusterset name", func() error { return w.FromFirst(ctx, g1) }},
		{"g1 reaches each pod of the headless service by its own name", func() error { return w.Headless(ctx, g1) }},
		{"And the other way: g1 exports, g2 asks", func() (err error) {
			g2, err = w.Reverse(ctx)
			return err
		}},
		{"What the nodes translate", func() error { return w.Translations(ctx) }},
		{"A gateway dies, and no request fails", func() error { return w.GatewayDies(ctx, g1, "g1-n1") }},
		{"A policy spreads a Deployment over both clusters", func() error { return w.Spread(ctx) }},
		{"An override gives one of them another image", func() error { return w.Override(ctx) }},
	}
	for _, s := range steps {
		if err := w.Step(s.title, s.run); err != nil {
			return err
		}
	}
	fmt.Printf(summary, time.Since(begin).Seconds(), w.Lab.Kubeconfig(), w.Lab.Kubectl(), g1.Name, g2.Name)
	return nil
}

func up(ctx context.Context, w *walk.Walk) error {
	l, err := lab.Up(ctx, lab.Options{
		Clusters: 2, Nodes: 3, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(walk.PodCIDR)},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix(walk.ServiceCIDR)},
		Progress:     func(line string) { fmt.Println(" ", line) },
	})
	if err != nil {
		return err
	}
	w.Lab = l
	return nil
}

const summary = `
== Shown, in %.0f s
   Two clusters with the same pod CIDR 10.7.0.0/16 and service CIDR 10.77.0.0/16 reach each other's exported services by
   name. Addresses were translated by eBPF on the nodes where the pods run; the gateways only switched packets, so one could
   die. A policy at the hub put one replica into each cluster, and its status came back.

   Look further:
     export KUBECONFIG=%s      # contexts g1, g2, hub
     %s --context g1 -n sample get serviceimport,endpointslice
     bin/pelago show all --contexts g1,g2
     bin/pelago nat list --context g1             # who is translated to what
     bin/pelago nat stats --context g2            # what became of packets
     bin/pelago-lab exec g1-n2 -- bpftool map dump pinned /sys/fs/bpf/pelago/flows
     kubectl --context hub get resourcebinding,work -A
     bin/pelago why deployment nginx --context hub
     kubectl --context g1 -n sample exec %s -- curl -s whereami-cs.sample.svc.clusterset.local
     kubectl --context g2 -n sample exec %s -- curl -s g1.whereami-cs.sample.svc.clusterset.local
   Take it down:
     make lab-down
`
