package merge

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// partsEvery is the interval at which a watch compares its parts with those of now.
	partsEvery = 5 * time.Second
	// watchAgain is when a watch ends that leaves out parts, so that the client's next one includes
	// them.
	watchAgain = 30 * time.Second
)

// partEvent is one of the watch of a part; err is set when that has ended.
type partEvent struct {
	of     Part
	err    error
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// Watch merges the watches of the parts. It ends when one of them does, and when the parts of now
// are others: the client continues from the last combined version, or lists again.
func (m *Lists) Watch(ctx context.Context, w http.ResponseWriter, query url.Values, now func() []Part) error {
	from, ok := ParseVersions(query.Get("resourceVersion"))
	if !ok || !from.Covers(m.Parts) {
		return relist()
	}
	_, fresh := from[""]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bodies := make([]io.ReadCloser, len(m.Parts))
	errs := m.each(func(i int) (err error) {
		its, stop := context.WithCancel(ctx)
		late := time.AfterFunc(timeout, stop)
		defer late.Stop()
		query := maps.Clone(query)
		query.Set("resourceVersion", from.Of(m.Parts[i]))
		bodies[i], err = m.Ask(its, i, query)
		return err
	})
	s := &sending{versions: Versions{}, events: make(chan partEvent)}
	var failed error
	for i, p := range m.Parts {
		switch {
		case errs[i] != nil:
			if failed == nil || isExpired(errs[i]) {
				failed = errs[i]
			}
			s.versions[p.Key], s.left = "", true
			warn(w, p, errs[i])
			continue
		case !fresh && from.Of(p) == "":
			failed = relist() // it was left out and answers now
		case !fresh:
			s.versions[p.Key] = from.Of(p)
		}
		defer bodies[i].Close()
		s.open++
	}
	if failed != nil && (s.open == 0 || isExpired(failed)) {
		w.Header().Del("Warning")
		return failed
	}
	for i, p := range m.Parts {
		if errs[i] == nil {
			go receive(ctx, p, bodies[i], s.events)
		}
	}
	s.send(ctx, w, func() bool { return slices.Equal(m.Parts, now()) })
	return nil
}

func receive(ctx context.Context, of Part, body io.Reader, to chan<- partEvent) {
	for d := json.NewDecoder(body); ; {
		e := partEvent{of: of}
		e.err = d.Decode(&e)
		select {
		case to <- e:
		case <-ctx.Done():
			return
		}
		if e.err != nil {
			return
		}
	}
}

// sending is the state of the merged watch: the versions up to which the client has received
// events, and how many watches have not yet ended their initial events.
type sending struct {
	versions Versions
	events   chan partEvent
	open     int
	left     bool // a part is left out
}

// send writes events until the watch ends. same reports whether the parts are still selected.
func (s *sending) send(ctx context.Context, w http.ResponseWriter, same func() bool) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	parts := time.NewTicker(partsEvery)
	defer parts.Stop()
	var again <-chan time.Time
	if s.left {
		again = time.After(watchAgain)
	}
	for out.Flush() == nil {
		select {
		case <-ctx.Done():
			return
		case <-again:
			return
		case <-parts.C:
			if !same() {
				return
			}
		case e := <-s.events:
			if e.err != nil || !s.write(w, e) {
				return
			}
		}
	}
}

// write reports whether the watch continues. Of the bookmarks that end the initial events of parts,
// the last one is sent.
func (s *sending) write(w io.Writer, e partEvent) bool {
	if e.Type != "ERROR" {
		object, err := dress(e.Object, e.of, func(own string) string {
			s.versions[e.of.Key] = own
			return s.versions.String()
		})
		if err != nil {
			return false
		}
		if e.Object = object; e.Type == "BOOKMARK" && bytes.Contains(object, []byte(metav1.InitialEventsAnnotationKey)) {
			if s.open--; s.open > 0 {
				return true
			}
		}
	}
	return json.NewEncoder(w).Encode(e) == nil && e.Type != "ERROR"
}
