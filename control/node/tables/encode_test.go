package tables_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

// store holds parts by name.
type store map[string][]byte

func (s store) put(name string, content []byte) error {
	s[name] = content
	return nil
}

func (s store) get(name string) ([]byte, error) {
	content, ok := s[name]
	if !ok {
		return nil, errors.New("it is missing")
	}
	return content, nil
}

// Every field of Objects is stored, but for those that are no objects of the API.
func TestEverythingIsSaved(t *testing.T) {
	objs, _ := clusterset.Full(true)
	v := reflect.ValueOf(objs)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains([]string{"Discovered", "Answering"}, name) {
			t.Errorf("Objects.%s is empty here: add it to this test, and to cacheBody if it comes from the API server", name)
		}
	}
	parts := store{}
	content, err := tables.Encode(objs, "boot", parts.put)
	if err != nil {
		t.Fatal(err)
	}
	back, err := tables.Decode(content, "n1", "boot", parts.get)
	if err != nil {
		t.Fatal(err)
	}
	v = reflect.ValueOf(back)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains([]string{"Discovered", "Answering"}, name) {
			t.Errorf("Objects.%s did not come back", name)
		}
	}
	again, err := tables.Encode(back, "boot", parts.put)
	if err != nil || !bytes.Equal(content, again) {
		t.Errorf("what came back is saved as something else (%v):\n%s\n%s", err, content, again)
	}
}

// Whatever the objects are, and in whatever order they are listed: what came back makes the same
// tables, and the same settings of the gateway.
func TestSavedObjectsMakeTheSameTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		objs, host := clusterset.Full(rapid.Bool().Draw(t, "globalnet"))
		objs.Config.SingleGateway = rapid.Bool().Draw(t, "single")
		objs.Name = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node")
		for i := range objs.Nodes {
			n := &objs.Nodes[i]
			n.Labels[submarinerv1.LabelGateway] = rapid.SampledFrom([]string{"true", "false"}).Draw(t, "gateway")
			n.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned")
			n.Annotations = map[string]string{tables.KeyPublicIP: "ipv4:198.51.100.7"}
			if rapid.Bool().Draw(t, "drained") {
				n.Annotations[pelagov1alpha1.AnnotationDrained] = "true"
			}
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "pods") {
			p := clusterset.Pod(fmt.Sprintf("p%d", i), objs.Name, fmt.Sprintf("10.7.3.%d", i))
			p.Spec.HostNetwork = rapid.Bool().Draw(t, "host network")
			p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodFailed, corev1.PodPending}).Draw(t, "phase")
			p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"web", "db"}).Draw(t, "app")}
			objs.Pods = append(objs.Pods, p)
			host.Devices[ip(fmt.Sprintf("10.7.3.%d", i))] = uint32(i + 10)
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "blocks") {
			b := clusterset.Block("120.1.0.1", int32(2048+256*i), rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "owner"),
				rapid.SampledFrom([]pelagov1alpha1.BlockState{pelagov1alpha1.BlockActive, pelagov1alpha1.BlockPending, pelagov1alpha1.BlockReleasing}).Draw(t, "state"))
			b.Name, b.UID = fmt.Sprintf("b%d", i), types.UID(fmt.Sprintf("b%d", i))
			objs.PortBlocks = append(objs.PortBlocks, b)
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "headless pods") {
			objs.IngressIPs = append(objs.IngressIPs, submarinerv1.GlobalIngressIP{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "sample", Name: fmt.Sprintf("pod-p%d", i), UID: types.UID(fmt.Sprintf("i%d", i)),
					OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", UID: types.UID(fmt.Sprintf("uid-p%d", i))}},
				},
				Spec: submarinerv1.GlobalIngressIPSpec{
					Target: submarinerv1.HeadlessServicePod, ServiceRef: &corev1.LocalObjectReference{Name: "db"}, PodRef: &corev1.LocalObjectReference{Name: fmt.Sprintf("p%d", i)},
				},
				Status: submarinerv1.GlobalIngressIPStatus{
					AllocatedIP: fmt.Sprintf("120.1.0.%d", 20+i),
					Conditions:  []metav1.Condition{{Type: submarinerv1.ConditionAllocated, Status: rapid.SampledFrom([]metav1.ConditionStatus{"True", "False"}).Draw(t, "allocated")}},
				},
			})
			name := types.NamespacedName{Namespace: "sample", Name: "db"}
			objs.Slices[name] = append(objs.Slices[name], discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: fmt.Sprintf("db-%d", i)}, AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{clusterset.Endpoint(fmt.Sprintf("p%d", i), objs.Name, fmt.Sprintf("10.7.3.%d", i), rapid.Bool().Draw(t, "ready"))},
			})
		}
		parts := store{}
		content, err := tables.Encode(objs, "boot", parts.put)
		if err != nil {
			t.Fatal(err)
		}
		back, err := tables.Decode(content, objs.Name, "boot", parts.get)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tables.Desired(objs, host), tables.Desired(back, host), clusterset.Comparable, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("tables: -of the API server's objects +of the saved ones\n%s", diff)
		}
		want, wantRefused := tables.GatewaySettingsOf(objs)
		got, refused := tables.GatewaySettingsOf(back)
		if diff := cmp.Diff(want, got, clusterset.Comparable) + cmp.Diff(wantRefused, refused); diff != "" {
			t.Fatalf("settings of the gateway: -of the API server's objects +of the saved ones\n%s", diff)
		}
		if diff := cmp.Diff(tables.WirePeers(objs), tables.WirePeers(back), clusterset.Comparable); diff != "" {
			t.Fatalf("peers of the wire: -of the API server's objects +of the saved ones\n%s", diff)
		}
		shuffled := objs
		shuffled.Nodes, shuffled.Pods, shuffled.PortBlocks = slices.Clone(objs.Nodes), slices.Clone(objs.Pods), slices.Clone(objs.PortBlocks)
		shuffle(shuffled.Nodes)
		shuffle(shuffled.Pods)
		shuffle(shuffled.PortBlocks)
		if again, err := tables.Encode(shuffled, "boot", parts.put); err != nil || !bytes.Equal(content, again) {
			t.Fatalf("the same objects in another order are saved as something else (%v)", err)
		}
	})
}

