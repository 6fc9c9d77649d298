package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/test/chaos/check"
)

// afterwards is how long a restored hub is watched once all is as it should be: deletions that come
// late are wrong as well.
const afterwards = 30 * time.Second

// older restores the hub from a backup that is older than the members: what came since then is
// unknown to it.
func (s *stage) older(ctx context.Context) ([]check.Violation, error) {
	if violations, err := s.churnFor(ctx, s.options.churn); err != nil || len(violations) > 0 {
		return violations, err
	}
	backup := filepath.Join(s.dir, "backup")
	if err := s.set.Server.Backup(ctx, backup); err != nil {
		return nil, err
	}
	if violations, err := s.churnFor(ctx, s.options.churn); err != nil || len(violations) > 0 {
		return violations, err
	}
	s.replica.retire()
	s.history.RequireAll()
	if err := s.set.Server.Restore(ctx, backup); err != nil {
		return nil, err
	}
	return s.restored(ctx, true)
}

// What a dump holds, in the order in which it is applied. The second list is what the hub itself
// has made of the first.
var (
	usersKinds = []schema.GroupVersionResource{
		{Version: "v1", Resource: "secrets"},
		{Group: "cluster.karmada.io", Version: "v1alpha1", Resource: "clusters"},
		{Group: "policy.karmada.io", Version: "v1alpha1", Resource: "overridepolicies"},
		{Group: "policy.karmada.io", Version: "v1alpha1", Resource: "propagationpolicies"},
		{Version: "v1", Resource: "configmaps"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
	}
	hubsKinds = []schema.GroupVersionResource{
		{Group: "work.karmada.io", Version: "v1alpha1", Resource: "works"},
		{Group: "work.karmada.io", Version: "v1alpha2", Resource: "resourcebindings"},
	}
)

// newUIDs exports the hub's objects, empties the hub, reinstalls it and imports them: all objects
// then have other UIDs, and their owner references are dangling. With everything, this includes
// bindings and Works; without, the hub has to recreate them.
func (s *stage) newUIDs(ctx context.Context, everything bool) ([]check.Violation, error) {
	if violations, err := s.moved(ctx, everything, s.emptyBackup()); err != nil || len(violations) > 0 {
		return violations, err
	}
	return s.restored(ctx, false)
}

// newHub moves the hub into a new cluster with another id: the objects in the members then belong
// to a hub that it does not know. All Works must report this with the remedy; once that is applied,
// everything continues as before.
func (s *stage) newHub(ctx context.Context) ([]check.Violation, error) {
	var system corev1.Namespace
	if err := s.hub.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &system); err != nil {
		return nil, fmt.Errorf("read the hub's id: %w", err)
	}
	former := string(system.UID)
	nothing := filepath.Join(s.dir, "nothing")
	if err := os.Mkdir(nothing, 0o755); err != nil {
		return nil, fmt.Errorf("make an empty backup: %w", err)
	}
	if violations, err := s.moved(ctx, true, nothing); err != nil || len(violations) > 0 {
		return violations, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if err := s.told(ctx, pelagov1alpha1.AnnotationHubID+"="+former); err != nil {
		return s.history.Violations(), err
	}
	err := s.churn.insist(ctx, changing(s.churn, &system, func(ns *corev1.Namespace) {
		metav1.SetMetaDataAnnotation(&ns.ObjectMeta, pelagov1alpha1.AnnotationHubID, former)
	}))
	if err != nil {
		return nil, err
	}
	s.replica.retire()
	return s.restored(ctx, false)
}

// told waits until all Works of the templates report that they are not applied, with certain words.
func (s *stage) told(ctx context.Context, words string) error {
	for end := time.Now().Add(s.options.limit); ; {
		var works workv1alpha1.WorkList
		err := s.hub.List(ctx, &works)
		silent, all := []string{}, 0
		for _, w := range works.Items {
			place, e := placeOf(&w)
			if err = errors.Join(err, e); place == nil {
				continue
			}
			all++
			c := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied)
			if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, words) {
				silent = append(silent, w.Namespace+"/"+w.Name)
			}
		}
		switch {
		case err == nil && all > 0 && len(silent) == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("of %d Works these do not say %q: %v, %w", all, words, silent, err)
		}
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// moved lets the hub do its work, takes it down, and puts its objects into what is left of a
// backup.
func (s *stage) moved(ctx context.Context, everything bool, backup string) ([]check.Violation, error) {
	if violations, err := s.churnFor(ctx, s.options.churn); err != nil || len(violations) > 0 {
		return violations, err
	}
	s.replica.retire()
	hub, err := dynamic.NewForConfig(s.set.Server.Config())
	if err != nil {
		return nil, fmt.Errorf("connect to the hub: %w", err)
	}
	resources := usersKinds
	if everything {
		resources = append(append([]schema.GroupVersionResource{}, hubsKinds...), usersKinds...)
	}
	dump, err := export(ctx, hub, resources)
	if err != nil {
		return nil, err
	}
	s.history.RequireAll()
	if err := s.set.Server.Restore(ctx, backup); err != nil {
		return nil, err
	}
	if err := s.set.Init(ctx); err != nil {
		return nil, err
	}
	return nil, s.importAll(ctx, hub, dump)
}

// item is an exported object.
type item struct {
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured
}

// export reads objects and takes from them what only their API server knew, as `kubectl get -o
// yaml` and a cleaning do.
func export(ctx context.Context, hub dynamic.Interface, resources []schema.GroupVersionResource) (dump []item, err error) {
	for _, r := range resources {
		list, err := hub.Resource(r).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("export %s: %w", r.Resource, err)
		}
		for _, o := range list.Items {
			if o.GetDeletionTimestamp() == nil && exported(&o) {
				dump = append(dump, item{r, cleaned(&o)})
			}
		}
	}
	return dump, nil
}

