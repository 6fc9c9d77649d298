package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/hubset"
)

// startTime is how long a workload takes in a member until all of its replicas are ready.
const startTime = time.Second

// running stands in for the workload controllers of members with real API servers, which have no
// nodes: like kube-controller-manager it reports each Deployment as observed when it appears, and
// as ready some time later. Without it no status would go back to the hub, and the hub's writes for
// that would not be counted.
type running struct {
	ctx     context.Context
	clients map[string]client.Client
	pending sync.WaitGroup

	mu  sync.Mutex
	err error // the first
}

func newRunning(ctx context.Context, members []*hubset.Member) (*running, error) {
	r := &running{ctx: ctx, clients: map[string]client.Client{}}
	for _, m := range members {
		var err error
		if r.clients[m.Name], err = connect(m.Config, "bench-workloads"); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// came is notified of an object that has come to a member.
func (r *running) came(what arrival) {
	if what.kind != "Deployment" {
		return
	}
	for _, step := range []struct {
		after time.Duration
		ready bool
	}{{0, false}, {startTime, true}} {
		r.pending.Add(1)
		time.AfterFunc(step.after, func() {
			defer r.pending.Done()
			if err := r.report(what, step.ready); err != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.err == nil {
					r.err = fmt.Errorf("report the status of %s in %s: %w", what.name, what.member, err)
				}
			}
		})
	}
}

func (r *running) report(what arrival, ready bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var d appsv1.Deployment
		if err := r.clients[what.member].Get(r.ctx, client.ObjectKey{Namespace: namespace, Name: what.name}, &d); err != nil {
			return err
		}
		n := *d.Spec.Replicas
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n}
		if ready {
			d.Status.ReadyReplicas, d.Status.AvailableReplicas = n, n
		} else {
			d.Status.UnavailableReplicas = n
		}
		return r.clients[what.member].Status().Update(r.ctx, &d)
	})
}

// done waits for the reports under way.
func (r *running) done() error {
	r.pending.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
