package execute

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// TestStatus: from an event in the member to status of the Work.
func TestStatus(t *testing.T) {
	server := apiserver.Start(t)

	t.Run("identifier, reflected status and health", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", deployment)
		l.applied("w")
		l.status(deployment, 2)
		await.Equal(t, "2", func() string { return l.reflected("w", "readyReplicas") })
		got := l.see("w").Status.ManifestStatuses[0]
		want := workv1alpha1.ResourceIdentifier{
			Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespace: l.ns, Name: "nginx",
		}
		if diff := cmp.Diff(want, got.Identifier); diff != "" || got.Health != workv1alpha1.ResourceUnhealthy {
			t.Errorf("health %s, %s", got.Health, diff)
		}
	})

	t.Run("other rules are used at once; one that fails is named, and leaves what was reported", func(t *testing.T) {
		l := newLab(t, server)
		rules := kinds.NewCustom()
		rule := func(text pelagov1alpha1.Expression) {
			k := pelagov1alpha1.KindRules{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
			k.Spec.Kinds = []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}}
			k.Spec.Rules.Reflect = text
			rules.Set([]pelagov1alpha1.KindRules{k})
		}
		rule("{'readyReplicas': observed.?status.?readyReplicas.orValue(0)}")
		l.run(func(o *Options) { o.Interpreter = rules.Interpreter() })
		l.work("w", deployment)
		l.applied("w")
		l.status(deployment, 2)
		await.Equal(t, "2", func() string { return l.reflected("w", "readyReplicas") })
		rule("{'readyReplicas': observed.status.nothing}")
		await.Equal(t, "False RuleFailed", func() string {
			state, message := l.condition("w", workv1alpha1.ConditionInterpreted)
			if state != "" && !strings.Contains(message, "rule reflect of KindRules mine") {
				t.Errorf("it says %q", message)
			}
			return state
		})
		l.heard("ReflectStatusFailed", "rule reflect of KindRules mine", "no such key: nothing")
		if got := l.reflected("w", "readyReplicas"); got != "2" {
			t.Errorf("reflected are %s replicas", got)
		}
		l.applied("w")
		rule("{'readyReplicas': 7}")
		await.Equal(t, "7", func() string { return l.reflected("w", "readyReplicas") })
		if state, _ := l.condition("w", workv1alpha1.ConditionInterpreted); state != "" {
			t.Errorf("Interpreted is %s", state)
		}
	})

	t.Run("a rolling object costs few writes", func(t *testing.T) {
		l := newLab(t, server)
		var mu sync.Mutex
		var at []time.Time
		hub := l.counting(t, func(*workv1alpha1.Work) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return nil
		})
		l.run(func(o *Options) { o.Hub = hub })
		l.work("w", deployment)
		l.applied("w")
		for i := range 60 {
			l.status(deployment, i+1)
		}
		await.Equal(t, "60", func() string { return l.reflected("w", "readyReplicas") })
		mu.Lock()
		defer mu.Unlock()
		for i := 1; i < len(at); i++ {
			// 100, as the clock is read a moment later
			if gap := at[i].Sub(at[i-1]); gap < 90*time.Millisecond {
				t.Errorf("writes %d and %d are %v apart", i-1, i, gap)
			}
		}
	})

	t.Run("the first status waits for the member's controller, which knows nothing of the object yet", func(t *testing.T) {
		l := newLab(t, server)
		var writes atomic.Int64
		hub := l.counting(t, func(*workv1alpha1.Work) error { writes.Add(1); return nil })
		l.run(func(o *Options) { o.Hub, o.Seen = hub, time.Hour })
		l.work("w", deployment)
		await.True(t, "the object is there", func() bool { return l.find(deployment) != nil })
		l.patchStatus(deployment, `{"observedGeneration":1,"replicas":2,"readyReplicas":1}`)
		l.applied("w")
		if got := l.reflected("w", "readyReplicas"); got != "1" || writes.Load() != 1 {
			t.Errorf("%d writes, the first says %s of 1 ready replicas", writes.Load(), got)
		}
		l.work("c", configMap) // of which no controller knows
		l.applied("c")
	})

	t.Run("while the cache does not show our own write, the next one is made over that, not over the version before", func(t *testing.T) {
		l := newLab(t, server)
		var works *late
		var versions []string
		var mu sync.Mutex
		hub := l.counting(t, func(w *workv1alpha1.Work) error {
			mu.Lock()
			defer mu.Unlock()
			if len(versions) == 0 {
				works.show(l.see("w"), time.Hour)
			}
			versions = append(versions, w.ResourceVersion)
			return nil
		})
		l.run(func(o *Options) {
			works = &late{Cache: o.Works.cache}
			o.Hub, o.Works = hub, NewWorks(works)
		})
		l.work("w", deployment)
		l.applied("w")
		l.status(deployment, 7)
		await.Equal(t, "7", func() string { return l.reflected("w", "readyReplicas") })
		mu.Lock()
		defer mu.Unlock()
		if n := len(versions); n != len(slices.Compact(slices.Clone(versions))) {
			t.Errorf("written over %v", versions)
		}
	})

	t.Run("a status is written only over the Work that it was made of", func(t *testing.T) {
		l := newLab(t, server)
		var mu sync.Mutex
		var versions []string
		hub := l.counting(t, func(w *workv1alpha1.Work) error {
			mu.Lock()
			defer mu.Unlock()
			if len(versions) == 0 { // meanwhile the Work changes
				l.edit("w", func(x *workv1alpha1.Work) { x.Labels = map[string]string{"changed": "yes"} })
			}
			versions = append(versions, w.ResourceVersion)
			return nil
		})
		l.run(func(o *Options) { o.Hub = hub })
		l.work("w", configMap)
		l.applied("w")
		mu.Lock()
		defer mu.Unlock()
		if len(versions) < 2 || versions[0] == versions[1] {
			t.Errorf("written over versions %v", versions)
		}
	})

	t.Run("#7320: after a conflict what is written is new, not what was to be written", func(t *testing.T) {
		l := newLab(t, server)
		var mu sync.Mutex
		var written []string
		hub := l.counting(t, func(w *workv1alpha1.Work) error {
			mu.Lock()
			defer mu.Unlock()
			if len(w.Status.ManifestStatuses) == 0 || w.Status.ManifestStatuses[0].Status == nil {
				return nil
			}
			written = append(written, string(w.Status.ManifestStatuses[0].Status.Raw))
			// meanwhile the object changes, and someone has written the Work
			if len(written) == 1 {
				l.status(deployment, 9)
				u := l.object(deployment)
				await.True(t, "the execution has seen it", func() bool {
					if err := l.execution.member.managed.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
						return false
					}
					seen, err := unpack(u)
					return err == nil && value(seen, "status", "readyReplicas") == "9"
				})
				return apierrors.NewConflict(workv1alpha1.GroupVersion.WithResource("works").GroupResource(), w.Name, nil)
			}
			return nil
		})
		l.run(func(o *Options) { o.Hub = hub })
		l.work("w", deployment)
		await.Equal(t, "9", func() string { return l.reflected("w", "readyReplicas") })
		mu.Lock()
		defer mu.Unlock()
		for _, status := range written[1:] {
			if status == written[0] {
				t.Errorf("the stale status was written again: %s", status)
			}
		}
	})

	t.Run("a decision made before a pause of the process is not written", func(t *testing.T) {
		old := &task{began: time.Now().Add(-staleAfter - time.Second)}
		if old.fresh() == nil {
			t.Error("written")
		}
		if now := (&task{began: time.Now()}); now.fresh() != nil {
			t.Error("refused")
		}
	})

	t.Run("metrics have Karmada's names", func(t *testing.T) {
		l := newLab(t, server)
		stop := l.run()
		w := l.work("w", configMap)
		l.applied("w")
		l.manifest("w", `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS}}`)
		l.applied("w")
		l.hub.Remove(w)
		await.True(t, "the Work is gone", func() bool { return l.gone("w") })
		want := []string{
			"create_resource_to_cluster", "delete_resource_from_cluster", "update_resource_to_cluster",
			"work_sync_workload_duration_seconds",
		}
		if diff := cmp.Diff(want, families(t, l.metrics)); diff != "" {
			t.Error(diff)
		}
		stop()
		if diff := cmp.Diff(want[3:], families(t, l.metrics)); diff != "" {
			t.Errorf("of a cluster that is executed no more: %s", diff)
		}
	})
}

