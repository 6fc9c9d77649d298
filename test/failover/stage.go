package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

const (
	namespace   = "load"
	system      = "pelago-system"
	clientNode  = "g1-n3" // no gateways
	serverNode  = "g2-n3"
	gatewayName = "submariner.io/gateway"
)

// gateways take turns as the victim of a fault: one of the client's cluster, one of the server's.
var gateways = []string{"g1-n1", "g2-n1", "g1-n2", "g2-n2"}

// stage is two joined clusters with a client pod in g1 and echo servers in g2, none of them on a
// gateway.
type stage struct {
	walk.Walk
	client  walk.Pod
	targets []string          // of the load: address and port
	names   map[uint32]string // of nodes, by the keys of the map `paths`
	busy    []*exec.Cmd       // keep the processors busy
	raw     string            // directory for what the load printed; "": none
	load    load
}

// workload is two services: sink, and direct, which is headless. Pods request processor time, else
// Kubernetes gives them next to none on a busy machine, and it would be the load itself that stands
// still.
const workload = `
apiVersion: v1
kind: Namespace
metadata: {name: load}
---
apiVersion: v1
kind: Service
metadata: {name: sink, namespace: load}
spec:
  selector: {app: sink}
  ports: [{name: udp, port: 7, protocol: UDP}, {name: tcp, port: 7}]
---
apiVersion: v1
kind: Service
metadata: {name: direct, namespace: load}
spec:
  clusterIP: None
  selector: {app: direct}
  ports: [{name: udp, port: 7, protocol: UDP}, {name: tcp, port: 7}]
`

// server takes name, app and node.
const server = `---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: load, labels: {app: %s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [whereami, echo]
    securityContext: {capabilities: {add: [NET_ADMIN]}}
    resources: {requests: {cpu: 200m}}
    readinessProbe: {tcpSocket: {port: 7}, periodSeconds: 1}
`

const clientPod = `
apiVersion: v1
kind: Namespace
metadata: {name: load}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: load}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [sleep, infinity]
    securityContext: {capabilities: {add: [NET_ADMIN]}}
    resources: {requests: {cpu: "1"}}
`

