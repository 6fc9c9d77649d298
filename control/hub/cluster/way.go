package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/execute/collect"
)

// Ways are the connections by which requests of users reach push members, separate from the hub's own: any replica has
// them, not only the leader. As there, only the cluster of spec.id gets a request.
type Ways struct {
	mu sync.Mutex
	by map[string]*Way
}

// Way leads to the API server of one push member.
type Way struct {
	URL            *url.URL
	Token          string            // of the account that may impersonate
	Plain, Upgrade http.RoundTripper // without credentials

	reach  reach
	closes []func()
}

// To returns the way to a member, whose Secrets are those that spec.secretRef and spec.impersonatorSecretRef name; nil: none. Without
// the latter the hub's own account impersonates. The error names the object and key to correct.
func (w *Ways) To(c *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret) (*Way, error) {
	r, err := reachOf(c, secret)
	if err != nil {
		return nil, err
	}
	token := r.token
	if ref := c.Spec.ImpersonatorSecretRef; ref != nil {
		if impersonator != nil {
			token = strings.TrimSpace(string(impersonator.Data[clusterv1alpha1.SecretKeyToken]))
		}
		if impersonator == nil || token == "" {
			return nil, fmt.Errorf("cluster %s cannot be asked: its spec.impersonatorSecretRef names Secret %s/%s, which has no key %s: "+
				"correct it, or remove the reference to have the hub's own account impersonate",
				c.Name, ref.Namespace, ref.Name, clusterv1alpha1.SecretKeyToken)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	way := w.by[c.Name]
	if way == nil || !reflect.DeepEqual(way.reach, r) {
		next, err := newWay(r)
		if err != nil {
			return nil, err
		}
		if way != nil {
			way.close()
		}
		if w.by == nil {
			w.by = map[string]*Way{}
		}
		way = next
		w.by[c.Name] = way
	}
	return &Way{URL: way.URL, Token: token, Plain: way.Plain, Upgrade: way.Upgrade}, nil
}

// Close ends the connections to a member, if there are any.
func (w *Ways) Close(cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if way := w.by[cluster]; way != nil {
		way.close()
		delete(w.by, cluster)
	}
}

func newWay(r reach) (*Way, error) {
	way := &Way{reach: r}
	var err error
	if way.URL, err = url.Parse(r.endpoint); err != nil {
		return nil, fmt.Errorf("use spec.apiEndpoint %q of cluster %s: %w", r.endpoint, r.cluster, err)
	}
	for _, to := range []*http.RoundTripper{&way.Plain, &way.Upgrade} {
		l, err := r.open()
		if err != nil {
			way.close()
			return nil, err
		}
		*to = l.config.Transport
		ctx, cancel := context.WithCancel(context.Background())
		go l.watch(ctx, collect.DefaultEvery)
		way.closes = append(way.closes, cancel, l.closeAll)
		r.upgrades = true
	}
	return way, nil
}

func (w *Way) close() {
	for _, end := range w.closes {
		end()
	}
}