func families(t *testing.T, m *Metrics) []string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(m)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range all {
		names = append(names, f.GetName())
	}
	return names
}

// counting is the hub's client, which asks before each write of a status, with what the request
// says of the Work.
func (l *lab) counting(t *testing.T, ask func(*workv1alpha1.Work) error) client.Client {
	t.Helper()
	c, err := client.NewWithWatch(l.hub.Config, client.Options{Scheme: l.hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			body, err := p.Data(o)
			if err != nil {
				return err
			}
			said := &workv1alpha1.Work{}
			if err := json.Unmarshal(body, said); err != nil {
				return err
			}
			said.Namespace, said.Name = o.GetNamespace(), o.GetName()
			if err := ask(said); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
}

// late is a cache of Works that for a while shows an older one, and no event.
type late struct {
	cache.Cache
	mu    sync.Mutex
	older *workv1alpha1.Work
	until time.Time
}

func (c *late) show(older *workv1alpha1.Work, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.older, c.until = older, time.Now().Add(d)
}

func (c *late) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := o.(*workv1alpha1.Work); ok && time.Now().Before(c.until) && client.ObjectKeyFromObject(c.older) == key {
		c.older.DeepCopyInto(w)
		return nil
	}
	return c.Cache.Get(ctx, key, o, opts...)
}

func (c *late) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, o, opts...)
	return lateInformer{informer, c}, err
}