// exported leaves out what the controllers of a hub make by themselves.
func exported(o *unstructured.Unstructured) bool {
	if o.GetKind() == "Secret" {
		kind, _, _ := unstructured.NestedString(o.Object, "type") // what is no text is no token's
		return o.GetNamespace() == "karmada-cluster" && kind != string(corev1.SecretTypeServiceAccountToken)
	}
	return o.GetKind() != "ConfigMap" || ours(o.GetNamespace(), o.GetName())
}

func cleaned(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	delete(o.Object, "status")
	return o
}

// importAll makes the objects of a dump, and their namespaces.
func (s *stage) importAll(ctx context.Context, hub dynamic.Interface, dump []item) error {
	made := map[string]bool{}
	for _, i := range dump {
		if ns := i.object.GetNamespace(); ns != "" && !made[ns] {
			made[ns] = true
			if err := s.churn.insist(ctx, s.churn.making(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})); err != nil {
				return err
			}
		}
		_, err := hub.Resource(i.resource).Namespace(i.object.GetNamespace()).Create(ctx, i.object, metav1.CreateOptions{})
		if client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("import %s %s/%s: %w", i.object.GetKind(), i.object.GetNamespace(), i.object.GetName(), err)
		}
	}
	return nil
}

// churnFor makes changes for a while and waits until all is as it should be.
func (s *stage) churnFor(ctx context.Context, d time.Duration) ([]check.Violation, error) {
	stop := make(chan struct{})
	defer time.AfterFunc(d, func() { close(stop) }).Stop()
	if err := s.churn.run(ctx, s.options.every, stop); err != nil {
		return nil, err
	}
	if err := s.churn.settle(ctx); err != nil {
		return nil, err
	}
	violations, _, err := s.converged(ctx, false)
	return append(violations, s.history.Violations()...), err
}

// start starts the hub and waits until it has found the members.
func (s *stage) start(ctx context.Context) (err error) {
	if s.replica, err = startReplica(s.set, "pelago-hub"); err != nil {
		return err
	}
	return s.withLastWords(s.set.AwaitReady(ctx))
}

// restored starts the hub on what was restored, and waits until all that it knows is in the
// members; nothing may have been deleted then, and for a while longer.
func (s *stage) restored(ctx context.Context, orphans bool) ([]check.Violation, error) {
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	violations, _, err := s.converged(ctx, orphans)
	if err != nil {
		return violations, err
	}
	if err := wait(ctx, afterwards); err != nil {
		return violations, err
	}
	late, err := s.compare(ctx, orphans)
	if len(violations) == 0 {
		violations = late
	}
	return append(violations, s.history.Violations()...), err
}
