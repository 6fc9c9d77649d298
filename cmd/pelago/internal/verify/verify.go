// Package verify accepts a clusterset: it runs pods of the product's image in each member, exports
// services, and has the pods of each cluster use those of all others. The verbs verify and
// verify-pod call it. What it makes is in one namespace of each member, which it removes.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/rollout"
)

const (
	// probeWithin is how long a probe is repeated until it succeeds.
	probeWithin = 40 * time.Second
	// transferBytes is what is read and written by each pair of clusters.
	transferBytes = 20 << 20
	// lossAllowed is how many of the datagrams of a pair may be lost, in percent.
	lossAllowed = 5
	// podsWithin, exportsWithin and drainWithin bound the steps that wait for the clusters.
	podsWithin    = 90 * time.Second
	exportsWithin = time.Minute
	drainWithin   = time.Minute
	// CleanupWithin bounds the removal of what a run has made.
	CleanupWithin = 90 * time.Second

	pollInterval = 500 * time.Millisecond
)

// Cluster is a member that takes part.
type Cluster struct {
	view.Member
	Config config.Config
	// Image and Pull are those of the pods; by Open of pelago-node in the cluster.
	Image string
	Pull  corev1.PullPolicy
}

// ID is the id of the cluster in the clusterset.
func (c *Cluster) ID() string { return c.Config.ClusterID }

func (c *Cluster) hasClusterSetIPs() bool { return len(c.Config.ClusterSetIPCIDRs) > 0 }

// ErrNoMember: the cluster takes no part in the network of a clusterset.
var ErrNoMember = errors.New("it takes no part in the network of a clusterset: join it with `pelago join`")

// Open reads the configuration and the image of a member; image overrides that of pelago-node.
func Open(ctx context.Context, m view.Member, image string) (*Cluster, error) {
	c := &Cluster{Member: m, Image: image}
	var err error
	if c.Config, err = member.Former(ctx, m.Client); err != nil {
		return nil, err
	}
	if c.Config.ClusterID == "" || c.Config.WorkloadsOnly {
		return nil, ErrNoMember
	}
	node, err := m.Typed.AppsV1().DaemonSets(manifests.SystemNamespace).Get(ctx, manifests.NodeDaemonSet, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get DaemonSet %s of cluster %s: %w", manifests.NodeDaemonSet, c.ID(), err)
	}
	daemon := node.Spec.Template.Spec.Containers[0]
	c.Image, c.Pull = cmp.Or(image, daemon.Image), daemon.ImagePullPolicy
	return c, nil
}

// Verdict is what a step came to.
type Verdict string

// Verdicts.
const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Skipped Verdict = "skipped"
)

// Outcome is a step between two clusters, or of one.
type Outcome struct {
	Step    string  `json:"step"`
	From    string  `json:"from"`
	To      string  `json:"to,omitempty"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail,omitempty"`
}

// Exec has the client pod of a cluster try probes; Hold ends with the input.
type Exec func(ctx context.Context, c *Cluster, probes []Probe, input io.Reader) ([]Reply, error)

// Acceptance is one run.
type Acceptance struct {
	Clusters []*Cluster
	// Failover takes gateways out of service by turns.
	Failover bool
	Exec     Exec
	Progress manifests.Progress

	outcomes []Outcome
}

// Validate refuses clusters that cannot be verified together.
func (a *Acceptance) Validate() error {
	if len(a.Clusters) < 2 {
		return fmt.Errorf("%d members of a network are among the contexts: verify needs two, name them with --contexts", len(a.Clusters))
	}
	ids := map[string]bool{}
	for _, c := range a.Clusters {
		if ids[c.ID()] {
			return fmt.Errorf("two contexts lead to cluster %s: name one of them with --contexts", c.ID())
		}
		ids[c.ID()] = true
		if first := a.Clusters[0]; c.Config.HubID != first.Config.HubID {
			return fmt.Errorf("clusters %s and %s belong to different clustersets: name those of one with --contexts", first.ID(), c.ID())
		}
	}
	return nil
}