type lateInformer struct {
	cache.Informer
	of *late
}

func (i lateInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	unless := func(hand func()) {
		i.of.mu.Lock()
		held := time.Now().Before(i.of.until)
		i.of.mu.Unlock()
		if !held {
			hand()
		}
	}
	return i.Informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { unless(func() { h.OnAdd(o, false) }) },
		UpdateFunc: func(old, o any) { unless(func() { h.OnUpdate(old, o) }) },
		DeleteFunc: func(o any) { unless(func() { h.OnDelete(o) }) },
	})
}

// TestStatusOf: what the conditions of a Work say.
func TestStatusOf(t *testing.T) {
	for _, c := range []struct {
		name string
		o    outcome
		want []string
	}{
		{"applied", outcome{}, []string{"Dispatching True Dispatching 3", "Applied True AppliedSuccessful 3"}},
		{"failed", outcome{failure: "no"}, []string{"Dispatching True Dispatching 3", "Applied False AppliedFailed 3"}},
		{"suspended: Applied is not touched", outcome{suspended: true, failure: "no"}, []string{
			"Dispatching False SuspendDispatching 3"}},
		{"fields dropped", outcome{dropped: []string{".spec.a"}}, []string{
			"Dispatching True Dispatching 3", "Applied True AppliedSuccessful 3", "FieldsDropped True FieldsDropped 3"}},
		{"a rule fails", outcome{uninterpreted: "no such key"}, []string{
			"Dispatching True Dispatching 3", "Applied True AppliedSuccessful 3", "Interpreted False RuleFailed 3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
			var got []string
			for _, c := range statusOf(w, c.o, nil).Conditions {
				got = append(got, c.Type+" "+string(c.Status)+" "+c.Reason+" "+fmt.Sprint(c.ObservedGeneration))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Successes are events on request only: each is a write.
func TestEventsOfSuccess(t *testing.T) {
	for name, c := range map[string]struct {
		all  bool
		o    outcome
		want []string
	}{
		"applied":   {false, outcome{}, nil},
		"failed":    {false, outcome{failure: "no"}, []string{"Warning SyncFailed no"}},
		"suspended": {false, outcome{suspended: true}, []string{"Normal WorkDispatching Work dispatching is in a suspended state."}},
		"applied, all events": {true, outcome{}, []string{"Normal SyncSucceed the manifest is applied",
			"Normal WorkDispatching Work is being dispatched to member clusters."}},
	} {
		events, before := record.NewFakeRecorder(10), &workv1alpha1.Work{}
		k := &task{Execution: &Execution{o: Options{Recorder: events, AllEvents: c.all}},
			work: &workv1alpha1.Work{Status: statusOf(before, c.o, nil)}}
		k.recordEvents(before, c.o)
		close(events.Events)
		var got []string
		for e := range events.Events {
			got = append(got, e)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
