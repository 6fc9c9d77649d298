package hubclient_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/control/hubclient"
)

func TestResult(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "peers"}, "g2", errors.New("newer"))
	broken := errors.New("broken")
	tests := map[string]struct {
		err     error
		after   time.Duration
		wantErr error
	}{
		"done":                       {nil, 0, nil},
		"a stale cache":              {fmt.Errorf("write it: %w", conflict), hubclient.RequeueStale, nil},
		"made by an earlier attempt": {apierrors.NewAlreadyExists(schema.GroupResource{}, "g2"), hubclient.RequeueStale, nil},
		"something else":             {broken, 0, broken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := hubclient.Result(tt.err); got != (reconcile.Result{RequeueAfter: tt.after}) || err != tt.wantErr {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