// newStage brings the clusters up, installs the product and makes the workload. What a killed run
// left is taken down first, unless it is to be kept.
func newStage(ctx context.Context, o options) (*stage, error) {
	s := &stage{raw: o.raw, load: o.load, client: walk.Pod{Cluster: "g1", Namespace: namespace, Name: "client"}}
	var err error
	if s.Bin, err = filepath.Abs(o.bin); err != nil {
		return nil, fmt.Errorf("find %s: %w", o.bin, err)
	}
	if s.Images, err = filepath.Abs(o.images); err != nil {
		return nil, fmt.Errorf("find %s: %w", o.images, err)
	}
	for _, file := range []string{filepath.Join(s.Bin, "pelago"), filepath.Join(s.Images, "pelago.tar"), filepath.Join(s.Images, "whereami.tar")} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%w: make it with `make images`", err)
		}
	}
	if !o.keep {
		if err := takeDown(o.lab); err != nil {
			return nil, err
		}
	}
	s.Gateways, s.Out = 2, io.Discard
	s.Wire, s.Datapath = o.wire, o.datapath
	s.Lab, err = lab.Up(ctx, lab.Options{
		Name: o.lab, Clusters: 2, Nodes: 3, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(walk.PodCIDR)},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix(walk.ServiceCIDR)},
		Progress:     func(line string) { slog.Info("lab", "step", line) },
	})
	if err != nil {
		return nil, err
	}
	if !o.keep || !s.joined(ctx) {
		if err := s.install(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.nameNodes(ctx); err != nil {
		return nil, err
	}
	if err := s.makeWorkload(ctx); err != nil {
		return nil, fmt.Errorf("make the workload: %w", err)
	}
	if err := s.awaitHealthy(ctx); err != nil {
		return nil, err
	}
	slog.Info("ready", "targets", s.targets)
	return s, nil
}

// install installs the product in a directory of its own, for broker-info.subm, which is not needed
// any more afterwards.
func (s *stage) install(ctx context.Context) (err error) {
	slog.Info("installing")
	if s.Dir, err = os.MkdirTemp("", "pelago-failover-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(s.Dir))
		s.Dir = ""
	}()
	return s.Install(ctx)
}

func takeDown(name string) error {
	// Also after an interrupt.
	if err := lab.Down(context.Background(), name, func(string) {}); err != nil && !errors.Is(err, lab.ErrNotFound) {
		return fmt.Errorf("take the lab down: %w", err)
	}
	return nil
}

// joined reports whether both clusters are installed.
func (s *stage) joined(ctx context.Context) bool {
	for _, cluster := range []string{"g1", "g2"} {
		if _, err := s.kubectl(ctx, cluster, "-n", system, "get", "daemonset/pelago-node"); err != nil {
			return false
		}
	}
	return true
}

func (s *stage) kubectl(ctx context.Context, cluster string, args ...string) (string, error) {
	out, err := s.Quietly(ctx, s.Lab.Kubectl(), append([]string{"--context", cluster}, args...)...)
	return strings.TrimSpace(out), err
}

func (s *stage) makeWorkload(ctx context.Context) error {
	servers := workload
	for name, app := range map[string]string{"sink-0": "sink", "sink-1": "sink", "direct-0": "direct"} {
		servers += fmt.Sprintf(server, name, app, serverNode)
	}
	if err := s.Apply(ctx, "g2", servers); err != nil {
		return err
	}
	if err := s.Apply(ctx, "g1", fmt.Sprintf(clientPod, clientNode)); err != nil {
		return err
	}
	for _, cluster := range []string{"g1", "g2"} {
		if _, err := s.kubectl(ctx, cluster, "-n", namespace, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s"); err != nil {
			return err
		}
	}
	addresses := map[string]netip.Addr{}
	for _, service := range []string{"sink", "direct"} {
		if _, err := s.Pelago(ctx, "export", "service", "--context", "g2", "--namespace", namespace, service); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "g2", "-n", namespace, "wait", "serviceexport/"+service, "--for=condition=Ready", "--timeout=20s"); err != nil {
			return err
		}
		found, err := s.Resolve(ctx, s.client, "g2."+service+"."+namespace+".svc.clusterset.local", 1, walk.GlobalCIDR2)
		if err != nil {
			return err
		}
		addresses[service] = found[0]
	}
	s.targets = nil
	for _, service := range []string{"sink", "sink", "direct"} {
		s.targets = append(s.targets, netip.AddrPortFrom(addresses[service], 7).String())
	}
	return nil
}

// addBackend gives the service one more backend, on a node of g2.
func (s *stage) addBackend(ctx context.Context, node string) error {
	if err := s.Apply(ctx, "g2", fmt.Sprintf(server, "late", "sink", node)); err != nil {
		return err
	}
	_, err := s.kubectl(ctx, "g2", "-n", namespace, "wait", "--for=condition=Ready", "pod/late", "--timeout=30s")
	return err
}

func (s *stage) removeBackend(ctx context.Context) error {
	_, err := s.kubectl(ctx, "g2", "-n", namespace, "delete", "pod", "late", "--ignore-not-found", "--wait")
	return err
}

// recover puts everything right after a run that failed halfway.
func (s *stage) recover(ctx context.Context) error {
	errs := []error{s.Lab.HealPaths(), withControl(ctx, s, ""), s.removeBackend(ctx), s.continueKubelet(ctx)}
	for _, node := range gateways {
		errs = append(errs, s.Lab.Heal(ctx, node), s.uncordon(ctx, node), s.label(ctx, node, true))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("put the clusters right: %w", err)
	}
	return s.awaitHealthy(ctx)
}

// sleep waits unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
