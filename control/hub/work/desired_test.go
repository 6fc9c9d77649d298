package work_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// TestOrder: eviction and targets as in Karmada.
func TestOrder(t *testing.T) {
	evict := func(from string, mode policyv1alpha1.PurgeMode) workv1alpha2.GracefulEvictionTask {
		return workv1alpha2.GracefulEvictionTask{FromCluster: from, PurgeMode: mode, Reason: "TaintUntolerated", Producer: "test"}
	}
	for _, c := range []struct {
		name   string
		change func(*world) // after m1 and m2 have their Works
		want   string
	}{
		{"nothing new", func(*world) {}, ""},
		{"one more", func(w *world) { w.spec.Clusters = append(w.spec.Clusters, on("m3", 1)) }, "create m3"},
		{"one less", func(w *world) { w.spec.Clusters = w.spec.Clusters[:1] }, "delete m2"},
		{"moved: the new one first", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
		}, "create m3, delete m2"},
		{"other replicas", func(w *world) { w.spec.Clusters[0].Replicas = 5 }, "update m1"},
		{"Directly: nothing is written until it is gone", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 5), on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Directly"))
		}, "purge m2, wait for m2"},
		{"Directly by its former name", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Immediately"))
		}, "purge m2, wait for m2"},
		{"Directly, deletion under way", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Directly"))
			w.work("m2").DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}, "purge m2, wait for m2"},
		{"Directly, gone", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Directly"))
			w.remove("m2")
		}, "create m3"},
		{"Directly from a cluster that has left: nothing to wait for", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Directly"))
			delete(w.Clusters, "m2")
		}, "create m3"},
		{"Gracefully: it stays until the task ends", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Gracefully"))
		}, "create m3"},
		{"Never: it stays until a human ends the task", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Never"))
		}, "create m3"},
		{"a task of a cluster that is a target again", func(w *world) {
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m2", "Directly"))
		}, ""},
		{"replicas return to another cluster: the former ones stay", func(w *world) {
			// m1 has had 2, m2 1
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 1), on("m3", 2)}
			for cluster, replicas := range map[string]int32{"m1": 2, "m2": 1} {
				task := evict(cluster, "Gracefully")
				task.Reason, task.Replicas = workv1alpha2.EvictionReasonFailback, &replicas
				w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, task)
			}
		}, "create m3"},
		{"required by another binding", func(w *world) {
			w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x", Clusters: []workv1alpha2.TargetCluster{on("m3", 7)}}}
		}, "create m3"},
		{"a target whose cluster is leaving is left as it is, and nothing that runs is taken away for it", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 5), on("m3", 1)}
			delete(w.Clusters, "m3")
		}, "update m1"},
		{"a cluster that is not there is no reason to delete its Work", func(w *world) {
			w.spec.Clusters = w.spec.Clusters[:1]
			delete(w.Clusters, "m2")
		}, ""},
		{"a Work that is being deleted is made again once it is gone", func(w *world) {
			w.work("m2").DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}, ""},
		{"the override of one cluster fails: it stays, the others go on", func(w *world) {
			w.spec.Clusters[0].Replicas = 5
			w.spec.Clusters[1].Replicas = 5
			w.override("m2", policyv1alpha1.PlaintextOverrider{Path: "/spec/nothing/there", Operator: "remove"})
		}, "update m1, failed m2"},
		{"the override of a new cluster fails: what runs where it was stays", func(w *world) {
			w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
			w.override("m3", policyv1alpha1.PlaintextOverrider{Path: "/spec/nothing/there", Operator: "remove"})
		}, "failed m3"},
		{"no decision yet: Works of a hub before its restore stay", func(w *world) { w.spec.Clusters = nil }, ""},
		{"no cluster any more by decision", func(w *world) {
			w.spec.Clusters = nil
			w.decided()
		}, "delete m1, delete m2"},
		{"a dependent whose owners have no decision", func(w *world) {
			w.spec.Clusters, w.spec.Placement = nil, nil
			w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x"}, {Name: "y"}}
			w.Owners = append(w.Owners, owner("x", w.decision()), owner("y", ""))
		}, ""},
		{"… one of which is not there", func(w *world) {
			w.spec.Clusters, w.spec.Placement = nil, nil
			w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x"}, {Name: "y"}}
			w.Owners = append(w.Owners, owner("x", w.decision()))
		}, ""},
		{"… one of which has got a cluster that the dependent has not got yet", func(w *world) {
			w.spec.Clusters, w.spec.Placement = nil, nil
			w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x"}}
			w.Owners = append(w.Owners, owner("x", w.decision(), on("m1", 1)))
		}, ""},
		{"a dependent whose owners run nowhere by decision", func(w *world) {
			w.spec.Clusters, w.spec.Placement = nil, nil
			w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x"}, {Name: "y"}}
			w.Owners = append(w.Owners, owner("x", w.decision()), owner("y", w.decision()))
		}, "delete m1, delete m2"},
		{"… and others that it does not name", func(w *world) {
			w.spec.Clusters, w.spec.Placement = nil, nil
			w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x"}}
			w.Owners = append(w.Owners, owner("x", w.decision()))
			w.Binding.SetAnnotations(map[string]string{workv1alpha2.AnnotationRequiredByMore: "1"})
		}, ""},
		{"two Works of one template in a cluster: the one of this binding goes on", func(w *world) {
			second := w.work("m1").DeepCopy()
			second.Name, second.Labels[workv1alpha2.LabelBindingID] = "a", "b0"
			w.Works = append(w.Works, second)
		}, "delete m1"},
		{"a Work without binding has another writer: where the binding has no target", func(w *world) {
			w.Works = append(w.Works, alone(w, "m3"))
		}, ""},
		{"… where the template leaves, and nothing waits for it", func(w *world) {
			w.Works = append(w.Works, alone(w, "m3"))
			w.spec.GracefulEvictionTasks = append(w.spec.GracefulEvictionTasks, evict("m3", "Directly"))
		}, ""},
		{"… beside that of the binding, though older", func(w *world) {
			w.Works = append(w.Works, alone(w, "m1"))
			w.work("m1").Labels[workv1alpha2.LabelBindingID] = "b0"
			w.work("m1").CreationTimestamp = metav1.Time{Time: time.Unix(2, 0)}
		}, "update m1"},
		{"… and is taken over in a target", func(w *world) {
			w.spec.Clusters = append(w.spec.Clusters, on("m3", 1))
			w.Works = append(w.Works, alone(w, "m3"))
		}, "update m3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nginx, on("m1", 2), on("m2", 1))
			w.settle()
			c.change(w)
			if got := says(w.plan()); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// owner is a binding that requires the template.
func owner(name, decision string, on ...workv1alpha2.TargetCluster) binding.Binding {
	b := binding.New(types.NamespacedName{Name: name})
	b.SetAnnotations(map[string]string{workv1alpha2.AnnotationDecision: decision})
	b.Spec.Clusters = on
	return b
}

// alone is a Work of the template's object that was made for no binding, as for a
// MultiClusterService.
func alone(w *world, cluster string) *workv1alpha1.Work {
	x := w.work("m1").DeepCopy()
	x.Namespace, x.Name = workv1alpha2.ExecutionNamespace(cluster), "alone"
	x.Annotations = nil
	delete(x.Labels, workv1alpha2.LabelBindingID)
	return x
}

// TestPreservedState: as in Karmada, labels of an eviction task go to the
// only cluster that the template moves to, as the user's own do.
func TestPreservedState(t *testing.T) {
	task := func(mode policyv1alpha1.PurgeMode, state string, before ...string) workv1alpha2.GracefulEvictionTask {
		return workv1alpha2.GracefulEvictionTask{FromCluster: "m1", PurgeMode: mode, ClustersBeforeFailover: before,
			PreservedLabelState: map[string]string{"jobid": state}}
	}
	directly, gracefully := policyv1alpha1.PurgeModeDirectly, policyv1alpha1.PurgeModeGracefully
	for _, c := range []struct {
		name    string
		tasks   []workv1alpha2.GracefulEvictionTask
		targets []workv1alpha2.TargetCluster
		want    string
	}{
		{"to the next cluster", []workv1alpha2.GracefulEvictionTask{task(directly, "17", "m1")}, clusters("m2"), "m2=17"},
		{"by the former name of the mode", []workv1alpha2.GracefulEvictionTask{task("Immediately", "17", "m1")},
			clusters("m2"), "m2=17"},
		{"the newest", []workv1alpha2.GracefulEvictionTask{task(directly, "16", "m3"), task(directly, "17", "m1")},
			clusters("m2"), "m2=17"},
		{"the newest is none", []workv1alpha2.GracefulEvictionTask{task(directly, "17", "m1"), task(gracefully, "", "m1")},
			clusters("m2"), "m2="},
		{"not to one that had it", []workv1alpha2.GracefulEvictionTask{task(directly, "17", "m1", "m2")}, clusters("m2"), "m2="},
		{"not to several", []workv1alpha2.GracefulEvictionTask{task(directly, "17", "m1")}, clusters("m2", "m3"), "m2= m3="},
		{"not while both run", []workv1alpha2.GracefulEvictionTask{task(gracefully, "17", "m1")}, clusters("m2"), "m2="},
		{"nothing is moved", nil, clusters("m2"), "m2="},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nginx, c.targets...)
			w.spec.GracefulEvictionTasks = c.tasks
			var got []string
			for _, x := range w.plan().Create {
				// "" differs from what is wanted
				cluster, _ := workv1alpha2.ClusterOfNamespace(x.Namespace)
				labels := holds(t, x).GetLabels()
				got = append(got, cluster+"="+labels["jobid"])
				if labels["app"] != "nginx" {
					t.Errorf("the template's own labels are %v", labels)
				}
			}
			if diff := cmp.Diff(c.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestShares: replicas of each cluster and completions of a divided Job.
func TestShares(t *testing.T) {
	dividedPlacement := &policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided,
	}}
	for _, c := range []struct {
		name, template string
		targets        []workv1alpha2.TargetCluster
		change         func(*world)
		fields         []string
		want           map[string]string
	}{
		{
			name: "replicas are the decision's, also duplicated", template: nginx,
			targets: []workv1alpha2.TargetCluster{on("m1", 2), on("m2", 0)},
			fields:  []string{"replicas"}, want: map[string]string{"m1": "[2]", "m2": "[0]"},
		},
		{
			name: "where only an owner asks for it, the template's", template: nginx, targets: []workv1alpha2.TargetCluster{on("m1", 2)},
			change: func(w *world) {
				owner := []workv1alpha2.TargetCluster{on("m1", 7), on("m3", 7)}
				w.spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "x", Clusters: owner}}
			},
			fields: []string{"replicas"}, want: map[string]string{"m1": "[2]", "m3": "[9]"},
		},
		{
			name: "a divided Job", template: job, targets: []workv1alpha2.TargetCluster{on("m1", 2), on("m2", 1)},
			change: func(w *world) { w.spec.Placement = dividedPlacement },
			fields: []string{"parallelism", "completions"}, want: map[string]string{"m1": "[2 6]", "m2": "[1 3]"},
		},
		{
			name: "a cluster without a part of a divided Job", template: job,
			targets: []workv1alpha2.TargetCluster{on("m1", 3), on("m2", 0)},
			change:  func(w *world) { w.spec.Placement = dividedPlacement },
			fields:  []string{"parallelism", "completions"}, want: map[string]string{"m1": "[3 9]", "m2": "[0 0]"},
		},
		{
			name: "a duplicated Job", template: job, targets: []workv1alpha2.TargetCluster{on("m1", 3), on("m2", 3)},
			fields: []string{"parallelism", "completions"}, want: map[string]string{"m1": "[3 9]", "m2": "[3 9]"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.template, c.targets...)
			if c.change != nil {
				c.change(w)
			}
			got := map[string]string{}
			for _, x := range w.plan().Create {
				spec := holds(t, x).Object["spec"].(map[string]any)
				var values []any
				for _, f := range c.fields {
					values = append(values, spec[f])
				}
				// "" differs from what is wanted
				cluster, _ := workv1alpha2.ClusterOfNamespace(x.Namespace)
				got[cluster] = fmt.Sprint(values)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestWork: the whole of one Work: labels and annotations as in Karmada, and what is pruned.
func TestWork(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2))
	w.Template.SetFinalizers([]string{"example.com/hub"})
	w.Template.SetAnnotations(map[string]string{policyv1alpha1.AnnotationMemberOwned: "/spec/paused"})
	w.MemberOwned = ptr.To("/spec/replicas")
	w.spec.ConflictResolution = policyv1alpha1.ConflictOverwrite
	w.override("m1", policyv1alpha1.PlaintextOverrider{
		Path: "/metadata/labels/karmada.io~1managed", Operator: "add", Value: apiextensionsv1.JSON{Raw: []byte(`"no"`)},
	})
	got := w.plan().Create[0]
	held := holds(t, got)
	annotations := held.GetAnnotations()
	for ledger, keys := range map[string][]string{
		workv1alpha2.AnnotationManagedLabels:      slices.Sorted(maps.Keys(held.GetLabels())),
		workv1alpha2.AnnotationManagedAnnotations: slices.Sorted(maps.Keys(annotations)),
	} {
		if want := strings.Join(keys, ","); annotations[ledger] != want {
			t.Errorf("%s is %q, want all keys: %q", ledger, annotations[ledger], want)
		}
	}
	delete(annotations, workv1alpha2.AnnotationManagedLabels) // too long to be read below
	delete(annotations, workv1alpha2.AnnotationManagedAnnotations)
	held.SetAnnotations(annotations)
	raw, err := yaml.Marshal(held.Object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimLeft(`
apiVersion: apps/v1
kind: Deployment
metadata:
  annotations:
    pelago.io/hub-id: hub
    pelago.io/member-owned: /spec/paused,/spec/replicas
    propagationpolicy.karmada.io/name: pp
    propagationpolicy.karmada.io/namespace: default
    resourcebinding.karmada.io/name: nginx-deployment
    resourcebinding.karmada.io/namespace: default
    resourcetemplate.karmada.io/generation: "4"
    resourcetemplate.karmada.io/uid: t1
    work.karmada.io/conflict-resolution: overwrite
    work.karmada.io/name: nginx-687f7fb96f
    work.karmada.io/namespace: karmada-es-m1
  labels:
    app: nginx
    karmada.io/managed: "true"
    propagationpolicy.karmada.io/permanent-id: p1
    resourcebinding.karmada.io/permanent-id: b1
    work.karmada.io/permanent-id: w1
  name: nginx
  namespace: default
spec:
  replicas: 2
  template:
    spec:
      containers:
      - image: nginx:1
        name: web
`, "\n"), string(raw)); diff != "" {
		t.Errorf("the manifest, -want +got:\n%s", diff)
	}
	applied := `[{"policyName":"op","overriders":{"plaintext":[` +
		`{"path":"/metadata/labels/karmada.io~1managed","operator":"add","value":"no"}]}}]`
	want := metav1.ObjectMeta{
		Namespace: "karmada-es-m1", Name: "nginx-687f7fb96f", Finalizers: []string{workv1alpha1.FinalizerExecution},
		Labels: map[string]string{
			workv1alpha1.LabelWorkID: "w1", workv1alpha2.LabelBindingID: "b1", policyv1alpha1.LabelPropagationPolicyID: "p1",
		},
		Annotations: map[string]string{
			workv1alpha2.AnnotationBindingNamespace: "default", workv1alpha2.AnnotationBindingName: "nginx-deployment",
			policyv1alpha1.AnnotationPropagationPolicyNamespace: "default", policyv1alpha1.AnnotationPropagationPolicyName: "pp",
			policyv1alpha1.AnnotationAppliedOverrides: applied, policyv1alpha1.AnnotationMemberOwned: "/spec/replicas",
			// and not on the object in the member
			workv1alpha2.AnnotationTemplate: w.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate],
		},
	}
	if diff := cmp.Diff(want, got.ObjectMeta); diff != "" {
		t.Errorf("the Work, -want +got:\n%s", diff)
	}
}

