package replay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/hubset/member"
)

// servers are two API servers that do not know each other.
func servers(t *testing.T) map[string]*rest.Config {
	t.Helper()
	configs := map[string]*rest.Config{}
	for _, name := range []string{"hub", "member1"} {
		m, err := member.Start(member.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		configs[name] = m.Config()
	}
	return configs
}

func connect(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const ns = "bench"

// work is what a controller might do: objects that name others' UIDs, writes with preconditions, in
// two servers and many at a time.
func work(t *testing.T, hub, member client.WithWatch) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range []client.Client{hub, member} {
		must(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	}
	w, err := hub.Watch(ctx, &appsv1.DeploymentList{}, client.InNamespace(ns))
	must(err)
	defer w.Stop()
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			name := fmt.Sprintf("app-%d", i)
			labels := map[string]string{"app": name}
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
			must(hub.Create(ctx, d))
			claim := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{"claim":"x"}}}`, d.ResourceVersion)
			must(hub.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(claim))))
			binding := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Finalizers: []string{"pelago.io/test"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: name, UID: d.UID}}},
				Data: map[string]string{"template": `{"uid":"` + string(d.UID) + `"}`}}
			must(hub.Create(ctx, binding))
			binding.Data["clusters"] = "member1"
			must(hub.Update(ctx, binding))
			applied := corev1ac.ConfigMap(name, ns).WithAnnotations(map[string]string{"template": string(d.UID)})
			must(member.Apply(ctx, applied, client.FieldOwner("pelago"), client.ForceOwnership))
			d.Status.ObservedGeneration = 1
			must(hub.Status().Update(ctx, d))
			if i%3 == 0 {
				must(hub.Delete(ctx, binding, client.Preconditions{UID: &binding.UID, ResourceVersion: &binding.ResourceVersion}))
				must(hub.Get(ctx, client.ObjectKeyFromObject(binding), binding))
				binding.Finalizers = nil
				must(hub.Update(ctx, binding))
				copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
				must(member.Delete(ctx, copied, client.Preconditions{UID: applied.UID}))
			}
		})
	}
	all.Wait()
}

// contents is what servers hold in the namespace, with the names of objects in place of their UIDs.
func contents(t *testing.T, configs map[string]*rest.Config) (lines []string) {
	t.Helper()
	names := map[types.UID]string{}
	var maps []string
	for server, config := range configs {
		c := connect(t, config)
		var deployments appsv1.DeploymentList
		var configMaps corev1.ConfigMapList
		for _, list := range []client.ObjectList{&deployments, &configMaps} {
			if err := c.List(t.Context(), list, client.InNamespace(ns)); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range deployments.Items {
			names[d.UID] = d.Name
			lines = append(lines, fmt.Sprintf("%s deployment %s %v observed %d", server, d.Name, d.Labels, d.Status.ObservedGeneration))
		}
		for _, m := range configMaps.Items {
			owner := ""
			for _, o := range m.OwnerReferences {
				owner = string(o.UID)
			}
			maps = append(maps, fmt.Sprintf("%s map %s %v %v %v", server, m.Name, m.Data, m.Annotations, owner))
		}
	}
	for _, line := range maps {
		for uid, name := range names {
			line = strings.ReplaceAll(line, string(uid), "UID of "+name)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// record has a controller work on servers by way of a recorder.
func record(t *testing.T, configs map[string]*rest.Config) []Request {
	t.Helper()
	var r Recorder
	t.Cleanup(r.Close)
	r.Phase("work")
	led := map[string]*rest.Config{}
	for name, config := range configs {
		var err error
		if led[name], err = r.Through(name, config); err != nil {
			t.Fatal(err)
		}
	}
	work(t, connect(t, led["hub"]), connect(t, led["member1"]))
	await.Equal(t, 0, func() int { return len(r.Open()) })
	return r.Requests()
}

// A replay leaves other servers in the same state, with references that hold there.
func TestReplay(t *testing.T) {
	then, now := servers(t), servers(t)
	requests := record(t, then)
	want := contents(t, then)
	if len(want) != 30+20+20 {
		t.Errorf("%d objects were recorded", len(want))
	}
	p, err := NewPlayer(now, 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(t.Context(), requests); err != nil {
		t.Fatal(err)
	}
	o, err := p.Play(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	if o.Differing > 0 || o.Unknown > 0 || o.Took <= 0 {
		t.Errorf("%d differ, %d unknown versions, first %s", o.Differing, o.Unknown, o.First)
	}
	if writes := 2 + 30*6 + 10*4; o.Requests < writes {
		t.Errorf("%d requests, at least %d were made", o.Requests, writes)
	}
	if diff := cmp.Diff(want, contents(t, now)); diff != "" {
		t.Errorf("-recorded +replayed:\n%s", diff)
	}
}

// Objects that were there before the recording are changed by their versions of now.
func TestReplayOfChangesToWhatWasThere(t *testing.T) {
	then, now := servers(t), servers(t)
	create := func(config *rest.Config) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "there"}}
		if err := connect(t, config).Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	create(now["hub"])
	m := create(then["hub"])
	var r Recorder
	t.Cleanup(r.Close)
	led, err := r.Through("hub", then["hub"])
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, led)
	for i := range 3 {
		m.Data = map[string]string{"n": fmt.Sprint(i)}
		if err := c.Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	p, err := NewPlayer(now, 8, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(t.Context(), r.Requests()); err != nil {
		t.Fatal(err)
	}
	o, err := p.Play(t.Context(), r.Requests())
	if err != nil || o.Differing > 0 || o.Unknown != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	got := &corev1.ConfigMap{}
	if err := connect(t, now["hub"]).Get(t.Context(), client.ObjectKeyFromObject(m), got); err != nil || got.Data["n"] != "2" {
		t.Errorf("data %v, %v", got.Data, err)
	}
}

// Watches are known as long as they are open, and a player opens them again.
func TestWatches(t *testing.T) {
	configs := servers(t)
	var r Recorder
	t.Cleanup(r.Close)
	led, err := r.Through("hub", configs["hub"])
	if err != nil {
		t.Fatal(err)
	}
	w, err := connect(t, led).Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	open := r.Open()
	if len(open) != 1 || !strings.Contains(open[0].URL, "/api/v1/namespaces/default/configmaps?") {
		t.Fatalf("open are %v", open)
	}
	w.Stop()
	await.Equal(t, 0, func() int { return len(r.Open()) })
	var again Recorder
	t.Cleanup(again.Close)
	if led, err = again.Through("hub", configs["hub"]); err != nil {
		t.Fatal(err)
	}
	p, err := NewPlayer(map[string]*rest.Config{"hub": led}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := p.Watch(t.Context(), open)
	await.Equal(t, 1, func() int { return len(again.Open()) })
	stop()
	await.Equal(t, 0, func() int { return len(again.Open()) })
}

// A watch that the server ends is opened again where it ended, and the client's own second one is
// not made. One that the client ended is none of that.
func TestEndedWatches(t *testing.T) {
	var mu sync.Mutex
	var watches []string // the versions that they began with
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		watches = append(watches, q.URL.Query().Get("resourceVersion"))
		first := len(watches) == 1
		mu.Unlock()
		long := strings.Repeat("x", 100_000)
		for version, rest := range []string{"", long, long + `,"resourceVersion":"0"`} {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"metadata":{"resourceVersion":"%d"},"spec":{"resourceVersion":"0%s"}}}`+"\n", 5+version, rest)
		}
		w.(http.Flusher).Flush()
		if !first {
			<-q.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	var r Recorder
	t.Cleanup(r.Close)
	led, err := r.Through("hub", &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(led)
	if err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/configmaps?watch=true&timeoutSeconds="
	// the server ends the first, the client the second
	for i, timeout := range []string{"300", "400", "500"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, led.Host+path+timeout, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); (err == nil) != (i == 0) {
			t.Fatalf("watch %d: %v", i, err)
		}
		_ = answer.Body.Close()
		cancel()
		await.Equal(t, 0, func() int { return len(r.Open()) })
	}
	var goOn []bool
	for _, q := range r.Requests() {
		goOn = append(goOn, q.GoesOn)
	}
	if diff := cmp.Diff([]bool{false, true, false}, goOn); diff != "" {
		t.Error(diff)
	}

	mu.Lock()
	watches = nil
	mu.Unlock()
	p, err := NewPlayer(map[string]*rest.Config{"hub": {Host: server.URL}}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := p.Watch(t.Context(), r.Requests()[:1])
	got := func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(watches, ", then ")
	}
	await.Equal(t, ", then 7", got)
	if _, err := p.Play(t.Context(), r.Requests()[1:2]); err != nil {
		t.Fatal(err)
	}
	stop()
	if got() != ", then 7" || p.reopened != 1 {
		t.Errorf("watches %q, %d reopened", got(), p.reopened)
	}
}

