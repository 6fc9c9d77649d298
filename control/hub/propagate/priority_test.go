package propagate_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// Of many templates that wait those of higher priority go first, and what they need with them.
func TestPriority(t *testing.T) {
	const ordinary, urgent = 120, 5
	h := newHub(t, "member1")
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "class-" + h.ns}, Value: 1000}
	h.Make(class)
	t.Cleanup(func() {
		if err := h.Delete(context.Background(), class); err != nil {
			t.Error(err)
		}
	})
	tier := func(name string) string { return fmt.Sprintf(", labelSelector: {matchLabels: {tier: %s}}", name) }
	h.policy("ordinary", selecting(tier("ordinary"), "member1", ""))
	h.policy("urgent", selecting(tier("urgent"), "member1", fmt.Sprintf(
		", propagateDeps: true, schedulePriority: {priorityClassSource: KubePriorityClass, priorityClassName: %s}", class.Name)))
	// So that ConfigMaps are listed early.
	h.policy("settings", "{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, name: other}]}")
	for i := range ordinary {
		d := h.deployment(fmt.Sprintf("a-%03d", i), 1)
		d.Labels["tier"] = "ordinary"
		h.Make(d)
	}
	for i := range urgent {
		name := fmt.Sprintf("z-%d", i)
		d := h.deployment(name, 1, needs(name))
		d.Labels["tier"] = "urgent"
		h.Make(h.configMap(name), d)
	}
	h.run(nil)
	var list workv1alpha2.ResourceBindingList
	await.Equal(t, ordinary+2*urgent, func() int {
		if err := h.List(t.Context(), &list, client.InNamespace(h.ns)); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	})
	written := map[string]int{} // when, as the API server counts writes; each is written once
	for _, b := range list.Items {
		version, err := strconv.Atoi(b.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		written[b.Name] = version
	}
	for kind, most := range map[string]int{"deployment": ordinary / 4, "configmap": ordinary / 2} {
		last := 0
		for i := range urgent {
			last = max(last, written[fmt.Sprintf("z-%d-%s", i, kind)])
		}
		before := 0
		for i := range ordinary {
			if written[fmt.Sprintf("a-%03d-deployment", i)] < last {
				before++
			}
		}
		t.Logf("%d ordinary templates went before the last urgent %s", before, kind)
		if before > most {
			t.Errorf("%d of %d ordinary templates went before the last urgent %s, want at most %d", before, ordinary, kind, most)
		}
	}
}
