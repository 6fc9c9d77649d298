package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/chaos/check"
	"github.com/pelago-net/pelago/test/hubset"
	"github.com/pelago-net/pelago/test/hubset/member"
	"github.com/pelago-net/pelago/test/resultfile"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// testStage is a hub without pelago-hub, and two members.
func testStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{options: options{limit: 20 * time.Second}, history: check.NewHistory(2 * time.Second),
		members: map[string]client.Client{}, set: &hubset.Set{}}
	var err error
	if s.hub, err = connect(server.Config(t)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"member1", "member2"} {
		m, err := member.Start(member.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		if s.members[name], err = connect(m.Config()); err != nil {
			t.Fatal(err)
		}
		s.names = append(s.names, name)
		for _, ns := range namespaces {
			if err := s.members[name].Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
				t.Fatal(err)
			}
		}
		s.set.Members = append(s.set.Members, &hubset.Member{Name: name, Config: m.Config()})
		if err := observe(t.Context(), s.set.Members[len(s.names)-1], s.history); err != nil {
			t.Fatal(err)
		}
	}
	s.churn = newChurn(s.hub, s.history, 1, s.names)
	return s
}

// propagate brings the members to what is wanted, once: the simplest hub that there can be.
func (s *stage) propagate(ctx context.Context) error {
	h, err := atHub(ctx, s.hub, s.names)
	if err != nil {
		return err
	}
	wanted, err := check.Wanted(h)
	if err != nil {
		return err
	}
	actual, err := found(ctx, s.hub, s.members)
	if err != nil {
		return err
	}
	var errs []error
	for place, content := range wanted {
		if _, there := actual.Members[place]; !there {
			errs = append(errs, client.IgnoreAlreadyExists(s.members[place.Member].Create(ctx, objectOf(place, content))))
			continue
		}
		o := objectOf(place, content)
		if err := s.members[place.Member].Get(ctx, client.ObjectKeyFromObject(o), o); err == nil {
			fill(o, content)
			errs = append(errs, s.members[place.Member].Update(ctx, o))
		}
	}
	for place := range actual.Members {
		frozen := false
		for _, places := range s.churn.frozen {
			_, ok := places[place]
			frozen = frozen || ok
		}
		if _, ok := wanted[place]; !ok && !frozen {
			errs = append(errs, client.IgnoreNotFound(s.members[place.Member].Delete(ctx, objectOf(place, check.Content{}))))
		}
	}
	return errors.Join(errs...)
}

func objectOf(place check.Place, content check.Content) client.Object {
	meta := metav1.ObjectMeta{Namespace: place.Namespace, Name: place.Name}
	var o client.Object = &corev1.ConfigMap{ObjectMeta: meta}
	if place.Kind == "Deployment" {
		o = &appsv1.Deployment{ObjectMeta: meta}
	}
	fill(o, content)
	return o
}

func fill(o client.Object, content check.Content) {
	o.SetLabels(content.Labels)
	switch o := o.(type) {
	case *corev1.ConfigMap:
		o.Data = content.Data
	case *appsv1.Deployment:
		o.Spec.Replicas = &content.Replicas
		o.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: content.Image}}
	}
}

// A hub that does what is requested has no violations, whatever the churn; one that makes an object
// once more is detected.
func TestChurn(t *testing.T) {
	s, ctx := testStage(t), t.Context()
	step := func(what string, do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	step("begin", func() error { return s.churn.begin(ctx, 10) })
	step("propagate", func() error { return s.propagate(ctx) })
	for range 15 {
		step("churn", func() error {
			stop := make(chan struct{})
			time.AfterFunc(300*time.Millisecond, func() { close(stop) })
			return s.churn.run(ctx, 10*time.Millisecond, stop)
		})
		step("propagate", func() error { return s.propagate(ctx) })
	}
	step("settle", func() error { return s.churn.settle(ctx) })
	step("propagate", func() error { return s.propagate(ctx) })
	violations, _, err := s.converged(ctx, false)
	if err != nil || len(violations) > 0 || len(s.history.Violations()) > 0 {
		t.Fatalf("violations of a hub that does what is asked: %v, %v, %v", violations, s.history.Violations(), err)
	}
	wanted, err := s.churn.wanted()
	if err != nil {
		t.Fatal(err)
	}
	if len(wanted) < 10 || s.churn.done.Load() < 30 {
		t.Errorf("%d objects are wanted after %d operations: too few to prove anything", len(wanted), s.churn.done.Load())
	}

	// The hub works on until something has been wanted for the lag.
	var victim check.Place
	await.True(t, "something has been wanted for longer than the lag", func() bool {
		step("propagate", func() error { return s.propagate(ctx) })
		if wanted, err = s.churn.wanted(); err != nil {
			t.Fatal(err)
		}
		for place := range s.history.Settled(wanted, time.Now()) {
			victim = place
		}
		return victim != check.Place{}
	})
	c := s.members[victim.Member]
	step("delete", func() error { return c.Delete(ctx, objectOf(victim, check.Content{})) })
	lost, err := s.compare(ctx, false)
	if err != nil || len(lost) != 1 || lost[0].Fault != check.Lost {
		t.Errorf("after a deletion: %v, %v", lost, err)
	}
	step("make anew", func() error { return c.Create(ctx, objectOf(victim, wanted[victim])) })
	await.Equal(t, []check.Fault{check.Deleted, check.Recreated}, func() (faults []check.Fault) {
		for _, v := range s.history.Violations() {
			faults = append(faults, v.Fault)
		}
		return faults
	})
}

// What is frozen because its policy has gone must stay, and a deleted template leaves it.
func TestPolicyGone(t *testing.T) {
	s, ctx := testStage(t), t.Context()
	s.churn.serial = 1000 // other names than those of the test before
	group := name{Namespace: "chaos-a", Name: "group-x"}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: group.Namespace}}
	if err := s.churn.insist(ctx, s.churn.making(space)); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func(context.Context) error{
		func(ctx context.Context) error { return s.churn.place(ctx, group) }, s.churn.newTemplate,
	} {
		if err := do(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before, err := s.churn.wanted()
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, "all has settled", func() bool { return len(s.history.Settled(before, time.Now())) == len(before) })
	if err := s.churn.dropPolicy(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := s.churn.wanted()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" || len(before) == 0 {
		t.Errorf("without policy: %s", diff)
	}
	if err := s.churn.deleteTemplate(ctx); err != nil {
		t.Fatal(err)
	}
	if after, err = s.churn.wanted(); err != nil || len(after) > 0 {
		t.Errorf("without template: %v, %v", after, err)
	}
}

