package member

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// stored has what runs in a cluster react to a change.
func (m *Member) stored(r *resource, o *unstructured.Unstructured) {
	switch r {
	case secrets:
		m.fillToken(o)
	case deployments:
		if m.options.Ready > 0 && !reported(o) {
			m.report(o)
		}
	}
}

// reported reports whether the status is that of the present spec.
func reported(o *unstructured.Unstructured) bool {
	// 0 if none exists
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	return observed == o.GetGeneration()
}

// report has the status of a Deployment say, after the delay, that all of its replicas run.
func (m *Member) report(o *unstructured.Unstructured) {
	uid, name := o.GetUID(), key(o)
	if m.timers[uid] != nil {
		return // it reports what is then
	}
	m.timers[uid] = time.AfterFunc(m.options.Ready, func() { m.run(uid, name) })
}

func (m *Member) run(uid types.UID, name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.timers, uid)
	o, err := m.get(deployments, name)
	if err != nil || o.GetUID() != uid || reported(o) || m.running.Err() != nil {
		return
	}
	replicas, found, err := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if err != nil || !found {
		replicas = 1
	}
	status := map[string]any{
		"observedGeneration": o.GetGeneration(),
		"conditions": []any{
			map[string]any{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
			map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
		},
	}
	if replicas > 0 {
		for _, field := range []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas"} {
			status[field] = replicas
		}
	}
	o = o.DeepCopy()
	o.Object["status"] = status
	m.put(deployments, o)
}
