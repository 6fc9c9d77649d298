package topology_test

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs("routeagents.submariner.io"))

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// The verdict of an agent follows the majority of the nodes' reports. One node whose port is closed
// changes nothing, and a dead cluster is not alive for lack of reports.
func TestWatchReports(t *testing.T) {
	c := apiserver.Connect(t, server.Config(t), submarinerv1.AddToScheme)
	const namespace = "pelago-system"
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	agents, nodes := map[string]*submarinerv1.RouteAgent{}, map[string]*corev1.Node{}
	for _, name := range []string{"n1", "n2", "n3"} {
		nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		agents[name] = &submarinerv1.RouteAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		c.Make(nodes[name], agents[name])
	}
	// report writes a node's report; "?": it is no witness.
	report := func(node, unreachable string) {
		a := agents[node]
		a.Annotations = map[string]string{submarinerv1.AnnotationUpdated: strconv.FormatInt(time.Now().Unix(), 10)}
		if unreachable != "?" {
			a.Annotations[submarinerv1.AnnotationUnreachableClusters] = unreachable
		}
		if err := c.Update(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	verdicts := []string{}
	last := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(verdicts) == 0 {
			return "none"
		}
		return verdicts[len(verdicts)-1]
	}
	objects, err := cache.New(server.Config(t), cache.Options{Scheme: c.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := objects.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		topology.WatchReports(ctx, objects, func(unreachable []string) {
			mu.Lock()
			defer mu.Unlock()
			verdicts = append(verdicts, "["+strings.Join(unreachable, " ")+"]")
		}, slog.New(slog.DiscardHandler))
	})

	const quiet = time.Second // more than the pause that batches reports
	await.Never(t, quiet, "a verdict without a witness", func() bool { return last() != "none" })
	report("n1", "")
	await.Equal(t, "[]", last)
	report("n2", "?")
	report("n3", "g2")
	report("n2", "g2")
	await.Equal(t, "[g2]", last)
	report("n1", "?")
	report("n2", "?")
	report("n3", "?")
	await.Never(t, quiet, "the dead cluster is alive for lack of reports", func() bool { return last() != "[g2]" })
	report("n1", "")
	await.Equal(t, "[]", last)
	report("n2", "")
	report("n3", "g2,g3")
	await.Never(t, quiet, "one of three decides", func() bool { return last() != "[]" })
	for _, name := range []string{"n1", "n2"} {
		nodes[name].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		if err := c.Status().Update(t.Context(), nodes[name]); err != nil {
			t.Fatal(err)
		}
	}
	await.Equal(t, "[g2 g3]", last) // the reports of the others are from before their end
}