func shuffle[T any](all []T) {
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
}

// What comes and goes without a meaning for the tables does not wear the disk, and what may be
// secret is not on it.
func TestWhatIsNotSaved(t *testing.T) {
	objs, _ := clusterset.Full(true)
	parts := store{}
	before, err := tables.Encode(objs, "boot", parts.put)
	if err != nil {
		t.Fatal(err)
	}
	objs.Nodes[0].ResourceVersion = "17"
	objs.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	objs.Nodes[0].Annotations["kubectl.kubernetes.io/last-applied-configuration"] = "secret-1"
	objs.Pods[0].Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret-2"}}}}
	objs.Pods[0].Annotations = map[string]string{"token": "secret-3"}
	objs.Services[types.NamespacedName{Namespace: "sample", Name: "internal"}] = &corev1.Service{}
	objs.Services[types.NamespacedName{Namespace: "sample", Name: "web"}].Annotations = map[string]string{"x": "secret-4"}
	after, err := tables.Encode(objs, "boot", parts.put)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("saved anew (%v): -before +after\n%s", err, cmp.Diff(string(before), string(after)))
	}
}

// After a boot the node has no pods with addresses that are known, and no ports: the agent may have
// given them to others.
func TestSavedObjectsOfAnotherBoot(t *testing.T) {
	objs, host := clusterset.Full(true)
	parts := store{}
	content := saved(t, objs, parts, func(*tables.Objects) {})
	back, err := tables.Decode(content, "n1", "the next boot", parts.get)
	if err != nil {
		t.Fatal(err)
	}
	have, want := tables.Desired(back, host).State, tables.Desired(objs, host).State
	for a, s := range have.Sources {
		if !s.Host || s.Egress.IsValid() {
			t.Errorf("source %s has %+v, want only the node itself, with no egress", a, s)
		}
	}
	maps.DeleteFunc(want.Blocks, func(_ dataplane.BlockKey, owner uint16) bool { return owner == 1 })
	if diff := cmp.Diff(want.Blocks, have.Blocks, clusterset.Comparable); diff != "" {
		t.Errorf("port blocks: -want those of others +have\n%s", diff)
	}
	if diff := cmp.Diff(want.Clusters, have.Clusters, clusterset.Comparable); diff != "" || len(have.Clusters) == 0 {
		t.Errorf("remote gateways: -want those of before +have\n%s", diff)
	}
}

