package kinds

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/pelago-net/pelago/test/apiserver"
)

var server = apiserver.NewShared()

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// templates are written to a real API server; then the statuses of items are aggregated and
// written, one list after the other.
var templates = map[string]struct {
	object string
	steps  []string
}{
	"deployments": {
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}",
		[]string{
			"[{cluster: m1, status: {generation: 1, observedGeneration: 1, resourceTemplateGeneration: 1, replicas: 1, unavailableReplicas: 1}}]",
			"[{cluster: m1, status: {generation: 1, observedGeneration: 1, resourceTemplateGeneration: 1, replicas: 2, readyReplicas: 2, availableReplicas: 2, updatedReplicas: 2, conditions: [{type: Available, status: 'True', reason: MinimumReplicasAvailable, lastTransitionTime: '2026-01-01T00:00:00Z'}]}}, {cluster: m2}]",
			"[]",
		},
	},
	"replicasets": {
		"{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: x}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}",
		[]string{"[{cluster: m1, status: {generation: 1, observedGeneration: 1, resourceTemplateGeneration: 1, replicas: 1, fullyLabeledReplicas: 1}}]", "[]"},
	},
	"statefulsets": {
		"{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x}, spec: {serviceName: x, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}",
		[]string{"[{cluster: m1, status: {generation: 1, observedGeneration: 1, resourceTemplateGeneration: 1, replicas: 1, currentReplicas: 1}}]", "[]"},
	},
	"daemonsets": {
		"{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: x}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}",
		[]string{"[{cluster: m1, status: {generation: 1, observedGeneration: 1, resourceTemplateGeneration: 1, desiredNumberScheduled: 2, numberReady: 1}}]", "[]"},
	},
	"jobs": {
		"{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {completions: 5, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}",
		[]string{
			"[{cluster: m1, status: {active: 1, succeeded: 1, startTime: '2026-01-01T01:00:00Z'}}, {cluster: m2, status: {active: 2, succeeded: 2, failed: 1, startTime: '2026-01-01T00:00:00Z'}}]",
			// m2 has gone
			"[{cluster: m1, status: {active: 1, succeeded: 1, startTime: '2026-01-01T01:00:00Z'}}, {cluster: m3}]",
			"[{cluster: m1, status: {succeeded: 5, startTime: '2026-01-01T01:00:00Z', completionTime: '2026-01-01T02:00:00Z', conditions: [{type: Complete, status: 'True'}]}}]",
		},
	},
	"jobs (failing)": {
		"{apiVersion: batch/v1, kind: Job, metadata: {name: f}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}",
		[]string{
			"[{cluster: m1, status: {failed: 1, startTime: '2026-01-01T01:00:00Z', conditions: [{type: Failed, status: 'True', lastTransitionTime: '2026-01-01T02:00:00Z'}]}}, {cluster: m2, status: {active: 1, startTime: '2026-01-01T00:00:00Z'}}]",
			// m1 has gone
			"[{cluster: m2, status: {active: 1, startTime: '2026-01-01T00:00:00Z'}}]",
			"[{cluster: m2, status: {succeeded: 1, startTime: '2026-01-01T00:00:00Z', completionTime: '2026-01-01T02:00:00Z', conditions: [{type: Complete, status: 'True'}]}}]",
		},
	},
	"cronjobs": {
		"{apiVersion: batch/v1, kind: CronJob, metadata: {name: x}, spec: {schedule: '* * * * *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}",
		[]string{"[{cluster: m1, status: {active: [{name: a}], lastScheduleTime: '2026-01-01T01:00:00Z'}}]", "[]"},
	},
	"pods": {
		"{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}",
		[]string{
			"[{cluster: m1, status: {phase: Running, containerStatuses: [{name: c, state: {running: {startedAt: '2026-01-01T01:00:00Z'}}}]}}, {cluster: m2, status: {phase: Running, containerStatuses: [{name: c, state: {terminated: {exitCode: 0}}}]}}]",
			"[{cluster: m1, status: {phase: Running, containerStatuses: [{name: c, ready: true, state: {running: {startedAt: '2026-01-01T01:00:00Z'}}}]}}, {cluster: m2, status: {phase: Succeeded, conditions: [{type: Ready, status: 'False', reason: PodCompleted, lastTransitionTime: '2026-01-01T00:00:00Z'}], containerStatuses: [{name: c, state: {terminated: {exitCode: 0}}}]}}]",
		},
	},
	"services": {
		"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: LoadBalancer, ports: [{port: 80}]}}",
		[]string{"[{cluster: m1, status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: VIP}]}}}, {cluster: m2, status: {loadBalancer: {ingress: [{hostname: b.example}]}}}]", "[]"},
	},
	"ingresses": {
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: x}, spec: {defaultBackend: {service: {name: x, port: {number: 80}}}}}",
		[]string{"[{cluster: m1, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}]", "[]"},
	},
	"persistentvolumeclaims": {
		"{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}",
		[]string{"[{cluster: m1}]", "[{cluster: m1, status: {phase: Bound}}]"},
	},
	"persistentvolumes": {
		"{apiVersion: v1, kind: PersistentVolume, metadata: {name: x}, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /x}}}",
		[]string{"[{cluster: m1}]", "[{cluster: m1, status: {phase: Bound}}]"},
	},
	"poddisruptionbudgets": {
		"{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: x}, spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}}",
		[]string{"[{cluster: m1, status: {generation: 1, observedGeneration: 1, resourceTemplateGeneration: 1, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1, conditions: [{type: DisruptionAllowed, status: 'False', reason: InsufficientPods, lastTransitionTime: '2026-01-01T00:00:00Z'}], disruptedPods: {a: '2026-01-01T01:00:00Z'}}}]", "[]"},
	},
	"horizontalpodautoscalers": {
		"{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: x}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}}",
		[]string{"[{cluster: m1, status: {currentReplicas: 1, desiredReplicas: 2, conditions: [{type: AbleToScale, status: 'True', reason: a}]}}]", "[]"},
	},
}