func TestCleaned(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Deployment", "status": map[string]any{"replicas": int64(1)}, "spec": map[string]any{"replicas": int64(1)},
		"metadata": map[string]any{"name": "a", "uid": "u", "resourceVersion": "1", "generation": int64(3),
			"labels":          map[string]any{"x": "y"},
			"ownerReferences": []any{map[string]any{"uid": "v"}}},
	}}
	want := map[string]any{
		"kind": "Deployment", "spec": map[string]any{"replicas": int64(1)},
		"metadata": map[string]any{"name": "a", "labels": map[string]any{"x": "y"}, "ownerReferences": []any{map[string]any{"uid": "v"}}},
	}
	if diff := cmp.Diff(want, cleaned(o).Object); diff != "" {
		t.Error(diff)
	}
}

func TestInsist(t *testing.T) {
	c, tries := newChurn(nil, nil, 1, nil), 0
	err := c.insist(t.Context(), func(context.Context) error {
		if tries++; tries < 3 {
			return apierrors.NewServiceUnavailable("away")
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("%d tries, %v", tries, err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := c.insist(ended, func(context.Context) error { return errors.New("no") }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

func TestResults(t *testing.T) {
	results := []result{
		{scenario: "kills", counts: counts{hub: 7, api: 3, paused: 1, ended: 2,
			leads: []time.Duration{time.Second, 4 * time.Second, 2 * time.Second}}, operations: 500, converged: 2 * time.Second},
		{scenario: "older", operations: 20, violations: []check.Violation{{Fault: check.Deleted, What: "x"}}},
	}
	want := []resultfile.Row{
		{Case: "kills", Variant: "pelago", Metric: "violations", Unit: "1", N: 500},
		{Case: "kills", Variant: "pelago", Metric: "kills", Unit: "1", N: 1, Median: 10, Min: 10, Max: 10},
		{Case: "kills", Variant: "pelago", Metric: "pauses", Unit: "1", N: 1, Median: 1, Min: 1, Max: 1},
		{Case: "kills", Variant: "pelago", Metric: "ended_by_itself", Unit: "1", N: 1, Median: 2, Min: 2, Max: 2},
		{Case: "kills", Variant: "pelago", Metric: "converged_s", Unit: "s", N: 1, Median: 2, Min: 2, Max: 2},
		{Case: "kills", Variant: "pelago", Metric: "leads_again_s", Unit: "s", N: 3, Median: 2, Min: 1, Max: 4},
		{Case: "older", Variant: "pelago", Metric: "violations", Unit: "1", N: 20, Median: 1, Min: 1, Max: 1},
	}
	if diff := cmp.Diff(want, rows(results)); diff != "" {
		t.Error(diff)
	}
	if err := verdict(results); err == nil || !strings.Contains(err.Error(), "older: 1 violations, the first: deleted: x") {
		t.Errorf("verdict %v", err)
	}
	if err := verdict(results[:1]); err != nil {
		t.Errorf("verdict %v", err)
	}
}

// Stopped in the middle of a change, the churn makes it to its end: a request that is cut off may
// still be carried out.
func TestChangesEndWhole(t *testing.T) {
	stop := make(chan struct{})
	asked := 0
	c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if asked++; asked == 1 {
				close(stop)
				return apierrors.NewServiceUnavailable("away")
			}
			return c.Create(ctx, o, opts...)
		},
	}).Build()
	users := newChurn(c, check.NewHistory(time.Minute), 1, []string{"member1"})
	group := name{Namespace: "chaos-a", Name: "group-0"}
	users.policies[group] = &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: group.Namespace, Name: group.Name}}
	users.policies[group].Spec.ResourceSelectors = selectors(group.Name)
	users.policies[group].Spec.Placement.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"member1"}}
	users.steps = []step{{1, users.newTemplate}}
	if err := users.run(t.Context(), time.Millisecond, stop); err != nil {
		t.Fatal(err)
	}
	var there appsv1.DeploymentList
	if err := c.List(t.Context(), &there); err != nil || len(there.Items) != 1 || len(users.deployments) != 1 {
		t.Errorf("%d Deployments, %d in the model, %v", len(there.Items), len(users.deployments), err)
	}
}
