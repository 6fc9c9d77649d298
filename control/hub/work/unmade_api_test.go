package work_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/test/await"
)

// An object that the hub can store may be too large for a Work, since JSON escapes its quotes once
// more: the reason with its size is reported for the binding, until the object is smaller.
func TestTooLargeForAWork(t *testing.T) {
	h := newHub(t)
	c := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "dashboard"}, Data: map[string]string{"json": strings.Repeat(`"`, 900_000)}}
	h.Make(c)
	b := bindingOf(c, "v1", "ConfigMap", "b1", on("m1", 0))
	h.Make(b)
	u := &binding.Unmade{}
	h.manager(&writes{}, func(o *work.BindingOptions) { o.Unmade = u }).Run(h, h.Config)
	why := func() string { return u.Of(client.ObjectKeyFromObject(b))["m1"] }
	await.True(t, "it is told", func() bool {
		return strings.Contains(why(), "too large: its manifest has 1758 KiB, of about 1500 that the hub can store: make the object smaller")
	})
	c.Data["json"] = "{}"
	if err := h.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "", why)
}