// Run makes the pods and services, and tries everything. A step that fails does not end the run,
// except that nothing can be tried without pods. The caller calls Cleanup in any case.
func (a *Acceptance) Run(ctx context.Context) ([]Outcome, error) {
	if err := a.prepare(ctx); err != nil {
		return nil, err
	}
	a.step(ctx, "exports", exportsWithin, (*Cluster).awaitExports)
	a.matrix(ctx, "service", false, func(from, to *Cluster) []Probe {
		return []Probe{{Kind: Request, Address: at(webName(to.ID()) + domain), Cluster: to.ID()}}
	}, sources)
	a.matrix(ctx, "own service", true, func(from, to *Cluster) []Probe {
		return []Probe{{Kind: Request, Address: at(webName(to.ID()) + domain), Cluster: to.ID()}}
	}, nil)
	a.matrix(ctx, "headless", false, func(from, to *Cluster) (out []Probe) {
		for i := range servers {
			out = append(out, Probe{Kind: Request, Address: at(serverName(i) + "." + to.ID() + "." + headlessName(to.ID()) + domain),
				Cluster: to.ID(), Pod: serverName(i)})
		}
		return out
	}, nil)
	a.matrix(ctx, "udp", false, func(from, to *Cluster) []Probe {
		return []Probe{{Kind: Datagram, Address: at(webName(to.ID()) + domain), Cluster: to.ID()}}
	}, losses)
	a.matrix(ctx, "transfer", false, func(from, to *Cluster) []Probe {
		return []Probe{{Kind: Transfer, Address: at(webName(to.ID()) + domain), Bytes: transferBytes}}
	}, rates)
	for _, own := range []bool{false, true} {
		name := map[bool]string{false: "ClusterSetIP", true: "own ClusterSetIP"}[own]
		a.matrix(ctx, name, own, func(from, to *Cluster) []Probe {
			if !from.hasClusterSetIPs() || !to.hasClusterSetIPs() {
				return nil
			}
			probes := []Probe{{Kind: Request, Address: at(vipName(to.ID()) + domain), Cluster: to.ID()}}
			if own { // exported by all: the own cluster comes first
				probes = append(probes, Probe{Kind: Request, Address: at(vipAll + domain), Cluster: to.ID()})
			}
			return probes
		}, inRange)
	}
	if a.Failover {
		a.failover(ctx)
	}
	return a.outcomes, ctx.Err()
}

// prepare removes what a run has left that ended half-way, and makes pods, services and exports.
func (a *Acceptance) prepare(ctx context.Context) error {
	if err := Cleanup(ctx, a.Clusters, a.Progress); err != nil {
		return err
	}
	return a.each(func(c *Cluster) error { return c.create(ctx) })
}

func at(host string) string { return fmt.Sprintf("%s:%d", host, port) }

func (a *Acceptance) add(o Outcome) {
	a.outcomes = append(a.outcomes, o)
	where := o.From
	if o.To != "" {
		where += " → " + o.To
	}
	a.Progress("%s: %s: %s %s", o.Step, where, o.Verdict, o.Detail)
}

// each runs f for all clusters at once.
func (a *Acceptance) each(f func(*Cluster) error) error { return each(a.Clusters, f) }

