package kube

import (
	"bytes"
	stdjson "encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// seen is one event as a watcher sees it.
type seen struct {
	Type   watch.EventType
	Object any
}

// content is what of an object is compared.
func content(o runtime.Object) any {
	switch o := o.(type) {
	case *unstructured.Unstructured:
		return o.Object
	case *metav1.Status:
		o.TypeMeta = metav1.TypeMeta{} // which only one of the two keeps
	}
	return o
}

// decoded are the events of a stream up to its end or the first error.
func decoded(stream []byte) (events []seen, err error) {
	d := newDecoder(io.NopCloser(bytes.NewReader(stream)), func() object { return untyped{} })
	defer d.Close()
	for {
		kind, o, err := d.Decode()
		if err != nil {
			return events, err
		}
		events = append(events, seen{kind, content(o)})
	}
}

// expected are the events that encoding/json finds.
func expected(stream []byte) (events []seen) {
	for d := stdjson.NewDecoder(bytes.NewReader(stream)); ; {
		var e metav1.WatchEvent
		if d.Decode(&e) != nil {
			return events
		}
		kind, as := watch.EventType(e.Type), object(untyped{})
		switch kind {
		case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		case watch.Error:
			as = &typed{&metav1.Status{}}
		default:
			return events
		}
		o, err := as.read(e.Object.Raw)
		if err != nil {
			return events
		}
		events = append(events, seen{kind, content(o)})
	}
}

// FuzzDecode: of any stream the decoder delivers no event that encoding/json does not find there,
// and of a stream in the form that API servers write all of them.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		line("ADDED", oneWork) + line("BOOKMARK", bookmark) + line("ERROR", expired) + line("DELETED", oneWork), indented,
		strings.ReplaceAll(line("ADDED", oneWork)+line("DELETED", oneWork), "\n", ""),
		`{"object":` + oneWork + `,"type":"ADDED"}`, line(`\u0041DDED`, oneWork), line("ADDED", oneWork)[:99], "upstream is away\n",
		line("ADDED", `{"kind":"A"},"object":{"kind":"B"}`), line("ADDED", `{"kind":"A"},"type":"DELETED","x":{}`),
	} {
		f.Add([]byte(text), []byte(oneWork), byte(0))
	}
	f.Fuzz(func(t *testing.T, stream, one []byte, kind byte) {
		got, _ := decoded(stream)
		want := expected(stream)
		if len(got) > len(want) {
			t.Fatalf("%d events, encoding/json finds %d", len(got), len(want))
		}
		if diff := cmp.Diff(want[:len(got)], got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("-encoding/json +ours\n%s", diff)
		}

		var o map[string]any
		if stdjson.Unmarshal(one, &o) != nil || len(o) == 0 {
			return
		}
		types := []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark}
		text, err := stdjson.Marshal(struct {
			Type   watch.EventType `json:"type"`
			Object map[string]any  `json:"object"`
		}{types[int(kind)%len(types)], o})
		if err != nil {
			t.Fatal(err)
		}
		server := bytes.Repeat(append(text, '\n'), 3)
		got, err = decoded(server)
		if diff := cmp.Diff(expected(server), got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%v, -encoding/json +ours\n%s", err, diff)
		}
	})
}
