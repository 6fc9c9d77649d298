package member_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/hubset/member"
)

var server = apiserver.NewShared()

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func start(t *testing.T, o member.Options) *member.Member {
	t.Helper()
	m, err := member.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// user is a client that writes down how each of its requests ended.
type user struct {
	client.WithWatch
	t   *testing.T
	log []string
}

func (u *user) note(what string, err error) bool {
	result := "ok"
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		result = fmt.Sprintf("%d %s", status.Status().Code, status.Status().Reason)
	} else if err != nil {
		result = err.Error()
	}
	u.log = append(u.log, what+": "+result)
	return err == nil
}

func (u *user) say(format string, args ...any) { u.log = append(u.log, fmt.Sprintf(format, args...)) }

const ns = "table"

func configMap(name string, data ...string) *unstructured.Unstructured {
	content := map[string]any{}
	for i := 0; i < len(data); i += 2 {
		content[data[i]] = data[i+1]
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": ns}, "data": content,
	}}
}

func deployment(name string, replicas int64, env ...any) *unstructured.Unstructured {
	container := map[string]any{"name": "c", "image": "i:1"}
	if env != nil {
		container["env"] = env
	}
	labels := map[string]any{"app": name}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name, "namespace": ns},
		"spec": map[string]any{
			"replicas": replicas, "selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"containers": []any{container}}},
		},
	}}
}

// again reads an object again.
func (u *user) again(o *unstructured.Unstructured) *unstructured.Unstructured {
	u.t.Helper()
	fresh := &unstructured.Unstructured{}
	fresh.SetGroupVersionKind(o.GroupVersionKind())
	if err := u.Get(u.t.Context(), client.ObjectKeyFromObject(o), fresh); err != nil {
		u.t.Fatal(err)
	}
	return fresh
}

func (u *user) apply(o *unstructured.Unstructured, manager string, opts ...client.ApplyOption) error {
	return u.Apply(u.t.Context(), client.ApplyConfigurationFromUnstructured(o), append(opts, client.FieldOwner(manager))...)
}

