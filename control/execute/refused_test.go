package execute

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// on answers the writes of an object with a code and a reason.
func on(path string, code int, reason metav1.StatusReason, header http.Header) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		if !strings.HasSuffix(r.URL.Path, path) || r.Method == http.MethodGet {
			return nil, nil
		}
		const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"says the test","reason":%q,"code":%d}`
		body := fmt.Sprintf(status, reason, code)
		if header == nil {
			header = http.Header{}
		}
		header.Set("Content-Type", "application/json")
		return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

// TestRefused: the reasons for which a member refuses a Work. In each case another Work of the same
// member continues, and the first one does when the cause is gone.
func TestRefused(t *testing.T) {
	server := apiserver.Start(t)
	const neighbour = `{apiVersion: v1, kind: ConfigMap, metadata: {name: neighbour, namespace: NS}, data: {a: "1"}}`

	for _, c := range []struct {
		name  string
		code  int
		why   metav1.StatusReason
		words []string
	}{
		{"403", http.StatusForbidden, metav1.StatusReasonForbidden, []string{"forbids", "give pelago's account"}},
		{"500", http.StatusInternalServerError, metav1.StatusReasonInternalError, []string{"failed with", "tried again"}},
		{"429", http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, []string{"too much to do", "tried again"}},
		{"503", http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, []string{"failed with", "tried again"}},
		{"400", http.StatusBadRequest, metav1.StatusReasonBadRequest, []string{"refuses", "correct the template"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, server)
			l.wire.set(on("/configmaps/c", c.code, c.why, nil))
			l.run()
			l.work("w", configMap)
			l.failed("w", append(c.words, "cluster "+l.cluster, "ConfigMap "+l.ns+"/c", "says the test")...)
			l.heard("SyncFailed", "says the test")
			l.work("neighbour", neighbour)
			l.applied("neighbour")
			version := l.see("w").ResourceVersion
			l.wire.forget()
			await.True(t, "it is tried again", func() bool { return len(l.wire.writes("/configmaps/c")) > 1 })
			if l.see("w").ResourceVersion != version {
				t.Error("the same failure was written again")
			}
			l.wire.set(nil)
			l.applied("w")
		})
	}

	t.Run("429 with Retry-After is obeyed", func(t *testing.T) {
		l := newLab(t, server)
		var first time.Time
		refuse := on("/configmaps/c", http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, http.Header{"Retry-After": {"2"}})
		l.wire.set(func(r *http.Request) (*http.Response, error) {
			resp, err := refuse(r)
			if resp != nil {
				if !first.IsZero() {
					// l.wire's lock is not held here, but one request of the object runs at a time
					return nil, nil
				}
				first = time.Now()
			}
			return resp, err
		})
		l.run()
		l.work("w", configMap)
		l.applied("w")
		if since := time.Since(first); since < 2*time.Second {
			t.Errorf("tried again after %v", since)
		}
	})

	t.Run("a hanging request ends, and others go on meanwhile", func(t *testing.T) {
		l := newLab(t, server)
		l.wire.set(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/configmaps/c") && r.Method != http.MethodGet {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return nil, nil
		})
		l.run(func(o *Options) { o.Timeout = 500 * time.Millisecond })
		l.work("w", configMap)
		l.failed("w", "did not answer", "tried again")
		l.work("neighbour", neighbour)
		l.applied("neighbour")
		l.wire.set(nil)
		l.applied("w")
	})

	t.Run("a kind that is not served", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		w := l.work("w", `{apiVersion: example.io/v1, kind: Gizmo, metadata: {name: g, namespace: NS}}`)
		l.failed("w", "does not serve the kind of Gizmo", "install its CustomResourceDefinition")
		l.hub.Remove(w)
		await.True(t, "the Work is gone", func() bool { return l.gone("w") })
	})

	t.Run("a namespace that comes later", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", strings.ReplaceAll(configMap, "NS", "NS-later"))
		l.failed("w", "namespaces", "not found", "once its namespace is there")
		l.member.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.ns + "-later"}})
		l.applied("w")
	})

	t.Run("an invalid object, and one whose immutable field changes", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("bad", strings.ReplaceAll(deployment, "matchLabels: {app: nginx}", "matchLabels: {app: another}"))
		l.failed("bad", "refuses Deployment "+l.ns+"/nginx", "selector", "correct the template")
		l.manifest("bad", deployment)
		l.applied("bad")
		uid := l.there(deployment).GetUID()
		l.manifest("bad", strings.ReplaceAll(deployment, "app: nginx}", "app: another}"))
		l.failed("bad", "immutable", "delete the object in the cluster")
		if l.there(deployment).GetUID() != uid {
			t.Error("it was deleted and made again")
		}
	})

	t.Run("a manifest that is none", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("two", configMap, func(w *workv1alpha1.Work) {
			w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, w.Spec.Workload.Manifests...)
		})
		l.failed("two", "manifest 1: ", "is manifest 0 as well")
		l.work("pointer", owning(l, configMap, "data/a"))
		l.failed("pointer", "RFC 6901")
	})

	t.Run("fields that the member does not know are dropped, and named", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		newer := strings.ReplaceAll(deployment, "replicas: 2", "replicas: 2\n  newIn140: {a: 1}")
		newer = strings.ReplaceAll(newer, "image:", "alsoNew: x, image:")
		l.work("w", newer)
		l.applied("w")
		state, message := l.condition("w", workv1alpha1.ConditionFieldsDropped)
		if state != "True FieldsDropped" || !strings.Contains(message, ".spec.newIn140") || !strings.Contains(message, "alsoNew") {
			t.Errorf("%s: %s", state, message)
		}
		l.heard("FieldsDropped", "newIn140")
		if got := fmt.Sprint(must(containers(l.there(deployment)))); !strings.Contains(got, "nginx:1") {
			t.Errorf("containers: %s", got)
		}
		l.wire.forget()
		l.status(deployment, 2)
		await.Equal(t, "2", func() string { return l.reflected("w", "readyReplicas") })
		if got := l.wire.writes("deployments/nginx"); len(got) > 0 {
			t.Errorf("writes: %v", got)
		}
		l.manifest("w", deployment)
		await.Equal(t, "", func() string {
			state, _ := l.condition("w", workv1alpha1.ConditionFieldsDropped)
			return state
		})
		l.applied("w")
	})

	t.Run("duplicate list keys go by PUT, and fields of it go with the template's", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		double := strings.ReplaceAll(deployment, "image:", `env: [{name: A, value: "1"}, {name: A, value: "2"}], image:`)
		l.work("w", double)
		l.applied("w")
		if got := fmt.Sprint(must(containers(l.there(deployment)))); !strings.Contains(got, "map[name:A value:1] map[name:A value:2]") {
			t.Errorf("containers: %s", got)
		}
		l.patch(deployment, "kubectl", `{"spec":{"replicas":8}}`) // drift is undone by PUT, too
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
		l.manifest("w", deployment) // no duplicates any more
		l.applied("w")
		if got := fmt.Sprint(must(containers(l.there(deployment)))); strings.Contains(got, "env") {
			t.Errorf("env stays: %s", got)
		}
	})
}

// TestUnreachable: a member that is away (karmada-io/karmada#1640, #5150: nothing is deleted
// when it comes back).
func TestUnreachable(t *testing.T) {
	server := apiserver.Start(t)

	t.Run("#1640: Works wait, say so once, and go on when it is back; nothing is deleted or made again", func(t *testing.T) {
		l := newLab(t, server)
		line := apiserver.NewLine(t, server)
		l.config = line.Config()
		stop := l.run()
		l.work("old", deployment)
		l.applied("old")
		before := l.there(deployment)
		line.Cut()
		l.work("new", configMap)
		l.failed("new", "cluster "+l.cluster+" cannot be reached", "the Work waits")
		w := l.work("going", `{apiVersion: v1, kind: ConfigMap, metadata: {name: going, namespace: NS}}`)
		l.failed("going", "cannot be reached")
		l.hub.Remove(w)
		versions := func() string { return l.see("new").ResourceVersion + " " + l.see("old").ResourceVersion }
		were := versions()
		await.Never(t, 3*time.Second, "a Work is written again, in several probes", func() bool { return versions() != were })
		_, said := l.condition("new", workv1alpha1.ConditionApplied)
		l.edit("new", func(w *workv1alpha1.Work) { w.Labels = map[string]string{"look": "again"} })
		await.Never(t, 500*time.Millisecond, "it says something else than "+said, func() bool {
			_, now := l.condition("new", workv1alpha1.ConditionApplied)
			return now != said
		})
		if l.gone("going") {
			t.Error("the Work went although its object could not be seen")
		}
		yes := true
		l.edit("new", func(w *workv1alpha1.Work) { w.Spec.SuspendDispatching = &yes })
		await.Equal(t, "False SuspendDispatching", func() string {
			state, _ := l.condition("new", workv1alpha1.ConditionDispatching)
			return state
		})
		l.edit("new", func(w *workv1alpha1.Work) { w.Spec.SuspendDispatching = nil })
		line.Heal()
		l.applied("old", "new")
		await.True(t, "the deleted Work is gone", func() bool { return l.gone("going") })
		if u := l.there(deployment); u.GetUID() != before.GetUID() || u.GetResourceVersion() != before.GetResourceVersion() {
			t.Error("the object that was there has changed")
		}
		stop()
		line.Cut()
		l.run() // a start without the member
		l.work("later", `{apiVersion: v1, kind: Secret, metadata: {name: later, namespace: NS}}`)
		l.failed("later", "cannot be reached")
		line.Heal()
		l.applied("later")
	})
}

// A hub that is away for a while gets the status of a Work soon after it is back, not after as long
// again.
func TestHubUnreachable(t *testing.T) {
	l := newLab(t, server.Config(t))
	var writes atomic.Int32
	l.run(func(o *Options) {
		o.Hub = l.counting(t, func(*workv1alpha1.Work) error {
			if writes.Add(1) <= 6 {
				return errors.New("the hub is away")
			}
			return nil
		})
	})
	w := l.work("w", configMap)
	l.applied("w")
	limiter, request := l.execution.controllerOptions().RateLimiter, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w)}
	var longest time.Duration
	for range 100 {
		longest = max(longest, limiter.When(request))
	}
	if longest > 5*time.Second {
		t.Errorf("after a long outage a Work waits for %v, want at most 5 s", longest)
	}
}
