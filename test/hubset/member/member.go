// Package member simulates a member cluster: an API server that speaks the real protocol over TLS,
// keeps its objects in memory and is cheap enough for a hundred in one process, with nodes, and on
// request with something like a kubelet that reports Deployments as running. What clients of the
// hub use is served: discovery, get, list, watch, create, update, the four kinds of patch, delete,
// status. Nothing is defaulted or validated beyond the schema that server-side apply needs.
//
// Benchmarks with many members and the tests of the hub use it; what has to be proven is proven
// against real API servers.
package member

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"
)

// Options of a member; the zero value is a member without nodes whose Deployments never become
// ready.
type Options struct {
	// Nodes is the number of ready nodes, each with 64 CPUs and 256 GiB.
	Nodes int
	// Pods is how many each of them has room for; 0: 500.
	Pods int
	// Ready is how long after a change the status of a Deployment reports that all replicas run; 0:
	// never.
	Ready time.Duration
	// History is the number of events per kind from which a watch can start; older resourceVersions
	// are expired. 0: 10,000.
	History int
}

// Member is a running one.
type Member struct {
	options Options
	config  *rest.Config
	server  *http.Server
	ended   context.CancelFunc // ends the watches
	running context.Context

	mu       sync.Mutex
	version  uint64 // resourceVersion of the newest change
	sets     map[*resource]*set
	managers map[managerKey]*managedfields.FieldManager
	tokens   map[string]string // bearer token → user
	timers   map[types.UID]*time.Timer
}

// Start serves a member on a free port of the loopback address.
func Start(o Options) (*Member, error) {
	if o.History == 0 {
		o.History = 10000
	}
	if o.Pods == 0 {
		o.Pods = 500
	}
	identity, err := serving()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a simulated member: %w", err)
	}
	m := &Member{
		options: o, sets: map[*resource]*set{}, managers: map[managerKey]*managedfields.FieldManager{},
		tokens: map[string]string{}, timers: map[types.UID]*time.Timer{},
	}
	m.running, m.ended = context.WithCancel(context.Background())
	for i := range resources {
		m.sets[&resources[i]] = &set{objects: map[types.NamespacedName]*unstructured.Unstructured{}, changed: make(chan struct{})}
	}
	m.config = &rest.Config{
		Host: "https://" + listener.Addr().String(), BearerToken: m.issue("administrator"), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: identity.authority},
	}
	if err := m.furnish(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a simulated member: %w", err), listener.Close())
	}
	m.server = &http.Server{
		Handler:   m,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{identity.certificate}, NextProtos: []string{"h2", "http/1.1"}},
		ErrorLog:  log.New(io.Discard, "", 0), // of clients that go away
	}
	go func() {
		_ = m.server.ServeTLS(listener, "", "") // ends with Close
	}()
	return m, nil
}

// Config is an administrator's access.
func (m *Member) Config() *rest.Config { return rest.CopyConfig(m.config) }

// Close ends the member and all connections to it.
func (m *Member) Close() error {
	m.ended()
	m.mu.Lock()
	for _, t := range m.timers {
		t.Stop()
	}
	m.mu.Unlock()
	return m.server.Close()
}

// furnish makes what every cluster has.
func (m *Member) furnish() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := m.create(namespaces, named("v1", "Namespace", name), "member"); err != nil {
			return err
		}
	}
	for i := range m.options.Nodes {
		node := named("v1", "Node", fmt.Sprintf("node-%d", i+1))
		room := map[string]any{"cpu": "64", "memory": "256Gi", "pods": fmt.Sprint(m.options.Pods), "ephemeral-storage": "1Ti"}
		made, err := m.create(nodes, node, "member")
		if err != nil {
			return err
		}
		made = made.DeepCopy()
		made.Object["status"] = map[string]any{
			"capacity": room, "allocatable": room,
			"conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "KubeletReady"}},
			"nodeInfo":   map[string]any{"kubeletVersion": serverVersion},
		}
		m.put(nodes, made)
	}
	return nil
}

func named(apiVersion, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name},
	}}
}