func each(clusters []*Cluster, f func(*Cluster) error) error {
	errs := make([]error, len(clusters))
	var group errgroup.Group
	for i, c := range clusters {
		group.Go(func() error {
			if err := f(c); err != nil {
				errs[i] = fmt.Errorf("cluster %s: %w", c.ID(), err)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil
	return errors.Join(errs...)
}

// step records what f came to in each cluster.
func (a *Acceptance) step(ctx context.Context, name string, within time.Duration, f func(*Cluster, context.Context) error) {
	errs := make([]error, len(a.Clusters))
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range a.Clusters {
		wg.Go(func() { errs[i] = f(c, limited) })
	}
	wg.Wait()
	for i, c := range a.Clusters {
		a.add(ended(ctx, outcome(name, c.ID(), "", "", errs[i])))
	}
}

// ended is the outcome of a step that ctx may have ended: that is no failure of the clusterset.
func ended(ctx context.Context, o Outcome) Outcome {
	if o.Verdict == Failed && ctx.Err() != nil {
		o.Verdict, o.Detail = Skipped, "ended before its result: "+ctx.Err().Error()
	}
	return o
}

func outcome(step, from, to, detail string, err error) Outcome {
	o := Outcome{Step: step, From: from, To: to, Verdict: Passed, Detail: detail}
	if err != nil {
		o.Verdict, o.Detail = Failed, err.Error()
		if detail != "" {
			o.Detail += "; " + detail
		}
	}
	return o
}

// judge derives the detail of a pair from its replies, none of which has an error.
type judge func(from, to *Cluster, replies []Reply) (detail string, err error)

// matrix has the client of each cluster try the probes for each other cluster, or for its own. No
// probes: the step is skipped.
func (a *Acceptance) matrix(ctx context.Context, name string, own bool, probes func(from, to *Cluster) []Probe, judged judge) {
	if ctx.Err() != nil {
		return
	}
	type pair struct {
		to     *Cluster
		probes int
	}
	all := make([][]Outcome, len(a.Clusters))
	var wg sync.WaitGroup
	for i, from := range a.Clusters {
		var pairs []pair
		var batch []Probe
		for _, to := range a.Clusters {
			if (from == to) != own {
				continue
			}
			some := probes(from, to)
			for j := range some {
				some[j].Within = probeWithin
			}
			pairs, batch = append(pairs, pair{to, len(some)}), append(batch, some...)
		}
		wg.Go(func() {
			var replies []Reply
			var err error
			if len(batch) > 0 {
				replies, err = a.Exec(ctx, from, batch, strings.NewReader(""))
			}
			for _, p := range pairs {
				o := Outcome{Step: name, From: from.ID(), To: p.to.ID(), Verdict: Skipped, Detail: "the clusterset has no range of ClusterSetIPs"}
				if p.probes > 0 && err != nil {
					o = outcome(name, from.ID(), p.to.ID(), "", err)
				} else if p.probes > 0 {
					o = evaluate(name, from, p.to, replies[:p.probes], judged)
					replies = replies[p.probes:]
				}
				all[i] = append(all[i], o)
			}
		})
	}
	wg.Wait()
	for _, outcomes := range all {
		for _, o := range outcomes {
			a.add(ended(ctx, o))
		}
	}
}

func evaluate(name string, from, to *Cluster, replies []Reply, judged judge) Outcome {
	var errs []error
	for _, r := range replies {
		if r.Err != "" {
			errs = append(errs, errors.New(r.Err))
		}
	}
	detail := ""
	if err := errors.Join(errs...); err != nil || judged == nil {
		return outcome(name, from.ID(), to.ID(), detail, err)
	}
	detail, err := judged(from, to, replies)
	return outcome(name, from.ID(), to.ID(), detail, err)
}

// contains reports whether an address with a port is in one of the ranges.
func contains(ranges []netip.Prefix, address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a.Addr().Unmap()) })
}

// sources: with globalnet client and server have addresses of their clusters' GlobalCIDRs; without
// it the server sees the pod's own.
func sources(from, to *Cluster, replies []Reply) (string, error) {
	r := replies[0]
	detail := fmt.Sprintf("%s is seen as %s", r.Remote, r.Answer.Source)
	switch {
	case len(from.Config.GlobalCIDRs) > 0 && !contains(from.Config.GlobalCIDRs, r.Answer.Source):
		return detail, fmt.Errorf("the server sees source %s, which is not of the GlobalCIDR of cluster %s", r.Answer.Source, from.ID())
	case len(to.Config.GlobalCIDRs) > 0 && !contains(to.Config.GlobalCIDRs, r.Remote):
		return detail, fmt.Errorf("the name resolves to %s, which is not of the GlobalCIDR of cluster %s", r.Remote, to.ID())
	case len(from.Config.GlobalCIDRs) == 0 && !contains(from.Config.PodCIDRs, r.Answer.Source):
		return detail, fmt.Errorf("the server sees source %s, which is not of the pod ranges of cluster %s", r.Answer.Source, from.ID())
	}
	return "server " + r.Remote + ", source " + r.Answer.Source, nil
}

func losses(_, _ *Cluster, replies []Reply) (string, error) {
	r := replies[0]
	detail := fmt.Sprintf("%d of %d datagrams lost", r.Lost, r.Sent)
	if r.Lost*100 > r.Sent*lossAllowed {
		return "", errors.New(detail)
	}
	return detail, nil
}

func rates(_, _ *Cluster, replies []Reply) (string, error) {
	return fmt.Sprintf("%d MiB each way, down %.0f Mbit/s, up %.0f Mbit/s", transferBytes>>20, replies[0].Down/1e6, replies[0].Up/1e6), nil
}

// inRange: names of services with a ClusterSetIP resolve to it.
func inRange(_, to *Cluster, replies []Reply) (string, error) {
	for _, r := range replies {
		if all := to.Config.ClusterSetIPRange; all.IsValid() && !contains([]netip.Prefix{all}, r.Remote) {
			return "", fmt.Errorf("the name resolves to %s, which is no ClusterSetIP of %s", r.Remote, all)
		}
	}
	return "server " + replies[0].Remote, nil
}

// create makes namespace, services, exports and pods, and waits until the pods are ready.
func (c *Cluster) create(ctx context.Context) error {
	if err := c.Client.Create(ctx, namespaceObject()); err != nil {
		return fmt.Errorf("create Namespace %s: %w", Namespace, err)
	}
	for _, s := range c.services() {
		if err := c.Client.Create(ctx, s); err != nil {
			return fmt.Errorf("create Service %s: %w", s.Name, err)
		}
		annotations := map[string]*string{submarinerv1.AnnotationUseClusterSetIP: ptr.To(fmt.Sprint(slices.Contains([]string{vipName(c.ID()), vipAll}, s.Name)))}
		if err := broker.Export(ctx, c.Client, key(s.Name), annotations, io.Discard); err != nil {
			return err
		}
	}
	for _, p := range c.pods() {
		if err := c.createPod(ctx, p); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, podsWithin)
	defer cancel()
	why := ""
	err := wait.PollUntilContextCancel(limited, pollInterval, true, func(context.Context) (bool, error) {
		var pods corev1.PodList
		if err := c.Client.List(ctx, &pods, client.InNamespace(Namespace)); err != nil {
			return false, fmt.Errorf("list pods: %w", err)
		}
		why = ""
		for _, p := range pods.Items {
			if reason := rollout.PodReason(p); reason != "" {
				why += fmt.Sprintf("; pod %s on node %q: %s", p.Name, p.Spec.NodeName, reason)
			}
		}
		return why == "", nil
	})
	if err != nil {
		return fmt.Errorf("wait for the pods of image %s: %w%s", c.Image, err, why)
	}
	return nil
}

// createPod repeats until the namespace has its ServiceAccount.
func (c *Cluster) createPod(ctx context.Context, p *corev1.Pod) error {
	limited, cancel := context.WithTimeout(ctx, exportsWithin)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(limited, pollInterval, true, func(context.Context) (bool, error) {
		last = c.Client.Create(ctx, p.DeepCopy())
		if apierrors.IsForbidden(last) && strings.Contains(last.Error(), "serviceaccount") {
			return false, nil
		}
		return true, last
	})
	if err != nil {
		return fmt.Errorf("create Pod %s: %w", p.Name, errors.Join(err, last))
	}
	return nil
}

// awaitExports waits until the hub has all exports of the cluster.
func (c *Cluster) awaitExports(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		last = nil
		for _, s := range c.services() {
			export, err := broker.ServiceExport(c.Client, key(s.Name))
			if err == nil {
				err = c.Client.Get(ctx, key(s.Name), export)
			}
			if err != nil {
				last = err
				return false, nil
			}
			if err := exported(export); err != nil {
				last = fmt.Errorf("ServiceExport %s: %w", s.Name, err)
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		if last != nil {
			return last
		}
		return err
	}
	return nil
}

func exported(u *unstructured.Unstructured) error {
	var e mcs.ServiceExport
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &e); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	is := meta.FindStatusCondition(e.Status.Conditions, string(mcs.ServiceExportConditionReady))
	switch {
	case is == nil:
		return errors.New("no condition Ready yet: does pelago-agent run?")
	case is.Status != metav1.ConditionTrue:
		return fmt.Errorf("%s: %s", is.Reason, is.Message)
	}
	return nil
}

// Cleanup removes what a run has made, also one that ended half-way: the namespace, and the drains
// of gateways. A namespace of that name which no run has made is an error.
func Cleanup(ctx context.Context, clusters []*Cluster, progress manifests.Progress) error {
	return each(clusters, func(c *Cluster) error {
		return errors.Join(c.removeNamespace(ctx, progress), c.undrain(ctx, progress))
	})
}

func (c *Cluster) removeNamespace(ctx context.Context, progress manifests.Progress) error {
	ns := &corev1.Namespace{}
	err := c.Client.Get(ctx, client.ObjectKey{Name: Namespace}, ns)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Namespace %s: %w", Namespace, err)
	}
	if ns.Labels[Label] != "true" {
		return fmt.Errorf("namespace %s exists and has no label %s=true: it is not of a run of verify, rename or delete it", Namespace, Label)
	}
	of := "of cluster " + c.ID()
	if c.ID() == "" {
		of = "of the cluster"
	}
	progress("Removing namespace %s %s", Namespace, of)
	if err := client.IgnoreNotFound(c.Client.Delete(ctx, ns)); err != nil {
		return fmt.Errorf("delete Namespace %s: %w", Namespace, err)
	}
	limited, cancel := context.WithTimeout(ctx, CleanupWithin)
	defer cancel()
	err = wait.PollUntilContextCancel(limited, pollInterval, true, func(context.Context) (bool, error) {
		err := c.Client.Get(ctx, client.ObjectKey{Name: Namespace}, ns)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait until Namespace %s is removed: %w: see its conditions (kubectl get namespace %s -o yaml)", Namespace, err, Namespace)
	}
	return nil
}

func (c *Cluster) undrain(ctx context.Context, progress manifests.Progress) error {
	nodes, err := c.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: submarinerv1.LabelGateway + "=true"})
	if err != nil {
		return fmt.Errorf("list gateways: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Annotations[annotationDrained] != "true" {
			continue
		}
		err := (install.Gateways{Member: c.Member}).Undrain(ctx, n.Name, drainWithin, progress)
		if err == nil {
			err = install.PatchNode(ctx, c.Typed, n.Name, "annotations", annotationDrained, "null")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// failover takes one gateway of each cluster after the other out of service, while the clients of
// all clusters hold connections to the others.
func (a *Acceptance) failover(ctx context.Context) {
	for _, c := range a.Clusters {
		if ctx.Err() != nil {
			return
		}
		name, err := c.spareGateway(ctx)
		if err == nil && name == "" {
			a.add(Outcome{Step: "failover", From: c.ID(), Verdict: Skipped, Detail: "the cluster has no second gateway in service"})
			continue
		}
		detail := ""
		if err == nil {
			detail, err = a.underTraffic(ctx, func() error { return a.cycle(ctx, c, name) })
			detail = "gateway " + name + ": " + detail
		}
		a.add(ended(ctx, outcome("failover", c.ID(), "", detail, err)))
	}
}

// spareGateway is a gateway in service beside which there is another; empty without one.
func (c *Cluster) spareGateway(ctx context.Context) (string, error) {
	nodes, err := install.Gateways{Member: c.Member}.Nodes(ctx)
	if err != nil {
		return "", err
	}
	nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool {
		_, drained := topology.Drained(n)
		return drained
	})
	if len(nodes) < 2 {
		return "", nil
	}
	return nodes[0].Name, nil
}

// cycle drains a gateway and returns it to service.
func (a *Acceptance) cycle(ctx context.Context, c *Cluster, gateway string) error {
	g := install.Gateways{Member: c.Member}
	if err := install.PatchNode(ctx, c.Typed, gateway, "annotations", annotationDrained, `"true"`); err != nil {
		return err
	}
	if err := g.Drain(ctx, gateway, false, drainWithin, a.Progress); err != nil {
		return err
	}
	return c.undrain(ctx, a.Progress)
}

// underTraffic runs f while each client holds connections to all other clusters. Connections that
// break, or were not opened, are an error.
func (a *Acceptance) underTraffic(ctx context.Context, f func() error) (string, error) {
	replies, errs := make([][]Reply, len(a.Clusters)), make([]error, len(a.Clusters))
	var closers []io.Closer
	var wg sync.WaitGroup
	for i, from := range a.Clusters {
		var probes []Probe
		for _, to := range a.Clusters {
			if to != from {
				probes = append(probes, Probe{Kind: Hold, Address: at(webName(to.ID()) + domain)})
			}
		}
		r, w := io.Pipe()
		closers = append(closers, w)
		wg.Go(func() { replies[i], errs[i] = a.Exec(ctx, from, probes, r) })
	}
	err := f()
	for _, c := range closers {
		_ = c.Close() // a pipe's Close returns nil
	}
	wg.Wait()
	opened, requests, broken, want := 0, 0, 0, 0
	for _, some := range replies {
		for _, r := range some {
			opened, requests, broken, want = opened+r.Opened, requests+r.Requests, broken+r.Broken, want+holdConnections
			if r.Err != "" {
				errs = append(errs, errors.New(r.Err))
			}
		}
	}
	detail := fmt.Sprintf("%d connections, %d requests, %d broken", opened, requests, broken)
	if opened < want {
		errs = append(errs, fmt.Errorf("%d of %d connections were opened", opened, want))
	}
	return detail, errors.Join(append(errs, err)...)
}

// InPod is the Exec of a real cluster: it runs `pelago verify-pod run` in the client pod.
func InPod(ctx context.Context, c *Cluster, probes []Probe, input io.Reader) ([]Reply, error) {
	text, err := json.Marshal(probes)
	if err != nil {
		return nil, fmt.Errorf("encode the probes: %w", err)
	}
	url := c.Typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(Namespace).Name(appClient).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"pelago", "verify-pod", "run"}, Stdin: true, Stdout: true, Stderr: true},
			scheme.ParameterCodec).URL()
	var stdout, stderr bytes.Buffer
	err = c.Stream(ctx, url, remotecommand.StreamOptions{Stdin: io.MultiReader(bytes.NewReader(append(text, '\n')), input), Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return nil, fmt.Errorf("run the probes in the client pod of cluster %s: %w: %s", c.ID(), err, strings.TrimSpace(stderr.String()))
	}
	var replies []Reply
	if err := json.Unmarshal(stdout.Bytes(), &replies); err != nil || len(replies) != len(probes) {
		return nil, fmt.Errorf("read the replies of the client pod of cluster %s: %q: %w (is its image of another version?)", c.ID(), stdout.String(), err)
	}
	return replies, nil
}

// InClient is what the client pod does with what InPod sends.
func InClient(ctx context.Context, input io.Reader, out io.Writer) error {
	d := json.NewDecoder(input)
	var probes []Probe
	if err := d.Decode(&probes); err != nil {
		return fmt.Errorf("read the probes: %w", err)
	}
	if err := json.NewEncoder(out).Encode(Run(ctx, probes, input)); err != nil {
		return fmt.Errorf("print the replies: %w", err)
	}
	return nil
}
