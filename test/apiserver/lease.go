package apiserver

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Renew renews a Lease, by a clock that is an hour behind, until it is stopped.
func Renew(t testing.TB, c client.Client, lease *coordinationv1.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().Add(-time.Hour).Format(metav1.RFC3339Micro))
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}}
			if err := c.Patch(ctx, l, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil && ctx.Err() == nil {
				t.Errorf("renew Lease %s: %v", lease.Name, err)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-ended }
}
