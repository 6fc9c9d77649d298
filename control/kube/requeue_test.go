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
		err     error
		after   time.Duration
		wantErr error
	}{
		"done":                       {nil, time.Minute, nil},
		"the cache is behind":        {fmt.Errorf("write it: %w", conflict), kube.RequeueStale, nil},
		"made by an earlier attempt": {apierrors.NewAlreadyExists(schema.GroupResource{}, "g2"), kube.RequeueStale, nil},
		"something else":             {broken, time.Minute, broken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := kube.Result(time.Minute, tt.err); got != (reconcile.Result{RequeueAfter: tt.after}) || err != tt.wantErr {
				t.Errorf("Result: %v, %v", got, err)
			}
		})
	}
	// What is broken must not hide behind a conflict.
	if _, err := kube.Result(0, errors.Join(conflict, broken)); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