// table is what clients of the hub do in members.
var table = []struct {
	name string
	do   func(u *user, ctx context.Context)
}{
	{"create", func(u *user, ctx context.Context) {
		u.note("new", u.Create(ctx, configMap("create", "a", "1")))
		u.note("again", u.Create(ctx, configMap("create")))
		old := configMap("with-version")
		old.SetResourceVersion("1")
		u.note("with resourceVersion", u.Create(ctx, old))
		lost := configMap("lost")
		lost.SetNamespace("nowhere")
		u.note("without namespace", u.Create(ctx, lost))
		made := u.again(configMap("create"))
		u.say("uid %t, generation %d, data %v", made.GetUID() != "", made.GetGeneration(), made.Object["data"])
	}},
	{"typed", func(u *user, ctx context.Context) {
		labels := map[string]string{"app": "typed"}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "typed", Namespace: ns}, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		}}
		u.note("create", u.Create(ctx, d))
		d.Spec.Replicas = ptr.To[int32](4)
		u.note("update", u.Update(ctx, d))
		u.say("generation %d, replicas %d", d.Generation, *d.Spec.Replicas)
		d.Status.ObservedGeneration = 2
		u.note("status", u.Status().Update(ctx, d))
		u.say("observed %d, generation %d", d.Status.ObservedGeneration, d.Generation)
		before := d.DeepCopy()
		d.Labels = map[string]string{"x": "y"}
		u.note("strategic merge patch", u.Patch(ctx, d, client.StrategicMergeFrom(before)))
		u.say("labels %v, observed %d, generation %d", d.Labels, d.Status.ObservedGeneration, d.Generation)
		u.note("delete", u.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	}},
	{"read", func(u *user, ctx context.Context) {
		u.note("missing", u.Get(ctx, client.ObjectKey{Namespace: ns, Name: "missing"}, configMap("")))
		for i, color := range []string{"red", "blue", "red"} {
			o := configMap(fmt.Sprintf("read-%d", i))
			o.SetLabels(map[string]string{"color": color, "test": "read"})
			u.note("create", u.Create(ctx, o))
		}
		for _, selector := range []string{"test=read,color=red", "test=read,color!=red", "test in (read),color notin (green)",
			"test=read,!color"} {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
			u.note(selector, u.List(ctx, list, client.InNamespace(ns),
				&client.ListOptions{Raw: &metav1.ListOptions{LabelSelector: selector}}))
			var names []string
			for _, o := range list.Items {
				names = append(names, o.Name)
			}
			u.say("%v, version %t", names, list.ResourceVersion != "")
		}
		var byName corev1.ConfigMapList
		u.note("by name", u.List(ctx, &byName, client.InNamespace(ns), client.MatchingFields{"metadata.name": "read-1"}))
		u.say("%d", len(byName.Items))
		u.note("by a field that there is not", u.List(ctx, &byName, client.InNamespace(ns), client.MatchingFields{"data.x": "1"}))
	}},
	{"update", func(u *user, ctx context.Context) {
		o := configMap("update", "a", "1")
		u.note("create", u.Create(ctx, o))
		stale := o.DeepCopy()
		unstructured.SetNestedField(o.Object, "2", "data", "a")
		u.note("update", u.Update(ctx, o))
		u.note("stale", u.Update(ctx, stale))
		version := o.GetResourceVersion()
		u.note("unchanged", u.Update(ctx, o))
		u.say("the version stays: %t", o.GetResourceVersion() == version)
		other := o.DeepCopy()
		other.SetUID("0123")
		u.note("another uid", u.Update(ctx, other))
		blind := configMap("update", "a", "3")
		u.note("without version", u.Update(ctx, blind))
		missing := configMap("missing")
		missing.SetResourceVersion("1")
		u.note("missing", u.Update(ctx, missing))
	}},
	{"patch", func(u *user, ctx context.Context) {
		o := configMap("patch", "a", "1", "b", "1")
		u.note("create", u.Create(ctx, o))
		version := o.GetResourceVersion()
		merge := func(what, text string) {
			u.note(what, u.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text))))
			u.say("%v", u.again(o).Object["data"])
		}
		merge("merge", `{"data":{"a":"2","b":null}}`)
		merge("merge with a stale version", `{"metadata":{"resourceVersion":"`+version+`"},"data":{"a":"3"}}`)
		merge("merge with the version", `{"metadata":{"resourceVersion":"`+u.again(o).GetResourceVersion()+`"},"data":{"a":"4"}}`)
		merge("merge with another uid", `{"metadata":{"uid":"0123"},"data":{"a":"5"}}`)
		text := []byte(`[{"op":"test","path":"/data/a","value":"4"},{"op":"replace","path":"/data/a","value":"6"}]`)
		u.note("json", u.Patch(ctx, o, client.RawPatch(types.JSONPatchType, text)))
		u.note("json whose test fails", u.Patch(ctx, o, client.RawPatch(types.JSONPatchType, text)))
		u.say("%v", u.again(o).Object["data"])
		u.note("missing", u.Patch(ctx, configMap("missing"), client.RawPatch(types.MergePatchType, []byte(`{}`))))
	}},
	{"generation and status", func(u *user, ctx context.Context) {
		o := deployment("generation", 1)
		o.Object["status"] = map[string]any{"replicas": int64(9)}
		u.note("create", u.Create(ctx, o))
		show := func() {
			o = u.again(o)
			// no number is 0: the text that is compared shows it
			replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
			ready, _, _ := unstructured.NestedInt64(o.Object, "status", "readyReplicas") // likewise
			had, _, _ := unstructured.NestedInt64(o.Object, "status", "replicas")        // likewise
			u.say("generation %d, spec %d, status %d of %d, labels %v", o.GetGeneration(), replicas, ready, had, o.GetLabels())
		}
		show()
		patch := func(what, text string) {
			u.note(what, u.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text))))
			show()
		}
		patch("label", `{"metadata":{"labels":{"x":"y"}}}`)
		patch("spec", `{"spec":{"replicas":2}}`)
		patch("status by the object", `{"status":{"readyReplicas":1,"replicas":1}}`)
		u.note("status", u.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"replicas":7},"status":{"readyReplicas":1,"replicas":2}}`))))
		show()
		u.note("status of what has none", u.Status().Patch(ctx, configMap("create"), client.RawPatch(types.MergePatchType, []byte(`{}`))))
	}},
	{"apply", func(u *user, ctx context.Context) {
		u.note("new", u.apply(configMap("apply", "a", "1", "b", "1"), "pelago"))
		version := u.again(configMap("apply")).GetResourceVersion()
		u.note("the same", u.apply(configMap("apply", "a", "1", "b", "1"), "pelago"))
		u.say("the version stays: %t", u.again(configMap("apply")).GetResourceVersion() == version)
		u.note("one field fewer", u.apply(configMap("apply", "a", "2"), "pelago"))
		u.say("%v", u.again(configMap("apply")).Object["data"])
		u.note("another manager", u.apply(configMap("apply", "a", "3"), "other"))
		u.note("another manager, forced", u.apply(configMap("apply", "a", "3"), "other", client.ForceOwnership))
		u.note("the first again", u.apply(configMap("apply", "a", "2"), "pelago"))
		u.note("the first, forced", u.apply(configMap("apply", "a", "2"), "pelago", client.ForceOwnership))
		o := u.again(configMap("apply"))
		u.say("%v", o.Object["data"])
		stale := configMap("apply", "a", "4")
		stale.SetResourceVersion(version)
		u.note("stale", u.apply(stale, "pelago"))
		current := configMap("apply", "a", "4")
		current.SetResourceVersion(o.GetResourceVersion())
		current.SetUID(o.GetUID())
		u.note("with version and uid", u.apply(current, "pelago"))
		gone := configMap("gone", "a", "4")
		gone.SetUID("0123")
		u.note("of a uid that is gone", u.apply(gone, "pelago"))
		u.say("made: %t", u.Get(ctx, client.ObjectKeyFromObject(gone), configMap("")) == nil)
		lost := configMap("lost")
		lost.SetNamespace("nowhere")
		u.note("without namespace", u.apply(lost, "pelago"))
	}},
	{"apply to a schema", func(u *user, _ context.Context) {
		one, two := map[string]any{"name": "A", "value": "1"}, map[string]any{"name": "B", "value": "1"}
		u.note("new", u.apply(deployment("schema", 2, one), "pelago"))
		u.note("another's entry in a list that is a map", u.apply(deployment("schema", 2, two), "other"))
		env := func() (names []string) {
			o := u.again(deployment("schema", 0)).Object
			// none: the next line panics
			containers, _, _ := unstructured.NestedSlice(o, "spec", "template", "spec", "containers")
			// no list has no names, which shows
			list, _, _ := unstructured.NestedSlice(containers[0].(map[string]any), "env")
			for _, e := range list {
				names = append(names, e.(map[string]any)["name"].(string))
			}
			return names
		}
		u.say("%v", env())
		u.note("without entry", u.apply(deployment("schema", 2), "pelago"))
		u.say("%v, generation %d", env(), u.again(deployment("schema", 0)).GetGeneration())
		u.note("an entry twice", u.apply(deployment("schema", 2, one, one), "pelago"))
		odd := deployment("schema", 2)
		odd.Object["spec"].(map[string]any)["oddity"] = true
		u.note("a field that there is not", u.apply(odd, "pelago"))
		odd = deployment("schema", 2)
		odd.Object["status"] = map[string]any{"readyReplicas": int64(5)}
		u.note("with status", u.apply(odd, "pelago"))
		// what is no number is not found
		_, found, _ := unstructured.NestedInt64(u.again(odd).Object, "status", "readyReplicas")
		u.say("status is there: %t", found)
	}},
	{"managed fields", func(u *user, ctx context.Context) {
		managers := func() (names []string) {
			for _, f := range u.again(configMap("managed")).GetManagedFields() {
				names = append(names, f.Manager+" "+string(f.Operation))
			}
			slices.Sort(names)
			return names
		}
		u.note("create", u.Create(ctx, configMap("managed", "a", "1", "b", "1"), client.FieldOwner("kubectl")))
		u.note("apply", u.apply(configMap("managed", "a", "2"), "pelago", client.ForceOwnership))
		u.say("%v", managers())
		fields := u.again(configMap("managed")).GetManagedFields()
		for i := range fields {
			if fields[i].Manager == "kubectl" {
				fields[i].Manager, fields[i].Operation = "pelago", metav1.ManagedFieldsOperationApply
			}
		}
		o := u.again(configMap("managed"))
		o.SetManagedFields(fields[:1])
		u.note("rewritten", u.Update(ctx, o, client.FieldOwner("pelago")))
		u.say("%v", managers())
	}},
	{"delete", func(u *user, ctx context.Context) {
		o := configMap("delete")
		u.note("create", u.Create(ctx, o))
		u.note("another uid", u.Delete(ctx, o, client.Preconditions{UID: ptr.To(types.UID("0123"))}))
		u.note("stale", u.Delete(ctx, o, client.Preconditions{ResourceVersion: ptr.To("1")}))
		u.note("right", u.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID()), ResourceVersion: ptr.To(o.GetResourceVersion())},
			client.PropagationPolicy(metav1.DeletePropagationBackground)))
		u.note("again", u.Delete(ctx, o))
		held := deployment("held", 1)
		held.SetFinalizers([]string{"pelago.io/test"})
		u.note("create", u.Create(ctx, held))
		u.note("delete", u.Delete(ctx, held))
		held = u.again(held)
		u.say("marked %t, generation %d", held.GetDeletionTimestamp() != nil, held.GetGeneration())
		u.note("delete again", u.Delete(ctx, held))
		held.SetFinalizers(nil)
		u.note("without finalizer", u.Update(ctx, held))
		u.note("get", u.Get(ctx, client.ObjectKeyFromObject(held), held))
	}},
	{"watch", func(u *user, ctx context.Context) {
		first := configMap("watch-1")
		first.SetLabels(map[string]string{"test": "watch"})
		u.note("create", u.Create(ctx, first))
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		u.note("list", u.List(ctx, list, client.InNamespace(ns), client.MatchingLabels{"test": "watch"}))
		w, err := u.Watch(ctx, list, client.InNamespace(ns), client.MatchingLabels{"test": "watch"},
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), AllowWatchBookmarks: true}})
		if !u.note("watch", err) {
			return
		}
		defer w.Stop()
		second := configMap("watch-2")
		u.note("create what does not match", u.Create(ctx, second))
		second.SetLabels(map[string]string{"test": "watch"})
		u.note("match", u.Update(ctx, second))
		second.SetLabels(nil)
		u.note("no longer match", u.Update(ctx, second))
		u.note("delete", u.Delete(ctx, first))
		u.events(w, 3)
		u.note("expired", u.expired(ctx))
	}},
	{"watch with initial events", func(u *user, ctx context.Context) {
		o := configMap("initial")
		o.SetLabels(map[string]string{"test": "initial"})
		u.note("create", u.Create(ctx, o))
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		w, err := u.Watch(ctx, list, client.InNamespace(ns), client.MatchingLabels{"test": "initial"},
			&client.ListOptions{Raw: &metav1.ListOptions{
				SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true}})
		if !u.note("watch", err) {
			return
		}
		defer w.Stop()
		u.events(w, 2)
	}},
}

// events writes down the next ones of a watch; bookmarks only where they end the initial events.
func (u *user) events(w watch.Interface, n int) {
	for n > 0 {
		select {
		case e := <-w.ResultChan():
			o := e.Object.(*unstructured.Unstructured)
			_, end := o.GetAnnotations()[metav1.InitialEventsAnnotationKey]
			if e.Type == watch.Bookmark && !end {
				continue
			}
			n--
			u.say("%s %s, version %t", e.Type, o.GetName(), o.GetResourceVersion() != "")
		case <-time.After(3 * time.Minute):
			u.say("no event in minutes")
			return
		}
	}
}

// expired watches from a version that is no number.
func (u *user) expired(ctx context.Context) error {
	w, err := u.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "x"}})
	if err == nil {
		w.Stop()
	}
	return err
}

func run(t *testing.T, config *rest.Config) map[string]string {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
		t.Fatal(err)
	}
	logs := map[string]string{}
	for _, row := range table {
		u := &user{WithWatch: c, t: t}
		row.do(u, t.Context())
		logs[row.name] = strings.Join(u.log, "\n")
	}
	return logs
}

// A client sees the same of a simulated member as of a real API server.
func TestLikeARealServer(t *testing.T) {
	want := run(t, server.Config(t))
	got := run(t, start(t, member.Options{}).Config())
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(strings.Split(want[row.name], "\n"), strings.Split(got[row.name], "\n")); diff != "" {
				t.Errorf("-real +simulated:\n%s", diff)
			}
			if len(want[row.name]) == 0 {
				t.Error("the row did nothing")
			}
		})
	}
}

func TestDiscovery(t *testing.T) {
	typed := func(config *rest.Config) (found []string) {
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, lists, err := c.Discovery().ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			for _, r := range list.APIResources {
				verbs := slices.Sorted(slices.Values(r.Verbs))
				found = append(found, fmt.Sprintf("%s %s %s %t %v %v", list.GroupVersion, r.Name, r.Kind, r.Namespaced, verbs, r.ShortNames))
			}
		}
		return found
	}
	realOnes := typed(server.Config(t))
	for _, r := range typed(start(t, member.Options{}).Config()) {
		if !slices.Contains(realOnes, r) {
			t.Errorf("a real server does not have %q", r)
		}
	}
}

func TestNodesHealthAndTokens(t *testing.T) {
	m := start(t, member.Options{Nodes: 2})
	ctx := t.Context()
	c, err := kubernetes.NewForConfig(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 2 || nodes.Items[0].Status.Allocatable.Cpu().String() != "64" {
		t.Errorf("nodes %v, %v", nodes, err)
	}
	if body, err := c.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil || string(body) != "ok" {
		t.Errorf("health %q, %v", body, err)
	}
	if v, err := c.Discovery().ServerVersion(); err != nil || v.Minor != "34" {
		t.Errorf("version %v, %v", v, err)
	}
	if _, err := c.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "hub"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "hub", Annotations: map[string]string{corev1.ServiceAccountNameKey: "hub"}},
		Type:       corev1.SecretTypeServiceAccountToken}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := c.CoreV1().Secrets("default").Get(ctx, "hub", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]bool{string(secret.Data["token"]): true, "wrong": false} {
		config := rest.CopyConfig(m.Config())
		config.BearerToken, config.CAData = token, secret.Data["ca.crt"]
		if !want {
			config.CAData = m.Config().CAData
		}
		other, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); (err == nil) != want || !want &&
			!apierrors.IsUnauthorized(err) {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestReady(t *testing.T) {
	m := start(t, member.Options{Ready: 10 * time.Millisecond})
	c, err := client.New(m.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := deployment("ready", 3)
	o.SetNamespace("default")
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	status := func() string {
		var d appsv1.Deployment
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), &d); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d of %d", d.Status.ReadyReplicas, d.Status.ObservedGeneration)
	}
	await.Equal(t, "3 of 1", status)
	if err := c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":5}}`))); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "5 of 2", status)
	if n, none := m.Count("apps", "v1", "deployments", "default"), m.Count("apps", "v1", "deployments", "other"); n != 1 || none != 0 {
		t.Errorf("%d Deployments, %d in another namespace", n, none)
	}
}

func TestNamespaceGoesWithItsObjects(t *testing.T) {
	c, err := client.New(start(t, member.Options{}).Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	held := configMap("held")
	held.SetFinalizers([]string{"pelago.io/test"})
	for _, o := range []client.Object{space, held, configMap("free")} {
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(ctx, space); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, configMap("late")); !apierrors.IsForbidden(err) {
		t.Errorf("create in a namespace that goes: %v", err)
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(held), held); err != nil {
		t.Fatal(err)
	}
	held.SetFinalizers(nil)
	if err := c.Update(ctx, held); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(space), space); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
}

// A watch that begins too far back has to list again.
func TestHistoryEnds(t *testing.T) {
	c, err := client.NewWithWatch(start(t, member.Options{History: 4}).Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	o := configMap("history", "n", "")
	o.SetNamespace("default")
	if err := c.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	version := o.GetResourceVersion()
	for i := range 10 {
		if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, i))); err != nil {
			t.Fatal(err)
		}
	}
	w, err := c.Watch(ctx, &corev1.ConfigMapList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("%s: %v", e.Type, err)
	}
}