// A watch continues from the list before it, so that the servers do not send everything twice.
func TestWatchGoesOnFromItsList(t *testing.T) {
	if got := fromVersion("/api/v1/configmaps?resourceVersion=5&watch=true",
		"77"); got != "/api/v1/configmaps?resourceVersion=77&watch=true" {
		t.Error(got)
	}
	if got := fromVersion("/api/v1/configmaps?resourceVersion=5&watch=true", ""); got != "/api/v1/configmaps?watch=true" {
		t.Error(got)
	}
	for body, want := range map[string]string{
		`{"kind":"ConfigMapList","metadata":{"resourceVersion":"9"},"items":[]}`: "9",
		`{"kind":"ConfigMap","metadata":{"resourceVersion":"9","uid":"u"}}`:      "", `ok`: "",
	} {
		if got := listVersion([]byte(body)); got != want {
			t.Errorf("%s: %q", body, got)
		}
	}
	steps := plan([]Request{
		{Server: "hub", Method: "GET", URL: "/api/v1/configmaps?limit=500", began: 1, ended: 2},
		{Server: "member1", Method: "GET", URL: "/api/v1/configmaps", began: 3, ended: 4},
		{Server: "hub", Method: "GET", URL: "/api/v1/configmaps?watch=true", Watch: true, began: 5},
	})
	if diff := cmp.Diff([]int{0}, steps[2].after); diff != "" {
		t.Error(diff)
	}
}

