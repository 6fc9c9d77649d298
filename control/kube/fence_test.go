package kube

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is one whose writes take a second and may fail.
type lease struct {
	resourcelock.Interface
	clock *time.Time
	err   error
}

func (l *lease) Create(context.Context, resourcelock.LeaderElectionRecord) error { return l.write() }
func (l *lease) Update(context.Context, resourcelock.LeaderElectionRecord) error { return l.write() }

func (l *lease) write() error {
	*l.clock = l.clock.Add(time.Second)
	return l.err
}

func (l *lease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return nil, nil, l.write()
}

// Every access to the lease is an attempt, above all one that fails: the API server may be away.
func TestAttempted(t *testing.T) {
	clock := time.Unix(1_700_000_000, 0)
	f := NewFence(10 * time.Second)
	f.now = func() time.Time { return clock }
	l := f.Lock(&lease{clock: &clock, err: errors.New("connection refused")})
	if !f.Attempted().IsZero() {
		t.Errorf("attempted at %s before the first attempt", f.Attempted())
	}
	for name, do := range map[string]func() error{
		"get":    func() error { _, _, err := l.Get(t.Context()); return err },
		"create": func() error { return l.Create(t.Context(), resourcelock.LeaderElectionRecord{}) },
		"update": func() error { return l.Update(t.Context(), resourcelock.LeaderElectionRecord{}) },
	} {
		clock = clock.Add(time.Minute)
		if began := clock; do() == nil || !f.Attempted().Equal(began) {
			t.Errorf("%s: attempted at %s, want %s", name, f.Attempted(), began)
		}
	}
}

type passed int

func (p *passed) RoundTrip(*http.Request) (*http.Response, error) {
	*p++
	return &http.Response{StatusCode: http.StatusOK}, nil
}

// Writes pass for 10 s after the beginning of the last renewal that succeeded, reads always.
func TestFence(t *testing.T) {
	clock := time.Unix(1_700_000_000, 0)
	f := NewFence(10 * time.Second)
	f.now = func() time.Time { return clock }
	l := &lease{clock: &clock}
	lock := f.Lock(l)
	ours := resourcelock.LeaderElectionRecord{HolderIdentity: "hub-0"}
	renew := func() error { return lock.Update(t.Context(), ours) }
	for _, step := range []struct {
		name string
		do   func() error
		fail bool
		open bool
	}{
		{name: "at first"},
		{name: "another one has it", fail: true, do: func() error { l.err = errors.New("conflict"); return lock.Create(t.Context(), ours) }},
		{name: "taken", open: true, do: func() error { l.err = nil; return lock.Create(t.Context(), ours) }},
		{name: "9 s after that began", open: true, do: func() error { clock = clock.Add(8 * time.Second); return nil }},
		{name: "renewed", open: true, do: renew},
		{name: "asleep for 20 s", do: func() error { clock = clock.Add(20 * time.Second); return nil }},
		{name: "not renewed", fail: true, do: func() error { l.err = errors.New("conflict"); return renew() }},
		{name: "renewed after all", open: true, do: func() error { l.err = nil; return renew() }},
		{name: "given back", do: func() error { return lock.Update(t.Context(), resourcelock.LeaderElectionRecord{}) }},
	} {
		if step.do != nil {
			if err := step.do(); (err != nil) != step.fail {
				t.Fatalf("%s: %v", step.name, err)
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			var through passed
			request, err := http.NewRequestWithContext(t.Context(), method, "https://member.example", nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Wrap(&through).RoundTrip(request)
			if want := step.open || method == http.MethodGet; (err == nil) != want || (through == 1) != want {
				t.Errorf("%s, %s: %d passed, %v", step.name, method, through, err)
			}
		}
	}
}
