package execute

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: NS}
data: {a: "1", b: "2"}`

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: nginx, namespace: NS, labels: {app: nginx}}
spec:
  replicas: 2
  selector: {matchLabels: {app: nginx}}
  template:
    metadata: {labels: {app: nginx}}
    spec: {containers: [{name: nginx, image: "nginx:1", resources: {requests: {cpu: 1000m}}}]}`

// overwriting is a manifest that may take over what is there.
func overwriting(l *lab, manifest string) string {
	u := l.object(manifest)
	annotate(u, workv1alpha1.AnnotationConflictResolution, "overwrite")
	return string(must(u.MarshalJSON()))
}

// owning is a manifest of which fields are left to the member.
func owning(l *lab, manifest, pointers string) string {
	u := l.object(manifest)
	annotate(u, "pelago.io/member-owned", pointers)
	return string(must(u.MarshalJSON()))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestApply: creation, drift, retained fields and suspension as in Karmada, with server-side apply.
func TestApply(t *testing.T) {
	server := apiserver.Start(t)

	t.Run("a Work becomes an object with our marks, and a field that goes from the template goes there", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", configMap)
		l.applied("w")
		u := l.there(configMap)
		got := map[string]string{
			"managed": u.GetLabels()["karmada.io/managed"], "hub": u.GetAnnotations()[pelagov1alpha1.AnnotationHubID],
			"work": u.GetAnnotations()["work.karmada.io/namespace"] + "/" + u.GetAnnotations()["work.karmada.io/name"],
		}
		if diff := cmp.Diff(map[string]string{"managed": "true", "hub": hubID, "work": l.es() + "/w"}, got); diff != "" {
			t.Error(diff)
		}
		l.manifest("w", `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS}, data: {a: "3"}}`)
		l.applied("w")
		if got := value(l.there(configMap), "data"); got != "map[a:3]" {
			t.Errorf("data is %s", got)
		}
		if state, _ := l.condition("w", workv1alpha1.ConditionDispatching); state != "True Dispatching" {
			t.Errorf("Dispatching is %s", state)
		}
	})

	t.Run("what is changed in the member is applied again, what is deleted is made again", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", deployment)
		l.applied("w")
		uid := l.there(deployment).GetUID()
		l.patch(deployment, "kubectl-edit", `{"spec":{"template":{"spec":{"nodeSelector":{"a":"b"}}},"replicas":7}}`)
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
		l.heard("SyncSucceed", "changed in the cluster "+l.cluster+", and applied again")
		if u := l.there(deployment); u.GetUID() != uid {
			t.Error("it was deleted and made again")
		}
		l.patch(deployment, "kubectl-label", `{"metadata":{"labels":{"karmada.io/managed":null}}}`)
		await.Equal(t, "true", func() string { return l.there(deployment).GetLabels()["karmada.io/managed"] })
		l.member.Remove(l.object(deployment))
		await.True(t, "the object is there again", func() bool { u := l.find(deployment); return u != nil && u.GetUID() != uid })
	})

	t.Run("a Service becomes an alias and a Service again, as in a cluster whose part in a MultiClusterService changes", func(t *testing.T) {
		const service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NS}, spec: {ports: [{port: 80}], selector: {app: web}}}"
		const alias = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NS}, spec: {type: ExternalName, externalName: web.NS.svc.clusterset.local}}"
		l := newLab(t, server)
		l.run()
		l.work("w", service)
		l.applied("w")
		for _, manifest := range []string{alias, service} {
			l.manifest("w", manifest)
			l.applied("w")
			want := value(l.object(manifest), "spec", "externalName")
			if got, ip := value(l.there(service), "spec", "externalName"), value(l.there(service), "spec", "clusterIP"); got != want || (ip == "-") != (want != "-") {
				t.Errorf("externalName %s and clusterIP %s, want externalName %s", got, ip, want)
			}
		}
	})

	t.Run("a fight slows down, and the status goes on meanwhile", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", deployment)
		l.applied("w")
		l.wire.forget()
		began := time.Now()
		n := 0
		// someone who sets the field whenever it is changed
		for ; time.Since(began) < 3*time.Second; n++ {
			await.True(t, "it is applied again, or we wait", func() bool {
				return value(l.there(deployment), "spec", "replicas") == "2" || time.Since(began) > 3*time.Second
			})
			l.patch(deployment, "them", `{"spec":{"replicas":5}}`)
		}
		// after 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s
		if got := len(l.wire.writes("deployments/nginx")); got > 7 {
			t.Errorf("%d writes in 3 s", got)
		}
		l.status(deployment, 3)
		await.Equal(t, "3", func() string { return l.reflected("w", "readyReplicas") })
	})

	t.Run("a fight by deletion slows down, too", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", configMap)
		l.applied("w")
		l.wire.forget()
		// someone who deletes it whenever it is there
		for began := time.Now(); time.Since(began) < 3*time.Second; {
			await.True(t, "it is made again, or we wait", func() bool {
				return l.find(configMap) != nil || time.Since(began) > 3*time.Second
			})
			if u := l.find(configMap); u != nil {
				l.member.Remove(u)
			}
		}
		l.heard("SyncSucceed", "was deleted in the cluster "+l.cluster+", and applied again")
		// after 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s
		if got := len(l.wire.writes("configmaps/c")); got > 7 {
			t.Errorf("%d writes in 3 s", got)
		}
	})

	t.Run("equal objects are not written, not after a restart either", func(t *testing.T) {
		const n = 30
		l := newLab(t, server)
		stop := l.run()
		for i := range n {
			l.work(fmt.Sprintf("w%d", i), strings.Replace(configMap, "name: c", fmt.Sprintf("name: c%d", i), 1))
		}
		all := func() {
			for i := range n {
				l.applied(fmt.Sprintf("w%d", i))
			}
		}
		all()
		stop()
		l.wire.forget()
		l.run()
		l.work("last", configMap)
		l.applied("last")
		// Works are taken in turn: after an edit of its metadata each has been looked at.
		for i := range n {
			l.edit(fmt.Sprintf("w%d", i), func(w *workv1alpha1.Work) { w.Labels = map[string]string{"seen": "yes"} })
		}
		l.manifest("last", `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS}, data: {a: "2"}}`)
		l.applied("last")
		if diff := cmp.Diff(2, len(l.wire.writes("/"+l.ns+"/"))); diff != "" {
			t.Errorf("writes: %v", l.wire.writes("/"+l.ns+"/"))
		}
	})

	t.Run("our own writes and a value that the server writes otherwise do not loop", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", deployment) // 1000m is 1
		l.applied("w")
		l.wire.forget()
		for i := range 5 { // status of the member's controller
			l.status(deployment, i+1)
			await.Equal(t, fmt.Sprint(i+1), func() string { return l.reflected("w", "readyReplicas") })
		}
		if got := l.wire.writes("deployments/nginx"); len(got) > 0 {
			t.Errorf("writes: %v", got)
		}
	})

	t.Run("suspended: nothing is made, changed or made again, and the status goes on", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", deployment)
		l.applied("w")
		yes := true
		l.edit("w", func(w *workv1alpha1.Work) { w.Spec.SuspendDispatching = &yes })
		await.Equal(t, "False SuspendDispatching", func() string {
			state, _ := l.condition("w", workv1alpha1.ConditionDispatching)
			return state
		})
		l.patch(deployment, "kubectl", `{"spec":{"replicas":5}}`)
		l.status(deployment, 4)
		await.Equal(t, "4", func() string { return l.reflected("w", "readyReplicas") })
		if got := value(l.there(deployment), "spec", "replicas"); got != "5" {
			t.Errorf("replicas %s: written while suspended", got)
		}
		l.member.Remove(l.object(deployment))
		await.Equal(t, 0, func() int { return len(l.see("w").Status.ManifestStatuses) })
		if l.find(deployment) != nil {
			t.Error("made again while suspended")
		}
		l.edit("w", func(w *workv1alpha1.Work) { w.Spec.SuspendDispatching = nil })
		l.applied("w")
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
	})

	t.Run("what the member fills in stays: addresses of a Service, selector of a Job, data that others add", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		const service = `
apiVersion: v1
kind: Service
metadata: {name: s, namespace: NS}
spec: {selector: {a: b}, ports: [{port: 80}]}`
		const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: NS}
