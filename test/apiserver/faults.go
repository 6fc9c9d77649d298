package apiserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Faults breaks the connection between a manager and its API server at some writes. Half of these
// writes reach the server although the manager gets an error; the others do not reach it.
type Faults struct {
	// Every is how many writes there are to one broken one, on average.
	Every int
	// Fatal drops all writes after the first broken one: the process is dead.
	Fatal bool
	dead  atomic.Bool
}

// Dead reports whether the fatal write has been made.
func (f *Faults) Dead() bool { return f.dead.Load() }

// AwaitDeath waits until the fatal write has come, for a limited time: a process with nothing left
// to write survives.
func (f *Faults) AwaitDeath() {
	for end := time.Now().Add(2 * time.Second); !f.Dead() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
}

// NewClient is a Manager's NewClient. No Faults (nil) break nothing.
func (f *Faults) NewClient(config *rest.Config, options client.Options) (client.Client, error) {
	if f == nil {
		return client.New(config, options)
	}
	c, err := client.NewWithWatch(config, options)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return f.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return f.write(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return f.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return f.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return f.write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return f.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	}), nil
}

func (f *Faults) write(do func() error) error {
	if f.Dead() {
		return errors.New("this process is dead")
	}
	if rand.IntN(f.Every) > 0 {
		return do()
	}
	if rand.IntN(2) > 0 {
		_ = do() // the result is lost with the answer
	}
	f.dead.Store(f.Fatal)
	return errors.New("the connection broke")
}
