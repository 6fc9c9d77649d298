package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

var (
	hostileFor  = flag.Duration("hostile", 20*time.Second, "how long TestHostileMember writes")
	hostileSeed = flag.Uint64("seed", 1, "of the requests of TestHostileMember")
)

const (
	// mebibyte is the unit of maxHeap.
	mebibyte = 1 << 20
	// maxHeap bounds the growth of the heap of this process, with the agents of three members: each
	// keeps 32 MiB of objects of a member at most.
	maxHeap = 256 * mebibyte
	// maxWrite bounds the 99th percentile of an administrator's writes at the hub.
	maxWrite = 2 * time.Second
)

// TestHostileMember: the credential of a member writes whatever the hub takes, while the agents of
// two others run. What those have of each other stays, theirs at the hub as well; the agents run on
// within their memory, and the hub answers.
func TestHostileMember(t *testing.T) {
	const ns = "shop"
	s := newClusterset(t)
	g3 := s.join(t, "g3", memberRanges{pods: podCIDR.String(), services: serviceCIDR.String(), global: "120.3.0.0/24"}, "192.0.2.3")
	namespace(t, ns, s.g1, s.g2, g3)
	for _, m := range []*member{s.g1, s.g2, g3} {
		m.service(t, ns, "of-"+m.id, web)
		m.export(t, ns, "of-"+m.id)
		within(t, "Ready", m.conditionIs(ns, "of-"+m.id, "Ready", "True"))
	}
	honest := []*member{s.g1, s.g2}
	for _, m := range honest {
		within(t, "imported in "+m.id, func() string {
			for _, id := range []string{"g1", "g2", "g3"} {
				if view := m.view(ns, "of-"+id); !complete(view, id) {
					return fmt.Sprint(view)
				}
			}
			return ""
		})
	}
	h := newHostile(t, s, g3)
	g3.stop()
	before := s.have(t, honest, ns)
	heap := heapNow()

	var writes []time.Duration
	looked := time.Now()
	for end := time.Now().Add(*hostileFor); time.Now().Before(end); {
		h.act(t.Context())
		if time.Since(looked) < time.Second {
			continue
		}
		looked = time.Now()
		writes = append(writes, s.write(t))
		for _, m := range honest {
			select {
			case err := <-m.ended:
				t.Fatalf("seed %d: the agent of %s ended after %d requests: %v", *hostileSeed, m.id, h.requests, err)
			default:
			}
		}
	}
	t.Logf("seed %d: %d requests; %v", *hostileSeed, h.requests, h.answers)
	if h.accepted == 0 {
		t.Error("the hub has accepted no request, so none was tried in earnest")
	}
	if grown := heapNow() - heap; grown > maxHeap {
		t.Errorf("seed %d: the heap has grown by %d MiB", *hostileSeed, grown/mebibyte)
	}
	slices.Sort(writes)
	if p99 := writes[len(writes)*99/100]; p99 > maxWrite {
		t.Errorf("seed %d: the 99th percentile of an administrator's writes is %s", *hostileSeed, p99)
	}
	within(t, "what the others have is as before", func() string {
		now := s.have(t, honest, ns)
		for _, what := range slices.Sorted(maps.Keys(before)) {
			if now[what] != before[what] {
				return fmt.Sprintf("seed %d: %s was %s, and is %s", *hostileSeed, what, before[what], now[what])
			}
		}
		return ""
	})
	// The agents still do what they are for.
	s.g2.service(t, ns, "later", web)
	s.g2.export(t, ns, "later")
	within(t, "a later export of g2 arrives in g1", func() string {
		if view := s.g1.view(ns, "later"); !complete(view, "g2") {
			return fmt.Sprint(view)
		}
		return ""
	})
}

