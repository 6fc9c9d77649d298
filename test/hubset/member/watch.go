package member

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// bookmarkEvery is how often a watch that requested bookmarks gets one.
const bookmarkEvery = 10 * time.Second

// selection is which objects of a kind a list or watch shows.
type selection struct {
	namespace string // "" is all
	labels    labels.Selector
	fields    fields.Selector
}

func newSelection(r *request) (selection, error) {
	q := r.URL.Query()
	s := selection{namespace: r.name.Namespace}
	var err error
	if s.labels, err = labels.Parse(q.Get("labelSelector")); err != nil {
		return s, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	if s.fields, err = fields.ParseSelector(q.Get("fieldSelector")); err != nil {
		return s, apierrors.NewBadRequest("fieldSelector: " + err.Error())
	}
	for _, requirement := range s.fields.Requirements() {
		switch requirement.Field {
		case "metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "type":
		default:
			return s, apierrors.NewBadRequest("field label not supported: " + requirement.Field)
		}
	}
	return s, nil
}

func (s selection) matches(o *unstructured.Unstructured) bool {
	if o == nil || s.namespace != "" && o.GetNamespace() != s.namespace || !s.labels.Matches(labels.Set(o.GetLabels())) {
		return false
	}
	return s.fields.Empty() || s.fields.Matches(fieldsOf{o})
}

// fieldsOf shows the fields of an object to a selector.
type fieldsOf struct{ *unstructured.Unstructured }

func (f fieldsOf) Has(field string) bool { return f.Get(field) != "" }

func (f fieldsOf) Get(field string) string {
	// what is no text is not selected by
	value, _, _ := unstructured.NestedString(f.Object, strings.Split(field, ".")...)
	return value
}

// serveCollection answers a list or a watch.
func (m *Member) serveCollection(w http.ResponseWriter, r *request) {
	sel, err := newSelection(r)
	if err != nil {
		fail(w, err)
		return
	}
	if watch, _ := strconv.ParseBool(r.URL.Query().Get("watch")); watch { // not given is false
		m.serveWatch(w, r, sel)
		return
	}
	m.mu.Lock()
	found, version := m.list(r.resource, sel), m.version
	m.mu.Unlock()
	items := make([]any, 0, len(found))
	for _, o := range found {
		items = append(items, r.shape(o))
	}
	kind, apiVersion := r.resource.kind+"List", r.resource.gvk().GroupVersion().String()
	if r.metadataOnly() {
		kind, apiVersion = "PartialObjectMetadataList", metav1.SchemeGroupVersion.String()
	}
	answer(w, http.StatusOK, map[string]any{
		"kind": kind, "apiVersion": apiVersion, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(version, 10)},
	})
}

// stream is one watch.
type stream struct {
	member   *Member
	request  *request
	selected selection
	w        http.ResponseWriter
	at       uint64 // resourceVersion up to which all has been sent
}

// serveWatch sends events until the client leaves, its time is over or the member ends.
func (m *Member) serveWatch(w http.ResponseWriter, r *request, sel selection) {
	q := r.URL.Query()
	seconds, err := strconv.Atoi(q.Get("timeoutSeconds"))
	if err != nil || seconds <= 0 {
		seconds = 1800
	}
	initial, _ := strconv.ParseBool(q.Get("sendInitialEvents"))     // not given is false
	bookmarks, _ := strconv.ParseBool(q.Get("allowWatchBookmarks")) // likewise
	s := &stream{member: m, request: r, selected: sel, w: w}
	from := q.Get("resourceVersion")
	if !initial && from != "" && from != "0" {
		if s.at, err = strconv.ParseUint(from, 10, 64); err != nil {
			fail(w, bare("resourceVersion: "+err.Error()))
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if s.at == 0 && !s.begin(initial && bookmarks) {
		return
	}
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	tick := time.NewTicker(bookmarkEvery)
	defer tick.Stop()
	for {
		changed, ok := s.catchUp()
		if !ok {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
			if bookmarks && !s.bookmark(nil) {
				return
			}
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-m.running.Done():
			return
		}
	}
}

// begin sends what exists, and a bookmark behind it if that is wanted.
func (s *stream) begin(bookmark bool) bool {
	s.member.mu.Lock()
	found := s.member.list(s.request.resource, s.selected)
	s.at = s.member.version
	s.member.mu.Unlock()
	for _, o := range found {
		if !s.send("ADDED", s.request.shape(o)) {
			return false
		}
	}
	if bookmark && !s.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"}) {
		return false
	}
	return s.flush()
}

// catchUp sends the events since the last time; changed is closed by the next one.
func (s *stream) catchUp() (changed chan struct{}, ok bool) {
	m := s.member
	m.mu.Lock()
	set := m.sets[s.request.resource]
	if s.at < set.expired {
		m.mu.Unlock()
		status := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", s.at, set.expired)).Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		s.send("ERROR", status)
		return nil, false
	}
	i := len(set.events)
	for i > 0 && set.events[i-1].version > s.at {
		i--
	}
	events := set.events[i:]
	changed = set.changed
	s.at = max(s.at, m.version)
	m.mu.Unlock()
	for _, e := range events {
		if !s.show(e) {
			return nil, false
		}
	}
	return changed, s.flush()
}

// show sends an event as the selection sees it: an object that no longer matches has gone, one that
// does now is new.
func (s *stream) show(e event) bool {
	was, is := s.selected.matches(e.before), s.selected.matches(e.after)
	switch {
	case is && !was:
		return s.send("ADDED", s.request.shape(e.after))
	case is:
		return s.send("MODIFIED", s.request.shape(e.after))
	case was && e.after == nil:
		return s.send("DELETED", s.request.shape(e.last))
	case was:
		last := e.before.DeepCopy()
		last.SetResourceVersion(e.after.GetResourceVersion())
		return s.send("DELETED", s.request.shape(last))
	}
	return true
}

func (s *stream) bookmark(annotations map[string]string) bool {
	o := blank(s.request.resource.gvk())
	if s.request.metadataOnly() {
		o = blank(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	}
	o.SetResourceVersion(strconv.FormatUint(s.at, 10))
	o.SetAnnotations(annotations)
	return s.send("BOOKMARK", o) && s.flush()
}

func (s *stream) send(kind string, object any) bool {
	return json.NewEncoder(s.w).Encode(map[string]any{"type": kind, "object": object}) == nil
}

func (s *stream) flush() bool { return http.NewResponseController(s.w).Flush() == nil }

// metadataOnly reports whether the client requested PartialObjectMetadata.
func (r *request) metadataOnly() bool {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	return strings.Contains(first, "as=PartialObjectMetadata")
}

// shape is an object as the client wants to see it.
func (r *request) shape(body any) any {
	o, ok := body.(*unstructured.Unstructured)
	if !ok || !r.metadataOnly() {
		return body
	}
	part := blank(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	part.Object["metadata"] = o.Object["metadata"]
	return part
}
