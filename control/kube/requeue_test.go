package kube_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pelago-net/pelago/control/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestResult(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "peers"}, "g2", errors.New("newer"))
	broken := errors.New("broken")
	tests := map[string]struct {
		err            error
		member, atHub  time.Duration
		memberE, hubEr error
	}{
		"done":                       {nil, time.Minute, 0, nil, nil},
		"the cache is behind":        {fmt.Errorf("write it: %w", conflict), kube.RequeueStale, kube.RequeueHubStale, nil, nil},
		"made by an earlier attempt": {apierrors.NewAlreadyExists(schema.GroupResource{}, "g2"), kube.RequeueStale, kube.RequeueHubStale, nil, nil},
		"something else":             {broken, time.Minute, 0, broken, broken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := kube.Result(time.Minute, tt.err); got != (reconcile.Result{RequeueAfter: tt.member}) || err != tt.memberE {
				t.Errorf("Result: %v, %v", got, err)
			}
			if got, err := kube.HubResult(tt.err); got != (reconcile.Result{RequeueAfter: tt.atHub}) || err != tt.hubEr {
				t.Errorf("HubResult: %v, %v", got, err)
			}
		})
	}
	// What is broken must not hide behind a conflict.
	if _, err := kube.Result(0, errors.Join(conflict, broken)); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