// TestSettings: what of the binding and the template is passed on to the Work.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*world)
		want   map[string]string // by cluster: suspended, preserved, conflict resolution
	}{
		{"nothing", func(*world) {}, map[string]string{"m1": "false false abort", "m2": "false false abort"}},
		{"dispatching suspended", func(w *world) {
			w.spec.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{Dispatching: ptr.To(true)}}
		}, map[string]string{"m1": "true false abort", "m2": "true false abort"}},
		{"dispatching suspended for one", func(w *world) {
			w.spec.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{
				DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: []string{"m2"}},
			}}
		}, map[string]string{"m1": "false false abort", "m2": "true false abort"}},
		{"scheduling suspended is not the Works'", func(w *world) {
			w.spec.Suspension = &workv1alpha2.Suspension{Scheduling: ptr.To(true)}
		}, map[string]string{"m1": "false false abort", "m2": "false false abort"}},
		{"preserved", func(w *world) { w.spec.PreserveResourcesOnDeletion = ptr.To(true) },
			map[string]string{"m1": "false true abort", "m2": "false true abort"}},
		{"the template's conflict resolution wins", func(w *world) {
			w.spec.ConflictResolution = policyv1alpha1.ConflictOverwrite
			w.Template.SetAnnotations(map[string]string{workv1alpha1.AnnotationConflictResolution: "abort"})
		}, map[string]string{"m1": "false false abort", "m2": "false false abort"}},
		{"one that is none does not", func(w *world) {
			w.spec.ConflictResolution = policyv1alpha1.ConflictOverwrite
			w.Template.SetAnnotations(map[string]string{workv1alpha1.AnnotationConflictResolution: "maybe"})
		}, map[string]string{"m1": "false false overwrite", "m2": "false false overwrite"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nginx, on("m1", 2), on("m2", 1))
			c.change(w)
			got := map[string]string{}
			for _, x := range w.plan().Create {
				// "" differs from what is wanted
				cluster, _ := workv1alpha2.ClusterOfNamespace(x.Namespace)
				got[cluster] = fmt.Sprintf("%t %t %s",
					ptr.Deref(x.Spec.SuspendDispatching, false), ptr.Deref(x.Spec.PreserveResourcesOnDeletion, false),
					holds(t, x).GetAnnotations()[workv1alpha1.AnnotationConflictResolution])
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestPolicyGone: after the deletion of a policy Works stay as they are; a further
// cluster gets what the others have.
func TestPolicyGone(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2))
	w.MemberOwned = ptr.To("/spec/replicas")
	w.settle()

	w.MemberOwned = nil
	delete(w.Binding.GetLabels(), policyv1alpha1.LabelPropagationPolicyID)
	w.Binding.SetAnnotations(map[string]string{workv1alpha2.AnnotationTemplate: w.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate]})
	if got := says(w.plan()); got != "" {
		t.Errorf("without the policy: %s", got)
	}
	w.spec.Clusters = append(w.spec.Clusters, on("m2", 1))
	if got := holds(t, w.plan().Create[0]).GetAnnotations()[policyv1alpha1.AnnotationMemberOwned]; got != "/spec/replicas" {
		t.Errorf("a further cluster leaves %q to the member", got)
	}
}

