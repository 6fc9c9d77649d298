package manifests

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reads is a reader that answers by a function.
type reads struct {
	client.Reader
	get func(l *coordinationv1.Lease)
}

func (r reads) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	l := obj.(*coordinationv1.Lease)
	*l = lease(key.Name, 0)
	r.get(l)
	return nil
}

// lease is one that expires after a second; its holder's clock is ahead by the time.
func lease(name string, ahead time.Duration) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("x"),
		LeaseDurationSeconds: ptr.To[int32](1), RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(1e9, 0).Add(ahead)))}}
}

// TestHeld: a Lease is held while it is renewed, whatever the clocks of its holder and of this
// machine show.
func TestHeld(t *testing.T) {
	released := lease("released before", 0)
	released.Spec.HolderIdentity = nil
	given := []coordinationv1.Lease{lease("renewed", 0), lease("clock far ahead", 0), released, lease("released now", 0), lease("dead", 0)}
	reader := reads{get: func(l *coordinationv1.Lease) {
		switch l.Name {
		case "renewed":
			// years ago by the clock of this machine
			l.Spec.RenewTime.Time = l.Spec.RenewTime.Add(time.Second)
		case "clock far ahead":
			l.Spec.RenewTime.Time = time.Now().Add(time.Hour)
		case "released now":
			l.Spec.HolderIdentity = nil
			l.Spec.RenewTime.Time = l.Spec.RenewTime.Add(time.Second)
		}
	}}
	held, err := Held(t.Context(), reader, slices.Clone(given)...)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range held {
		names = append(names, l.Name)
	}
	if diff := cmp.Diff([]string{"renewed", "clock far ahead"}, names); diff != "" {
		t.Errorf("held: -want +got\n%s", diff)
	}
	start := time.Now()
	slow := given[0]
	slow.Spec.LeaseDurationSeconds = ptr.To[int32](15)
	if held, err = Held(t.Context(), reader, slow); err != nil || len(held) != 1 || time.Since(start) > 14*time.Second {
		t.Errorf("a renewed Lease: %d (%v) after %v, want it at the first renewal", len(held), err, time.Since(start))
	}
}
