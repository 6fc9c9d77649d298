package propagate

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"
)

// The queue gives what is most urgent, of equals what came first; urgency may rise and fall while a
// template waits, and is kept for the next time.
func TestOrder(t *testing.T) {
	o := newOrder()
	q := o.queue("", workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry))
	defer q.ShutDown()
	add := func(name string, urgency int32) {
		o.set(Key{Name: name}, urgency)
		q.Add(Key{Name: name})
	}
	take := func() string {
		key, _ := q.Get()
		q.Done(key)
		return key.Name
	}
	add("a", 0)
	add("b", -1)
	add("c", 7)
	add("d", 0)
	add("e", 7)
	add("f", 0)
	add("d", 9) // rises
	add("c", 0) // falls
	var got []string
	for q.Len() > 0 {
		got = append(got, take())
	}
	if diff := cmp.Diff([]string{"d", "e", "a", "c", "f", "b"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	q.Add(Key{Name: "a"})
	q.AddAfter(Key{Name: "d"}, 0) // as a retry does, which knows no urgency
	if got := take(); got != "d" {
		t.Errorf("%s goes first", got)
	}
	if n := len(o.urgency); n != 3 { // b, d, e
		t.Errorf("%d are kept", n)
	}
}

// Whatever is done, the next one is the first of all that wait, and nothing is lost or given twice.
func TestOrderProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrder()
		type waiter struct {
			key   Key
			since int
		}
		var waiting []waiter
		urgency := map[Key]int32{}
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := Key{Name: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "key"))}
			at := slices.IndexFunc(waiting, func(w waiter) bool { return w.key == key })
			switch {
			case rapid.Bool().Draw(t, "take") && len(waiting) > 0:
				first := slices.MinFunc(waiting, func(a, b waiter) int {
					if urgency[a.key] != urgency[b.key] {
						return int(urgency[b.key]) - int(urgency[a.key])
					}
					return a.since - b.since
				})
				if got := o.Pop(); got != first.key {
					t.Fatalf("got %s of %v with %v", got, waiting, urgency)
				}
				waiting = slices.DeleteFunc(waiting, func(w waiter) bool { return w == first })
			default:
				urgency[key] = rapid.Int32Range(-2, 2).Draw(t, "urgency")
				o.set(key, urgency[key])
				if at < 0 {
					o.Push(key)
					waiting = append(waiting, waiter{key, step})
				} else {
					o.Touch(key)
				}
			}
			if o.Len() != len(waiting) {
				t.Fatalf("%d wait, want %d", o.Len(), len(waiting))
			}
		}
	})
}