// TestReowned: Works of a binding of before, under another id and another name, are updated in
// place.
func TestReowned(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2), on("m2", 1))
	w.settle()
	for _, x := range w.Works {
		x.UID = types.UID("uid-" + x.Namespace)
		x.Name = "as-it-was"
	}
	w.Binding.SetName("another")
	w.Binding.GetLabels()[workv1alpha2.LabelBindingID] = "b2"
	w.Template.SetUID("t2")
	plan := w.plan()
	if got := says(plan); got != "update m1, update m2" {
		t.Fatalf("got %q", got)
	}
	x := plan.Update[0]
	got := []string{string(x.UID), x.Name, x.Labels[workv1alpha2.LabelBindingID], x.Annotations[workv1alpha2.AnnotationBindingName],
		holds(t, x).GetAnnotations()[workv1alpha2.AnnotationTemplateUID]}
	if diff := cmp.Diff([]string{"uid-karmada-es-m1", "as-it-was", "b2", "another", "t2"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestForeignMarks: labels and annotations that others put on a Work stay.
func TestForeignMarks(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2))
	w.settle()
	w.work("m1").Labels["team"] = "a"
	w.work("m1").Annotations["note"] = "b"
	if got := says(w.plan()); got != "" {
		t.Fatalf("others' marks lead to %s", got)
	}
	w.spec.Clusters[0].Replicas++
	x := w.plan().Update[0]
	if x.Labels["team"] != "a" || x.Annotations["note"] != "b" {
		t.Errorf("they are gone: %v %v", x.Labels, x.Annotations)
	}
}

// TestNames: a name that a Work of another template has (its hash has 32 bits) is left to it.
func TestNames(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2), on("m2", 1))
	ref := w.spec.Resource
	w.Names.Taken[types.NamespacedName{Namespace: "karmada-es-m1", Name: workv1alpha2.WorkName(ref)}] = true
	plan := w.plan()
	got := []string{plan.Create[0].Name, plan.Create[1].Name}
	if diff := cmp.Diff([]string{workv1alpha2.AlternateWorkName(ref), workv1alpha2.WorkName(ref)}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w.Names.Taken[types.NamespacedName{Namespace: "karmada-es-m1", Name: workv1alpha2.AlternateWorkName(ref)}] = true
	if got := says(w.plan()); got != "create m2, failed m1" {
		t.Errorf("both names taken: %s", got)
	}
}