// The API server takes each aggregated status, and then there is nothing more to write. A pruned
// template can be created again: nothing of it belongs to the hub alone; and updated with what
// Retain keeps.
func TestTheAPIServerTakesIt(t *testing.T) {
	client, err := dynamic.NewForConfig(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for title, c := range templates {
		t.Run(title, func(t *testing.T) {
			obj := &unstructured.Unstructured{}
			decodeYAML(t, []byte(c.object), &obj.Object)
			plural, _, _ := strings.Cut(title, " ")
			kind := obj.GroupVersionKind()
			var objects dynamic.ResourceInterface = client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: plural})
			if kind.Kind != "PersistentVolume" {
				obj.SetNamespace("default")
				objects = objects.(dynamic.NamespaceableResourceInterface).Namespace("default")
			}
			obj, err := objects.Create(ctx, obj, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i, step := range c.steps {
				var r row
				decodeYAML(t, []byte("{items: "+step+"}"), &r)
				status, err := New().AggregateStatus(obj, r.items(t))
				if err != nil {
					t.Fatal(err)
				}
				obj.Object["status"] = status
				if obj, err = objects.UpdateStatus(ctx, obj, metav1.UpdateOptions{}); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				again, err := New().AggregateStatus(obj, r.items(t))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(obj.Object["status"], any(again)); diff != "" && again != nil {
					t.Errorf("step %d: there is more to write: -returned +aggregated again\n%s", i, diff)
				}
			}
			again := obj.DeepCopy()
			if err := New().Prune(again); err != nil {
				t.Fatal(err)
			}
			again.SetName("again-" + again.GetName())
			// its node port is free then
			if err := objects.Delete(ctx, obj.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			member, err := objects.Create(ctx, again, metav1.CreateOptions{})
			if err != nil {
				t.Fatalf("create the pruned object: %v", err)
			}
			if again, err = New().Retain(again, member); err != nil {
				t.Fatal(err)
			}
			if _, err := objects.Update(ctx, again, metav1.UpdateOptions{}); err != nil {
				t.Fatalf("update with what is retained: %v", err)
			}
		})
	}
}