// Thousands of objects are saved in a fraction of a second, and make a file of a few megabytes.
func TestSavedObjectsAreSmall(t *testing.T) {
	const blocks, endpoints, places = 10_000, 10_000, 10_000
	objs, _ := clusterset.Full(true)
	for i := range blocks {
		b := clusterset.Block(fmt.Sprintf("120.1.%d.%d", i>>8, i&255), 1024, "n2", pelagov1alpha1.BlockActive)
		b.UID, b.ResourceVersion = types.UID(fmt.Sprintf("0b6f2d3c-5c1e-4ad5-9d1f-%012d", i)), fmt.Sprint(i)
		objs.PortBlocks = append(objs.PortBlocks, b)
	}
	name := types.NamespacedName{Namespace: "sample", Name: "web"}
	for i := range endpoints / 100 {
		s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: fmt.Sprintf("web-%d", i)}, AddressType: discoveryv1.AddressTypeIPv4}
		for j := range 100 {
			s.Endpoints = append(s.Endpoints, clusterset.Endpoint(fmt.Sprintf("web-%d-%d", i, j), fmt.Sprintf("node-%d", j), fmt.Sprintf("10.7.%d.%d", i, j), true))
		}
		objs.Slices[name] = append(objs.Slices[name], s)
	}
	for i := range places {
		objs.PodNodes[netip.AddrFrom4([4]byte{10, 8, byte(i >> 8), byte(i)})] = fmt.Sprintf("node-%d", i%100)
	}
	parts := store{}
	begin := time.Now()
	content, err := tables.Encode(objs, "boot", parts.put)
	encoded := time.Since(begin)
	if err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	back, err := tables.Decode(content, "n1", "boot", parts.get)
	size, largest := len(content), 0
	for _, part := range parts {
		size, largest = size+len(part), max(largest, len(part))
	}
	t.Logf("%d bytes, the largest part %d, made in %s, read in %s", size, largest, encoded, time.Since(begin))
	if err != nil || len(back.PortBlocks) != len(objs.PortBlocks) || len(back.Slices[name]) != len(objs.Slices[name]) || len(back.PodNodes) != len(objs.PodNodes) {
		t.Errorf("read %d blocks, %d slices, %d places, %v", len(back.PortBlocks), len(back.Slices[name]), len(back.PodNodes), err)
	}
	if size > 8<<20 {
		t.Errorf("%d bytes, want at most 8 MiB", size)
	}
}

