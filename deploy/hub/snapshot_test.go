package hub

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// fakeMember is a member of etcd that has the committed state after a linearizable read, unless it
// is cut off.
type fakeMember struct{ cutOff, current bool }

func (f *fakeMember) Get(_ context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if op := clientv3.OpGet(key, options...); f.cutOff && !op.IsSerializable() {
		return nil, errors.New("no leader")
	} else if !op.IsSerializable() {
		f.current = true
	}
	return &clientv3.GetResponse{}, nil
}

func (f *fakeMember) SnapshotWithVersion(context.Context) (*clientv3.SnapshotResponse, error) {
	state := "old"
	if f.current {
		state = "current"
	}
	return &clientv3.SnapshotResponse{Snapshot: io.NopCloser(strings.NewReader(state))}, nil
}

// TestSnapshotIsCurrent: the state that a lagging member has is no backup.
func TestSnapshotIsCurrent(t *testing.T) {
	var out bytes.Buffer
	if err := copySnapshot(t.Context(), &fakeMember{}, &out); err != nil || out.String() != "current" {
		t.Errorf("a member that lags: %q (%v)", &out, err)
	}
	out.Reset()
	if err := copySnapshot(t.Context(), &fakeMember{cutOff: true}, &out); err == nil || !strings.Contains(err.Error(), "when all members run and reach each other") || out.Len() > 0 {
		t.Errorf("a member without a leader: %q (%v)", &out, err)
	}
}