spec: {parallelism: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}`
		l.work("service", service)
		l.work("job", job)
		l.work("data", configMap)
		l.applied("service", "job", "data")
		address, selector := value(l.there(service), "spec", "clusterIP"), value(l.there(job), "spec", "selector")
		l.patch(configMap, "them", `{"data":{"theirs":"x"},"metadata":{"labels":{"theirs":"x"},"finalizers":["example.io/theirs"]}}`)
		l.manifest("service", strings.Replace(service, "80", "81", 1))
		l.manifest("job", strings.Replace(job, "parallelism: 1", "parallelism: 3", 1))
		l.manifest("data", strings.Replace(configMap, `a: "1"`, `a: "3"`, 1))
		l.applied("service", "job", "data")
		u := l.there(configMap)
		got := []string{
			value(l.there(service), "spec", "clusterIP"), value(l.there(job), "spec", "selector"),
			value(l.there(job), "spec", "parallelism"),
			value(u, "data"), u.GetLabels()["theirs"], fmt.Sprint(u.GetFinalizers()),
		}
		if diff := cmp.Diff([]string{address, selector, "3", "map[a:3 b:2 theirs:x]", "x", "[example.io/theirs]"}, got); diff != "" {
			t.Error(diff)
		}
		l.patch(configMap, "them", `{"metadata":{"finalizers":null}}`)
	})

	t.Run("two processes at once, as after a pause of one, agree", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.run()
		l.work("w", configMap)
		l.applied("w")
		uid := l.there(configMap).GetUID()
		for i := range 10 {
			l.manifest("w", strings.Replace(configMap, `a: "1"`, fmt.Sprintf(`a: "n%d"`, i), 1))
		}
		last := func() bool { return value(l.there(configMap), "data") == "map[a:n9 b:2]" }
		// the slower of both may write an older one over it, once
		await.True(t, "the last manifest is there to stay", func() bool {
			for range 20 {
				if !last() {
					return false
				}
				time.Sleep(50 * time.Millisecond)
			}
			return true
		})
		l.applied("w")
		if u := l.there(configMap); u.GetUID() != uid || !last() {
			t.Errorf("it is %s %s", u.GetUID(), value(u, "data"))
		}
	})

	t.Run("suppressed: kept away from", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", configMap, func(w *workv1alpha1.Work) {
			w.Labels = map[string]string{workv1alpha1.LabelInstruction: workv1alpha1.InstructionSuppressed}
		})
		l.work("other", `{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: NS}}`)
		l.applied("other")
		await.Never(t, 300*time.Millisecond, "a suppressed Work is executed", func() bool {
			return l.find(configMap) != nil || len(l.see("w").Status.Conditions) > 0
		})
	})
}

// status writes the status of a Deployment as its controller would.
func (l *lab) status(manifest string, ready int) {
	l.Helper()
	l.patchStatus(manifest, fmt.Sprintf(`{"replicas":100,"readyReplicas":%d}`, ready))
}

func (l *lab) patchStatus(manifest, status string) {
	l.Helper()
	u := l.object(manifest)
	how := client.RawPatch("application/merge-patch+json", []byte(`{"status":`+status+`}`))
	err := l.member.Status().Patch(l.Context(), u, how, client.FieldOwner("kube-controller-manager"))
	if err != nil {
		l.Fatal(err)
	}
}

// reflected is a field of what the Work tells of its object.
func (l *lab) reflected(work, field string) string {
	l.Helper()
	w := l.see(work)
	if len(w.Status.ManifestStatuses) == 0 || w.Status.ManifestStatuses[0].Status == nil {
		return "-"
	}
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(w.Status.ManifestStatuses[0].Status.Raw, &u.Object); err != nil {
		l.Fatal(err)
	}
	return value(u, field)
}
