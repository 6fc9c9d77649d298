package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// startLimit bounds how long a started lab may take to become ready.
const startLimit = 3 * time.Minute

// Up brings up the lab that o describes and returns when all API servers, nodes
// and the clusters' DNS are ready. On a lab of that name which exists it makes
// what is missing; options other than those it was made with are an error.
// What was made stays when Up fails, for a look at the logs; Down removes it.
func Up(ctx context.Context, o Options) (*Lab, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := requireRoot(); err != nil {
		return nil, err
	}
	network, err := networkOf(o.CNI)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(CheckPrerequisites(), network.checkPackages()); err != nil {
		return nil, err
	}
	built, err := buildAssets(ctx, network, o.Progress)
	if err != nil {
		return nil, err
	}
	unlock, err := lockState(ctx, o.Name, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	l, err := prepare(o, built)
	if err != nil {
		// Nothing was made yet: do not leave an empty directory behind.
		_ = os.Remove(filepath.Join(stateRoot, o.Name)) // not there, or not empty: not ours to remove
		_ = os.Remove(stateRoot)                        // likewise
		return nil, err
	}
	if err := raiseMachineLimits(); err != nil {
		// A small lab comes up without it.
		l.report("warning: %v", err)
	}
	return l, l.up(ctx)
}

// prepare reads or makes the lab's record.
func prepare(o Options, built assets) (*Lab, error) {
	l := &Lab{dir: filepath.Join(stateRoot, o.Name), progress: o.Progress}
	r, err := readRecord(o.Name)
	switch {
	case errors.Is(err, ErrNotFound):
		used, err := hostPrefixes("")
		if err != nil {
			return nil, err
		}
		if o.Underlay, err = chooseUnderlay(o.Underlay, used); err != nil {
			return nil, err
		}
		l.record = record{ID: rand.Text(), Options: o}
	case err != nil:
		return nil, err
	default:
		if err := sameOptions(r.Options, o); err != nil {
			return nil, err
		}
		l.record = r
	}
	if l.record.Plan, err = newPlan(l.record.Options); err != nil {
		return nil, err
	}
	l.record.Kubernetes, l.record.Containerd = built.kubernetes, built.containerd
	l.record.NodeInit, l.record.Images, l.record.Network = built.nodeInit, built.images, built.network
	if err := writeJSON(filepath.Join(l.dir, "lab.json"), l.record); err != nil {
		return nil, fmt.Errorf("record lab %s: %w", o.Name, err)
	}
	return l, nil
}

// sameOptions refuses to change a lab that exists. An underlay that is not
// wanted explicitly may be any.
func sameOptions(have, want Options) error {
	if !want.Underlay.IsValid() {
		want.Underlay = have.Underlay
	}
	have.Progress, want.Progress = nil, nil
	var changed []string
	h, w := reflect.ValueOf(have), reflect.ValueOf(want)
	for i := range h.NumField() {
		name := h.Type().Field(i).Name
		if name != "Progress" && fmt.Sprint(h.Field(i)) != fmt.Sprint(w.Field(i)) {
			changed = append(changed, fmt.Sprintf("%s is %v, not %v", name, h.Field(i), w.Field(i)))
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("lab %s exists with other options (%s): bring it down first, or give the new one another --name", have.Name, strings.Join(changed, "; "))
	}
	return nil
}

// up makes everything that is missing.
func (l *Lab) up(ctx context.Context) error {
	limit := startLimit
	if l.network().daemons != nil {
		limit *= 2 // Cilium compiles its programs first
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := l.ensureNetwork(); err != nil {
		return err
	}
	l.report("network of %s is up: router, %s", l.record.Plan.Underlay, strings.Join(l.clusterNames(), ", "))
	group, starting := errgroup.WithContext(ctx)
	for _, c := range l.record.Plan.Clusters {
		group.Go(func() error { return l.upCluster(starting, c) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return l.writeKubeconfig()
}

func (l *Lab) clusterNames() []string {
	var names []string
	for _, c := range l.record.Plan.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// upCluster starts the control plane and, next to it, the nodes, whose
// containerd and images need no API server.
func (l *Lab) upCluster(ctx context.Context, c Cluster) error {
	if err := l.prepareControlPlane(c); err != nil {
		return fmt.Errorf("prepare the control plane of %s: %w", c.Name, err)
	}
	// Its context ends with Wait: what follows below uses ctx.
	group, starting := errgroup.WithContext(ctx)
	group.Go(func() error {
		for _, n := range c.Nodes {
			if err := l.ensureNode(starting, c, n); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() error {
		if err := l.ensureControlPlane(starting, c); err != nil {
			return err
		}
		l.report("%s: API server is ready at %s", c.Name, c.URL())
		client, err := l.Clientset(c.Name)
		if err != nil || c.Hub {
			return err
		}
		for _, n := range c.Nodes {
			if err := ensureNodeObject(starting, client, n); err != nil {
				return err
			}
		}
		if err := l.applyDefinitions(starting, c); err != nil {
			return err
		}
		return l.ensureCoreDNS(starting, c, client)
	})
	if err := group.Wait(); err != nil || c.Hub {
		return err
	}
	client, err := l.Clientset(c.Name)
	if err != nil {
		return err
	}
	if err := l.awaitNodes(ctx, client, c.Nodes); err != nil {
		return err
	}
	l.report("%s: %d nodes are Ready", c.Name, len(c.Nodes))
	if err := l.awaitDNS(ctx, c, client); err != nil {
		return err
	}
	l.report("%s: DNS answers at %s", c.Name, c.DNS)
	return nil
}

// awaitNodes waits until all nodes are Ready.
func (l *Lab) awaitNodes(ctx context.Context, client kubernetes.Interface, nodes []Node) error {
	for _, n := range nodes {
		spec, err := machine.ReadSpec(l.nodeDir(n.Name))
		if err != nil {
			return err
		}
		reason := ""
		for {
			node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
			if err == nil {
				var ready bool
				ready, reason = nodeReady(node)
				// After a restart the Node still shows what it was before.
				if ready && node.Status.NodeInfo.BootID == spec.BootID {
					break
				}
			}
			log := machine.LogFile(l.nodeDir(n.Name), "init")
			if !l.recorded(nodeProcess(n.Name)).alive() {
				return fmt.Errorf("start node %s: it ended; the end of %s:\n%s", n.Name, log, lastLines(log, 5))
			}
			if err := sleep(ctx, 100*time.Millisecond); err != nil {
				return fmt.Errorf("wait for node %s to be Ready: %w (%s; logs: pelago-lab logs --name %s %s)", n.Name, err, reason, l.Name(), n.Name)
			}
		}
	}
	return nil
}

// awaitDNS waits until a CoreDNS pod is available.
func (l *Lab) awaitDNS(ctx context.Context, c Cluster, client kubernetes.Interface) error {
	for {
		deployment, err := client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas > 0 {
			return nil
		}
		if sleepErr := sleep(ctx, 100*time.Millisecond); sleepErr != nil {
			return errors.Join(fmt.Errorf("wait for CoreDNS of %s: %w (pelago-lab kubectl --context %s -n kube-system describe pods)", c.Name, sleepErr, c.Name), err)
		}
	}
}

// writeKubeconfig merges the administrators' contexts into one file.
func (l *Lab) writeKubeconfig() error {
	var files []string
	for _, c := range l.record.Plan.Clusters {
		files = append(files, l.ClusterKubeconfig(c.Name))
	}
	merged, err := mergeKubeconfigs(files)
	if err != nil {
		return err
	}
	data, err := clientcmd.Write(*merged)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig of lab %s: %w", l.Name(), err)
	}
	if err := writeFile(l.Kubeconfig(), data, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig of lab %s: %w", l.Name(), err)
	}
	return nil
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