func TestSavedObjectsThatAreRefused(t *testing.T) {
	objs, _ := clusterset.Full(true)
	parts := store{}
	good, err := tables.Encode(objs, "boot", parts.put)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := bytes.Cut(good, []byte("\n"))
	withHead := func(change func(*tables.CacheHead)) []byte {
		var h tables.CacheHead
		if err := json.Unmarshal(head, &h); err != nil {
			t.Fatal(err)
		}
		change(&h)
		line, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Concat(line, []byte("\n"), body)
	}
	tests := map[string]struct {
		content []byte
		want    string
	}{
		"nothing":              {nil, "it is broken"},
		"zeros":                {make([]byte, 4096), "it is broken"},
		"something else":       {[]byte("hello\n"), "it is broken"},
		"only the head":        {head, "does not fit its checksum"},
		"cut short":            {good[:len(good)-20], "does not fit its checksum"},
		"the end of line lost": {good[:len(good)-1], "does not fit its checksum"},
		"more behind it":       {append(slices.Clone(good), "{}\n"...), "does not fit its checksum"},
		"one bit":              {bytes.Replace(good, []byte("nodes-"), []byte("nodos-"), 1), "does not fit its checksum"},
		"another node":         {withHead(func(h *tables.CacheHead) { h.Node = "n2" }), `that of node "n2", this is "n1"`},
		"another version":      {withHead(func(h *tables.CacheHead) { h.Version++ }), fmt.Sprintf("version %d, this program reads %d", tables.CacheVersion+1, tables.CacheVersion)},
		"no version":           {withHead(func(h *tables.CacheHead) { h.Version = 0 }), "version 0"},
		"a config without hub": {saved(t, objs, parts, func(o *tables.Objects) { o.Config.HubID = "" }), "hub-id"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := tables.Decode(tt.content, "n1", "boot", parts.get); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("decoded with error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A part that is missing or not as it was written is refused.
func TestSavedPartsThatAreRefused(t *testing.T) {
	objs, _ := clusterset.Full(true)
	parts := store{}
	content := saved(t, objs, parts, func(*tables.Objects) {})
	for name, part := range parts {
		delete(parts, name)
		if _, err := tables.Decode(content, "n1", "boot", parts.get); err == nil || !strings.Contains(err.Error(), "part "+name+": it is missing") {
			t.Errorf("without %s: %v", name, err)
		}
		for _, broken := range [][]byte{nil, part[1:], part[:len(part)-1], append(slices.Clone(part), ' ')} {
			parts[name] = broken
			if _, err := tables.Decode(content, "n1", "boot", parts.get); err == nil || !strings.Contains(err.Error(), "part "+name+": it is broken") {
				t.Errorf("%d of %d bytes of %s: %v", len(broken), len(part), name, err)
			}
		}
		parts[name] = part
	}
	if _, err := tables.Decode(content, "n1", "boot", parts.get); err != nil {
		t.Error(err)
	}
}

// A change is written to its part alone.
func TestOnlyChangedPartsAreNew(t *testing.T) {
	objs, _ := clusterset.Full(true)
	for i := range 100 {
		name := types.NamespacedName{Namespace: "sample", Name: fmt.Sprintf("more-%d", i)}
		objs.Exports[name] = true
		objs.Services[name] = &corev1.Service{}
		objs.Slices[name] = []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}}
	}
	parts := store{}
	saved(t, objs, parts, func(*tables.Objects) {})
	for kind, change := range map[string]func(*tables.Objects){
		"peers": func(o *tables.Objects) { o.Peers = nil },
		"nodes": func(o *tables.Objects) { o.Nodes = o.Nodes[1:] },
		"services": func(o *tables.Objects) {
			o.Slices = maps.Clone(o.Slices)
			delete(o.Slices, types.NamespacedName{Namespace: "sample", Name: "more-17"})
		},
	} {
		fresh := store{}
		saved(t, objs, fresh, change)
		maps.DeleteFunc(fresh, func(name string, _ []byte) bool { return parts[name] != nil })
		for name := range fresh {
			if len(fresh) > 1 || !strings.HasPrefix(name, kind+"-") {
				t.Errorf("a change of %s writes %s, one of %d", kind, name, len(fresh))
			}
		}
		if kind == "services" && len(fresh) != 1 {
			t.Errorf("a change of a Service is in %d parts", len(fresh))
		}
	}
}

// The file of the former version is read: it was in one piece.
func TestSavedInOnePiece(t *testing.T) {
	objs, _ := clusterset.Full(true)
	whole, err := tables.EncodeWhole(objs, "boot")
	if err != nil {
		t.Fatal(err)
	}
	back, err := tables.Decode(whole, "n1", "boot", store{}.get)
	if err != nil {
		t.Fatal(err)
	}
	want, got := store{}, store{}
	saved(t, objs, want, func(*tables.Objects) {})
	saved(t, back, got, func(*tables.Objects) {})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-saved +read\n%s", diff)
	}
}

func saved(t *testing.T, objs tables.Objects, parts store, change func(*tables.Objects)) []byte {
	t.Helper()
	change(&objs)
	content, err := tables.Encode(objs, "boot", parts.put)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Of a slice stays what the tables use; a change of anything else is none.
func TestReduceSlice(t *testing.T) {
	yes, node, zone, port, name := true, "n1", "z1", int32(8080), "http"
	made := func(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web-x", ResourceVersion: "7", UID: "u",
				Labels:        map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller"},
				Annotations:   map[string]string{pelagov1alpha1.AnnotationReadyBackends: "1", "endpoints.kubernetes.io/last-change-trigger-time": "t"},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.7.1.10"}, NodeName: &node, Zone: &zone, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-1", UID: "p"},
			}},
		}
		change(s)
		reduced, err := tables.Reduce(s)
		if err != nil {
			t.Fatal(err)
		}
		return reduced.(*discoveryv1.EndpointSlice)
	}
	base := made(func(*discoveryv1.EndpointSlice) {})
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-x", ResourceVersion: "7", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{pelagov1alpha1.AnnotationReadyBackends: "1"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: base.Ports,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.7.1.10"}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-1"},
		}},
	}
	if diff := cmp.Diff(want, base); diff != "" {
		t.Errorf("reduced, -want +got:\n%s", diff)
	}
	no, other := false, int32(8081)
	for what, tt := range map[string]struct {
		change func(*discoveryv1.EndpointSlice)
		same   bool
	}{
		"nothing but its version": {func(s *discoveryv1.EndpointSlice) { s.ResourceVersion = "8" }, true},
		"the time of the change": {func(s *discoveryv1.EndpointSlice) {
			s.Annotations["endpoints.kubernetes.io/last-change-trigger-time"] = "u"
		}, true},
		"a zone":                   {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = nil }, true},
		"an endpoint is not ready": {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = &no }, false},
		"an endpoint more":         {func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }, false},
		"its port":                 {func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = &other }, false},
		"its Service":              {func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "api" }, false},
		"the number of backends":   {func(s *discoveryv1.EndpointSlice) { s.Annotations[pelagov1alpha1.AnnotationReadyBackends] = "2" }, false},
	} {
		if got := tables.SameSlice(base, made(tt.change)); got != tt.same {
			t.Errorf("changed: %s: same %t, want %t", what, got, tt.same)
		}
	}
}