// have is what members have of each other, and theirs at the hub, as text.
func (s *clusterset) have(t *testing.T, members []*member, ns string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range members {
		for _, line := range strings.Split(m.peers(t), "\n") {
			if !strings.HasPrefix(line, "g3 ") {
				out["Peer of "+m.id] = line
			}
		}
		for _, of := range members {
			for _, line := range m.view(ns, "of-"+of.id) {
				what, value, _ := strings.Cut(line, " ")
				fields := strings.Fields(value)
				switch {
				case what == "import": // g3 may export the same service, with other ports besides
					fields = slices.DeleteFunc(fields, func(f string) bool { return f == "g3" || strings.Contains(f, "/") && f != "TCP/80" })
				case slices.Contains(fields, "g3:") || strings.HasSuffix(fields[0], "-g3:"):
					continue
				}
				out[fmt.Sprintf("%s of of-%s in %s", what, of.id, m.id)] = strings.Join(fields, " ")
			}
		}
	}
	for _, list := range written() {
		must(t, s.hub.List(t.Context(), list, client.InNamespace(manifests.BrokerNamespace)))
		for _, o := range list.Items {
			if o.GetLabels()[submarinerv1.LabelClusterID] == "g3" || o.GetName() == "g3" {
				continue
			}
			o.SetManagedFields(nil)
			o.SetResourceVersion("")
			text, err := json.Marshal(o.Object)
			must(t, err)
			out[o.GetKind()+" "+o.GetName()+" at the hub"] = string(text)
		}
	}
	return out
}

// written are empty lists of the kinds that agents write at the hub.
func written() (out []*unstructured.UnstructuredList) {
	for kind, resource := range resourcesOf {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(resource.GroupVersion().WithKind(kind + "List"))
		out = append(out, list)
	}
	slices.SortFunc(out, func(a, b *unstructured.UnstructuredList) int { return strings.Compare(a.GetKind(), b.GetKind()) })
	return out
}

// write is the time that an administrator's write at the hub takes.
func (s *clusterset) write(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "write-"}}
	must(t, s.hub.Create(t.Context(), cm))
	took := time.Since(began)
	must(t, s.hub.Delete(t.Context(), cm))
	return took
}

func heapNow() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// hostile writes with the credential of a member.
type hostile struct {
	*rand.Rand
	client dynamic.Interface
	// own are objects of its cluster, all those of every kind that its agent writes.
	own, all []unstructured.Unstructured
	// values replace others.
	values             []any
	requests, accepted int
	answers            map[string]int
	names              int
}

