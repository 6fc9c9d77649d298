package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/pelago-net/pelago/test/hubset"
)

// arrival is an object that was seen in a member for the first time.
type arrival struct{ member, kind, name string }

// arrivals notes when objects come to members, by watches of their own.
type arrivals struct {
	mu   sync.Mutex
	at   map[arrival]time.Time
	last time.Time
	more chan struct{} // has room for one: something has come
	came func(arrival) // is notified of each; may be nil
}

var watched = map[string]schema.GroupVersionResource{
	"Deployment": {Group: "apps", Version: "v1", Resource: "deployments"},
	"ConfigMap":  {Version: "v1", Resource: "configmaps"},
}

// watchArrivals watches the members until ctx ends.
func watchArrivals(ctx context.Context, members []*hubset.Member) (*arrivals, error) {
	a := &arrivals{at: map[arrival]time.Time{}, more: make(chan struct{}, 1)}
	for _, m := range members {
		c, err := metadata.NewForConfig(m.Config)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", m.Name, err)
		}
		factory := metadatainformer.NewSharedInformerFactory(c, 0)
		for kind, resource := range watched {
			_, err := factory.ForResource(resource).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
				meta := o.(*metav1.PartialObjectMetadata)
				if meta.Namespace == namespace && (strings.HasPrefix(meta.Name, prefix) || strings.HasPrefix(meta.Name, dependentsOf)) {
					a.note(arrival{m.Name, kind, meta.Name}, time.Now())
				}
			}})
			if err != nil {
				return nil, fmt.Errorf("watch %s: %w", m.Name, err)
			}
		}
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	return a, ctx.Err()
}

// tell names who is notified of each object that comes.
func (a *arrivals) tell(came func(arrival)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.came = came
}

func (a *arrivals) note(what arrival, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.at[what]; known {
		return
	}
	a.at[what], a.last = now, now
	if a.came != nil {
		a.came(what)
	}
	select {
	case a.more <- struct{}{}:
	default:
	}
}

func (a *arrivals) count() (int, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at), a.last
}

// latencies are, in milliseconds and sorted, from the sending of each template to its first sight
// in each member.
func (a *arrivals) latencies(sent map[string]time.Time) (ms []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for what, at := range a.at {
		if from, ok := sent[what.name]; ok && what.kind == "Deployment" {
			ms = append(ms, float64(at.Sub(from))/float64(time.Millisecond))
		}
	}
	slices.Sort(ms)
	return ms
}
