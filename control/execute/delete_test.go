package execute

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

const namespace = `{apiVersion: v1, kind: Namespace, metadata: {name: NS-made}}`

// TestDelete: when an object in a member is deleted, and when it stays.
func TestDelete(t *testing.T) {
	server := apiserver.Start(t, apiserver.HubControllers())

	deleted := func(t *testing.T, l *lab, w *workv1alpha1.Work) {
		t.Helper()
		l.hub.Remove(w)
		await.True(t, "Work "+w.Name+" is gone", func() bool { return l.gone(w.Name) })
	}

	made := func(l *lab) (ns, inner *workv1alpha1.Work) {
		l.Helper()
		ns = l.work("ns", namespace)
		l.applied("ns")
		inner = l.work("inner", strings.ReplaceAll(configMap, "NS", "NS-made"))
		l.applied("inner")
		return ns, inner
	}

	t.Run("with the Work goes its object, and what depends on it", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", deployment)
		l.applied("w")
		u := l.there(deployment)
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "nginx", UID: u.GetUID()}
		l.member.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: l.ns, Name: "dependent", OwnerReferences: []metav1.OwnerReference{owner},
		}})
		deleted(t, l, w)
		if l.find(deployment) != nil {
			t.Error("the Work went before its object")
		}
		await.True(t, "the dependent is gone", func() bool {
			return l.find(`{apiVersion: v1, kind: ConfigMap, metadata: {name: dependent, namespace: NS}}`) == nil
		})
	})

	t.Run("the Work waits for an object that a finalizer holds", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", configMap)
		l.applied("w")
		l.patch(configMap, "them", `{"metadata":{"finalizers":["example.io/hold"]}}`)
		l.hub.Remove(w)
		await.True(t, "the object is being deleted", func() bool { return l.there(configMap).GetDeletionTimestamp() != nil })
		l.failed("w", "example.io/hold")
		l.patch(configMap, "them", `{"metadata":{"finalizers":null}}`)
		await.True(t, "the Work is gone", func() bool { return l.gone("w") })
	})

	t.Run("a member that refuses the deletion: the Work says so, and waits", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", configMap)
		l.applied("w")
		l.wire.set(on("/configmaps/c", http.StatusForbidden, metav1.StatusReasonForbidden, nil))
		l.hub.Remove(w)
		l.failed("w", "forbids ConfigMap", "give pelago's account")
		l.wire.set(nil)
		await.True(t, "the Work is gone", func() bool { return l.gone("w") })
		if l.find(configMap) != nil {
			t.Error("the Work went before its object")
		}
	})

	t.Run("an object that has become somebody else's, or another Work's, stays", func(t *testing.T) {
		for _, mine := range []string{
			`{"metadata":{"annotations":{"pelago.io/hub-id":"another"}}}`,
			`{"metadata":{"annotations":{"pelago.io/hub-id":null},"labels":{"karmada.io/managed":null}}}`,
			`{"metadata":{"annotations":{"work.karmada.io/name":"another"}}}`,
		} {
			l := newLab(t, server)
			stop := l.run()
			w := l.work("w", configMap)
			l.applied("w")
			stop()
			u := l.patch(configMap, "them", mine)
			l.run()
			deleted(t, l, w)
			if left := l.find(configMap); left == nil || left.GetUID() != u.GetUID() {
				t.Errorf("deleted after %s", mine)
			}
		}
	})

	t.Run("another object of the name, made between the look and the delete, stays", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", configMap)
		l.applied("w")
		var swapped atomic.Pointer[types.UID]
		l.wire.set(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete && swapped.Load() == nil {
				l.member.Remove(l.object(configMap))
				uid := l.foreign(configMap, "kubectl").GetUID()
				swapped.Store(&uid)
			}
			return nil, nil
		})
		deleted(t, l, w)
		if u := l.find(configMap); u == nil || swapped.Load() == nil || u.GetUID() != *swapped.Load() {
			t.Error("the other object was deleted")
		}
	})

	t.Run("absent, suppressed, or a manifest that cannot be read: only the finalizer goes", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", configMap)
		l.applied("w")
		l.edit("w", func(w *workv1alpha1.Work) {
			w.Labels = map[string]string{workv1alpha1.LabelInstruction: workv1alpha1.InstructionSuppressed}
		})
		deleted(t, l, w)
		l.there(configMap)
		bad := l.work("bad", configMap, func(w *workv1alpha1.Work) { w.Spec.Workload.Manifests = nil })
		l.failed("bad", "holds no manifest")
		deleted(t, l, bad)
	})

	t.Run("a manifest that has become invalid after it was applied: its object is deleted", func(t *testing.T) {
		prune := func(text pelagov1alpha1.Expression) []pelagov1alpha1.KindRules {
			k := pelagov1alpha1.KindRules{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
			k.Spec.Kinds = []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}}
			k.Spec.Rules.Prune = text
			return []pelagov1alpha1.KindRules{k}
		}
		for name, tt := range map[string]struct {
			spoil       func(*lab, *kinds.Custom)
			says, other string // what the Work says, and another one for the same object
		}{
			"member-owned": {func(l *lab, _ *kinds.Custom) {
				owned := "annotations: {pelago.io/member-owned: spec/replicas}, "
				l.manifest("w", strings.Replace(deployment, "metadata: {", "metadata: {"+owned, 1))
			}, "no RFC 6901 pointer", "belongs to Work w as well"},
			"prune": {func(l *lab, rules *kinds.Custom) {
				rules.Set(prune("{'spec': object.spec.nothing}"))
				l.manifest("w", strings.Replace(deployment, "replicas: 2", "replicas: 3", 1))
			}, "rule prune of KindRules mine", "rule prune of KindRules mine"},
		} {
			t.Run(name, func(t *testing.T) {
				l := newLab(t, server)
				rules := kinds.NewCustom()
				rules.Set(nil)
				l.run(func(o *Options) { o.Interpreter = rules.Interpreter() })
				w := l.work("w", deployment)
				l.applied("w")
				tt.spoil(l, rules)
				l.failed("w", tt.says)
				l.work("other", deployment)
				l.failed("other", tt.other)
				deleted(t, l, l.see("other"))
				l.there(deployment)
				deleted(t, l, w)
				if l.find(deployment) != nil {
					t.Error("the Work went before its object")
				}
			})
		}
	})

	t.Run("#505: preserveResourcesOnDeletion leaves the object, without our marks", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", configMap, func(w *workv1alpha1.Work) { yes := true; w.Spec.PreserveResourcesOnDeletion = &yes })
		l.applied("w")
		uid := l.there(configMap).GetUID()
		l.patch(configMap, "them", `{"metadata":{"labels":{"theirs":"x"},"annotations":{"theirs":"x"}}}`)
		deleted(t, l, w)
		u := l.there(configMap)
		if u.GetUID() != uid || len(u.GetLabels()) != 1 || len(u.GetAnnotations()) != 1 || value(u, "data") != "map[a:1 b:2]" {
			t.Errorf("it is %v %v %v", u.GetLabels(), u.GetAnnotations(), value(u, "data"))
		}
	})

	t.Run("a namespace that we made goes when nothing of others is in it", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w, inner := made(l)
		await.True(t, "the namespace has what each one has", func() bool {
			return l.find(`{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: NS-made}}`) != nil
		})
		l.hub.Remove(w)
		await.Never(t, 500*time.Millisecond, "the namespace is deleted with an object of a Work that is alive", func() bool {
			return l.there(namespace).GetDeletionTimestamp() != nil
		})
		deleted(t, l, inner)
		await.True(t, "the namespace's Work is gone", func() bool { return l.gone("ns") })
		if l.find(namespace) != nil {
			t.Error("the namespace is still there")
		}
	})

	t.Run("a namespace that was made again at the hub stays with our marks, for its next Work", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w, inner := made(l)
		w = l.see(w.Name)
		old := w.DeepCopy()
		e := l.execution
		removal := &task{Execution: e, work: old, state: e.states.get(w.Name, w.UID), began: time.Now()}
		inside := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{pelagov1alpha1.AnnotationHubID: hubID,
			workv1alpha1.AnnotationWorkNamespace: w.Namespace, workv1alpha1.AnnotationWorkName: inner.Name}}}
		// A namespace that only leaves this cluster waits for its Works, which are older.
		old.DeletionTimestamp = &metav1.Time{Time: l.see(inner.Name).CreationTimestamp.Add(time.Second)}
		if exists, since := removal.workOf(t.Context(), inside); !exists || since {
			t.Errorf("the Work of an object before the namespace's deletion: exists %t, made since %t", exists, since)
		}
		// no test waits that long
		old.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-collectorTime)}
		if err := removal.deleteObject(t.Context(), l.object(namespace)); err != nil {
			t.Fatalf("the Work is kept: %v", err)
		}
		u := l.there(namespace)
		if u.GetDeletionTimestamp() != nil || ownerOf(u, hubID, client.ObjectKeyFromObject(w)) != oursOfWork {
			t.Errorf("it is %v", u.Object["metadata"])
		}
		l.heard("stays in cluster", "holds objects of Works")
		deleted(t, l, inner)
		deleted(t, l, w)
		if l.find(namespace) != nil {
			t.Error("the namespace is still there")
		}
	})

	t.Run("a namespace goes although an object and its Work go while it is being looked into", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w, inner := made(l)
		var listed atomic.Bool
		gone := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(gone) })
		defer goOn()
		l.wire.set(func(r *http.Request) (*http.Response, error) {
			// ConfigMaps come before Secrets
			if r.URL.Path == "/api/v1/namespaces/"+l.ns+"-made/secrets" {
				listed.Store(true)
				<-gone
			}
			return nil, nil
		})
		l.hub.Remove(w)
		await.True(t, "the namespace's ConfigMaps are listed", listed.Load)
		deleted(t, l, inner)
		goOn()
		await.True(t, "the namespace's Work is gone", func() bool { return l.gone("ns") })
		if l.find(namespace) != nil {
			t.Error("the namespace is still there")
		}
	})

	t.Run("a namespace with what others put into it stays, without our marks", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("ns", namespace)
		l.applied("ns")
		// the mark stays through an update
		l.manifest("ns", strings.Replace(namespace, "NS-made", "NS-made, labels: {x: y}", 1))
		l.applied("ns")
		l.foreign(`{apiVersion: v1, kind: Secret, metadata: {name: theirs, namespace: NS-made}}`, "kubectl")
		deleted(t, l, w)
		u := l.there(namespace)
		if u.GetDeletionTimestamp() != nil || u.GetAnnotations()[pelagov1alpha1.AnnotationHubID] != "" {
			t.Errorf("it is %v", u.Object["metadata"])
		}
		l.heard("stays in cluster", "Secret theirs")
	})

	t.Run("a namespace that was there before stays", func(t *testing.T) {
		l := newLab(t, server)
		l.foreign(namespace, "kubectl")
		l.run()
		w := l.work("ns", overwriting(l, namespace))
		l.applied("ns")
		deleted(t, l, w)
		if u := l.there(namespace); u.GetDeletionTimestamp() != nil || u.GetLabels()["karmada.io/managed"] != "" {
			t.Errorf("it is %v", u.Object["metadata"])
		}
		l.heard("stays in cluster", "the hub did not create it")
	})

	t.Run("a namespace waits for aggregated APIs that do not answer, but for metrics", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("ns", namespace)
		l.applied("ns")
		unavailable := func(group string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
				"metadata": map[string]any{"name": "v1beta1." + group}, "spec": map[string]any{"group": group, "version": "v1beta1",
					"groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
					"service": map[string]any{"namespace": "default", "name": "nothing"}}}}
		}
		metrics, other := unavailable("metrics.k8s.io"), unavailable("aggregated.example.com")
		l.member.Make(metrics, other)
		failing := func() map[schema.GroupVersion]error {
			_, err := l.execution.member.discovery.ServerPreferredNamespacedResources()
			var partly *discovery.ErrGroupDiscoveryFailed
			if !errors.As(err, &partly) {
				return nil
			}
			return partly.Groups
		}
		await.True(t, "both fail", func() bool { return len(failing()) == 2 })
		l.hub.Remove(w)
		await.Never(t, time.Second, "the Work is gone", func() bool { return l.gone("ns") })
		if u := l.there(namespace); u.GetDeletionTimestamp() != nil || ownerOf(u, hubID, client.ObjectKeyFromObject(w)) != oursOfWork {
			t.Errorf("it is %v", u.Object["metadata"])
		}
		l.member.Remove(other)
		await.True(t, "the namespace is deleted", func() bool { return l.there(namespace).GetDeletionTimestamp() != nil })
		if len(failing()) != 1 {
			t.Errorf("these fail: %v", failing())
		}
		l.member.Remove(metrics) // the member's own controller waits for all groups
		await.True(t, "the Work is gone", func() bool { return l.gone("ns") })
	})

	t.Run("a namespace of which not everything can be seen stays", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("ns", namespace)
		l.applied("ns")
		l.wire.set(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "-made/secrets") {
				r = r.Clone(r.Context())
				r.Method = "LIST" // on answers what is no GET
				return on("-made/secrets", http.StatusForbidden, metav1.StatusReasonForbidden, nil)(r)
			}
			return nil, nil
		})
		deleted(t, l, w)
		if l.there(namespace).GetDeletionTimestamp() != nil {
			t.Error("deleted, although Secrets could not be seen")
		}
		l.heard("stays in cluster", "cannot be seen")
	})
}
