package work

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// settle is how long after an event of a Work it is compared with what is wanted. Such an event may be an echo of our own write
// that came before the answer, and the cache is then still behind the others of the same round.
const settle = 500 * time.Millisecond

// Events leads from a Work to what it was made of, as owner says: at once when one is gone, as a new one may wait for that; else
// when the cache has settled, unless it is the echo of a write by this Writer.
func (w *Writer) Events(owner func(*workv1alpha1.Work) (reconcile.Request, bool)) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(o client.Object, q queue, after time.Duration) {
		if req, ok := owner(o.(*workv1alpha1.Work)); ok {
			q.AddAfter(req, after)
		}
	}
	echo := func(o client.Object) bool {
		return w.written.OwnWrite(client.ObjectKeyFromObject(o), o.GetResourceVersion())
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if !echo(e.Object) {
				add(e.Object, q, settle)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if !echo(e.ObjectNew) {
				add(e.ObjectOld, q, settle)
				add(e.ObjectNew, q, settle)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			w.written.Forget(client.ObjectKeyFromObject(e.Object))
			add(e.Object, q, 0)
		},
	}
}