// What fails now and did not then is counted, with its words.
func TestDiffering(t *testing.T) {
	then, now := servers(t), servers(t)
	requests := record(t, then)
	for i := range requests {
		if requests[i].Server == "member1" && requests[i].Method == "POST" {
			requests[i].Body = []byte("{}") // the namespace
		}
	}
	p, err := NewPlayer(now, 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	o, err := p.Play(t.Context(), requests)
	if err != nil || o.Differing < 31 || !strings.Contains(o.First, "namespaces to member1: 201, then 400") {
		t.Errorf("%d differ, %q, %v", o.Differing, o.First, err)
	}
}

// The program's requests are made with its own rights, those of others with an administrator's.
func TestAs(t *testing.T) {
	then, now := servers(t), servers(t)
	requests := record(t, then)
	want := 0
	for i := range requests {
		if requests[i].Server == "member1" && !requests[i].Watch {
			requests[i].UserAgent = "program/v1"
			want++
		}
	}
	p, err := NewPlayer(now, 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.As("program", map[string]*rest.Config{"member1": rest.AnonymousClientConfig(now["member1"])}); err != nil {
		t.Fatal(err)
	}
	o, err := p.Play(t.Context(), requests)
	if err != nil || want < 30 || o.Differing != want || !strings.Contains(o.First, "to member1: 20") || !strings.Contains(o.First, ", then 401") {
		t.Errorf("%d of %d differ, %q, %v", o.Differing, want, o.First, err)
	}
}

func TestPlan(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	post := func(path, name string, began, ended int, body string) Request {
		return Request{Server: "hub", Method: "POST", URL: path, Body: []byte(body), began: began, ended: ended, Status: 201,
			reply: reply{UID: fmt.Sprintf("%08d-2222-3333-4444-555555555555", began), Version: fmt.Sprint(ended), Name: name}}
	}
	requests := []Request{
		post("/api/v1/namespaces", "n", 1, 2, "{}"),
		post("/api/v1/namespaces/n/configmaps", "a", 3, 6, "{}"),
		post("/api/v1/namespaces/n/configmaps", "b", 4, 5, "{}"),
		{Server: "hub", Method: "PUT", URL: "/api/v1/namespaces/n/configmaps/a", Body: []byte(`{"metadata":{"resourceVersion":"6"}}`),
			began: 7, ended: 8},
		post("/api/v1/namespaces/n/configmaps", "c", 9, 10, `{"uid":"00000004-2222-3333-4444-555555555555","other":"`+uid+`"}`),
		{Server: "member1", Method: "PUT", URL: "/api/v1/namespaces/n/configmaps/a", began: 11, ended: 12},
		{Server: "hub", Method: "GET", URL: "/api/v1/namespaces/n/configmaps?limit=500", began: 13, ended: 14},
		{Server: "hub", Method: "PATCH", URL: "/apis/apps/v1/namespaces/n/deployments/a/status", began: 15, ended: 16},
		{Server: "hub", Method: "GET", URL: "/apis/apps/v1/namespaces/n/deployments/a", began: 17, ended: 18},
		{Server: "hub", Method: "DELETE", URL: "/apis/apps/v1/namespaces/n/deployments/a", began: 19, ended: 20},
	}
	var got []string
	for i, s := range plan(requests) {
		got = append(got, fmt.Sprintf("%d after %v", i, s.after))
	}
	want := []string{"0 after []", "1 after [0]", "2 after [0]", "3 after [0 1]", "4 after [0 2]", "5 after []", "6 after [0]",
		"7 after [0]", "8 after [0 7]", "9 after [0 7 8]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRewriteVersions(t *testing.T) {
	to := func(old string) (string, bool) { return "new" + old, old != "0" }
	for body, want := range map[string]string{
		`{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"resourceVersion":"2"}}`: `{"metadata":{"name":"a","resourceVersion":"new1"},"spec":{"resourceVersion":"2"}}`,
		`{"metadata":{"resourceVersion":"0"}}`:                                           `{"metadata":{}}`,
		`{"preconditions":{"resourceVersion":"3","uid":"u"}}`:                            `{"preconditions":{"resourceVersion":"new3","uid":"u"}}`,
		`[{"op":"test","path":"/metadata/resourceVersion","value":"4"}]`:                 `[{"op":"test","path":"/metadata/resourceVersion","value":"new4"}]`,
		`{"n":12345678901234567890,"x":"resourceVersion"}`:                               `{"n":12345678901234567890,"x":"resourceVersion"}`,
		`nothing`: `nothing`,
	} {
		got, err := rewriteVersions([]byte(body), to)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", body, got, err)
		}
	}
}