// resourcesOf are those that agents write at the hub.
var resourcesOf = map[string]schema.GroupVersionResource{
	"Cluster": submarinerv1.GroupVersion.WithResource("clusters"), "Endpoint": submarinerv1.GroupVersion.WithResource("endpoints"),
	"ServiceContribution": {Group: "pelago.io", Version: "v1alpha1", Resource: "servicecontributions"},
	"EndpointSlice":       {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
}

func newHostile(t *testing.T, s *clusterset, m *member) *hostile {
	t.Helper()
	var secret corev1.Secret
	must(t, m.Get(t.Context(), client.ObjectKey{Namespace: manifests.SystemNamespace, Name: config.BrokerSecretName}, &secret))
	access := rest.AnonymousClientConfig(s.config)
	access.BearerToken, access.QPS = string(secret.Data[config.KeyBrokerToken]), -1
	h := &hostile{
		Rand: rand.New(rand.NewPCG(*hostileSeed, 0)), client: dynamic.NewForConfigOrDie(access), answers: map[string]int{},
		values: []any{
			nil, "", "g1", "g2", "g3", "of-g1", "of-g2", "shop", "kube-system", "Headless", "ClusterSetIP", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
			"192.0.2.1", "192.0.2.2", "120.1.0.0/24", "120.2.0.1", "10.77.0.1", "0.0.0.0/0", "::/0", "fe80::1", "127.0.0.1", "241.0.64.1", "1", "-1", "65536",
			"true", "wireguard", "libreswan", "\u202e\u0000\ufeff", strings.Repeat("a", 254), strings.Repeat("x", 5000), strings.Repeat("y", 300_000),
			int64(0), int64(-1), int64(1), int64(80), int64(65536), int64(1) << 62, true, false, []any{}, map[string]any{}, []any{nil}, map[string]any{"": nil},
		},
	}
	for _, list := range written() {
		must(t, s.hub.List(t.Context(), list, client.InNamespace(manifests.BrokerNamespace)))
		for _, o := range list.Items {
			h.all = append(h.all, o)
			if o.GetLabels()[submarinerv1.LabelClusterID] == "g3" {
				h.own = append(h.own, o)
			}
		}
	}
	if len(h.own) < 3 {
		t.Fatalf("the member has %d objects at the hub, want an Endpoint, a ServiceContribution and an EndpointSlice", len(h.own))
	}
	return h
}

// act makes one request with an object that is mutated up to three times.
func (h *hostile) act(ctx context.Context) {
	pool := h.own
	if h.IntN(4) == 0 {
		pool = h.all
	}
	o := pool[h.IntN(len(pool))].DeepCopy()
	o.SetManagedFields(nil)
	if h.IntN(4) > 0 {
		o.SetResourceVersion("")
	}
	resource := h.client.Resource(resourcesOf[o.GetKind()]).Namespace(o.GetNamespace())
	if h.IntN(3) == 0 {
		h.names++
		o.SetName(fmt.Sprintf("%s-%d", o.GetName(), h.names%400))
		o.SetUID("")
	}
	for range h.IntN(4) {
		h.mutate(o.Object)
	}
	body, err := json.Marshal(o.Object)
	if err != nil {
		panic(err) // of values of this file
	}
	var sub []string
	if h.IntN(8) == 0 {
		sub = []string{"status"}
	}
	name := o.GetName()
	if name == "" {
		name = "none"
	}
	switch h.IntN(8) {
	case 0, 1, 2:
		_, err = resource.Create(ctx, o, metav1.CreateOptions{}, sub...)
	case 3, 4:
		_, err = resource.Update(ctx, o, metav1.UpdateOptions{}, sub...)
	case 5:
		_, err = resource.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, sub...)
	case 6:
		_, err = resource.Patch(ctx, name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "hostile", Force: new(true)}, sub...)
	default:
		if h.IntN(10) > 0 {
			err = resource.Delete(ctx, name, metav1.DeleteOptions{})
		} else {
			err = resource.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		}
	}
	h.requests++
	answer := "accepted"
	var status apierrors.APIStatus
	if err != nil {
		answer = "no answer"
		if errors.As(err, &status) {
			answer = http.StatusText(int(status.Status().Code))
		}
	} else {
		h.accepted++
	}
	h.answers[answer]++
}

// mutate replaces, removes or adds a value somewhere in an object.
func (h *hostile) mutate(o map[string]any) {
	keys := slices.Sorted(maps.Keys(o))
	if len(keys) == 0 || h.IntN(12) == 0 {
		key, _ := h.values[h.IntN(len(h.values))].(string)
		o[key] = h.value()
		return
	}
	key := keys[h.IntN(len(keys))]
	switch v := o[key].(type) {
	case map[string]any:
		if h.IntN(5) > 0 {
			h.mutate(v)
			return
		}
	case []any:
		if len(v) > 0 && h.IntN(3) > 0 {
			if inner, ok := v[h.IntN(len(v))].(map[string]any); ok && h.IntN(3) > 0 {
				h.mutate(inner)
				return
			}
			for range []int{1, 10, 200, 1100}[h.IntN(4)] {
				v = append(v, v[0])
			}
			o[key] = v
			return
		}
	}
	if key == "kind" || key == "apiVersion" {
		return // the client needs them
	}
	if h.IntN(6) == 0 {
		delete(o, key)
		return
	}
	o[key] = h.value()
}

func (h *hostile) value() any {
	v := h.values[h.IntN(len(h.values))]
	switch v := v.(type) { // not shared by two places
	case []any:
		return slices.Clone(v)
	case map[string]any:
		return maps.Clone(v)
	}
	return v
}
