package merge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// fanOut bounds the clusters that a request reads at the same time. One that does not answer
	// takes 5 s to be dialled, so that with a smaller number others would have no time left.
	fanOut = 64
	// timeout is how long a list, or the beginning of a watch, may take. An API server ends
	// requests that are no watches after a minute.
	timeout = 20 * time.Second
	// maxObject bounds an object, or the list of one, in bytes.
	maxObject = 8 << 20
)

// Lists reads the lists of several clusters as one. A cluster that fails is left out, with a header
// Warning, unless all fail.
type Lists struct {
	Parts []Part // sorted by key
	// Kind and APIVersion are those of the list if there are no parts.
	Kind, APIVersion string
	// Ask reads from a part: JSON, as the client wants it (objects, their metadata or a Table). The
	// error is a *StatusError.
	Ask func(ctx context.Context, part int, query url.Values) (io.ReadCloser, error)
	// MaxBytes bounds a list over all parts; Full the lists without limit that are merged at the
	// same time.
	MaxBytes int64
	Full     *semaphore.Weighted
}

// page is a list of a part, of objects or a Table.
type page struct {
	metav1.TypeMeta   `json:",inline"`
	Metadata          metav1.ListMeta   `json:"metadata"`
	ColumnDefinitions json.RawMessage   `json:"columnDefinitions"`
	Items             []json.RawMessage `json:"items"`
	Rows              []json.RawMessage `json:"rows"`
}

// merged is the list that the client gets.
type merged struct {
	page
	versions Versions
	answered bool  // by a part
	first    error // of a part that is left out
}

// add appends the page of a part, or leaves the part out. Errors of the request, such as an expired
// token, are returned.
func (m *merged) add(w http.ResponseWriter, of Part, p *page, err error) error {
	switch {
	case isExpired(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return err
	case err != nil:
		if m.first == nil {
			m.first = err
		}
		m.seen(of, "")
		warn(w, of, err)
		return nil
	}
	m.answered, m.TypeMeta = true, p.TypeMeta
	if p.ColumnDefinitions != nil {
		m.ColumnDefinitions = p.ColumnDefinitions
	}
	m.Items, m.Rows = append(m.Items, p.Items...), append(m.Rows, p.Rows...)
	m.seen(of, p.Metadata.ResourceVersion)
	return nil
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// seen keeps the first version of a part: a watch from there has all changes since.
func (m *merged) seen(of Part, version string) {
	if _, ok := m.versions[of.Key]; !ok {
		m.versions[of.Key] = version
	}
}

func warn(w http.ResponseWriter, of Part, err error) {
	text := strings.Join(strings.Fields(fmt.Sprintf("cluster %s is left out: %v", of.Cluster, err)), " ")
	if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil { // 299: RFC 7234, 5.5.7
		w.Header().Add("Warning", header)
	}
}

// write sends the list, or the error of a part if none answered.
func (m *merged) write(w http.ResponseWriter) error {
	if !m.answered && m.first != nil {
		w.Header().Del("Warning")
		return m.first
	}
	m.Metadata.ResourceVersion = m.versions.String()
	head, err := json.Marshal(struct {
		metav1.TypeMeta
		Metadata metav1.ListMeta `json:"metadata"`
	}{m.TypeMeta, m.Metadata})
	if err != nil {
		return err
	}
	name, items := `,"items":[`, m.Items
	if m.ColumnDefinitions != nil {
		name, items = `,"columnDefinitions":`+string(m.ColumnDefinitions)+`,"rows":[`, m.Rows
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = fmt.Fprintf(w, "%s%s", head[:len(head)-1], name)
	for i, separator := 0, ""; i < len(items) && err == nil; i, separator = i+1, "," {
		_, err = fmt.Fprintf(w, "%s%s", separator, items[i])
	}
	if err == nil {
		_, _ = io.WriteString(w, "]}\n") // the client has gone
	}
	return nil
}

// each calls do for the parts concurrently and returns the errors in their order.
func (m *Lists) each(do func(i int) error) []error {
	errs := make([]error, len(m.Parts))
	var g errgroup.Group
	g.SetLimit(fanOut)
	for i := range m.Parts {
		g.Go(func() error {
			errs[i] = do(i)
			return nil
		})
	}
	_ = g.Wait() // always nil
	return errs
}

// Get reads what Ask does as an object, from each part: nil with an error where it is not found.
func (m *Lists) Get(ctx context.Context, query url.Values) ([]json.RawMessage, []error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found := make([]json.RawMessage, len(m.Parts))
	return found, m.each(func(i int) error {
		body, err := m.Ask(ctx, i, query)
		if err != nil {
			return err
		}
		defer body.Close()
		raw, err := io.ReadAll(io.LimitReader(body, maxObject))
		if err == nil {
			found[i], err = dress(raw, m.Parts[i], nil)
		}
		return notRead(m.Parts[i], err)
	})
}

func notRead(of Part, err error) error {
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("read the answer of cluster %s: %v", of.Cluster, err))
	}
	return nil
}

// List merges the lists of the parts: all at once, or with a limit one after the other until it is
// reached.
func (m *Lists) List(ctx context.Context, w http.ResponseWriter, query url.Values) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	from, ok := ParseVersions(query.Get("resourceVersion"))
	var at next
	if text := query.Get("continue"); text != "" {
		ok = parseToken(text, &at) && at.Versions != nil
		from = at.Versions
	}
	limit, err := strconv.Atoi("0" + query.Get("limit"))
	switch {
	case err != nil:
		return apierrors.NewBadRequest("limit is not a number: " + err.Error())
	case !ok || !from.Covers(m.Parts):
		return relist()
	}
	query = maps.Clone(query)
	for _, name := range []string{"limit", "continue", "resourceVersion"} {
		query.Del(name)
	}
	out, budget := &merged{versions: Versions{}}, &atomic.Int64{}
	out.Kind, out.APIVersion = m.Kind, m.APIVersion
	budget.Store(m.MaxBytes)
	if limit > 0 || at.At != "" {
		return m.pages(ctx, w, query, from, at, limit, out, budget)
	}
	if err := m.Full.Acquire(ctx, 1); err != nil {
		return apierrors.NewTooManyRequests("too many lists without limit are being merged: use a limit", 1)
	}
	defer m.Full.Release(1)
	pages := make([]*page, len(m.Parts))
	errs := m.each(func(i int) (err error) {
		pages[i], err = m.page(ctx, i, withVersion(query, from.Of(m.Parts[i])), budget)
		return err
	})
	for i, p := range m.Parts {
		if err := out.add(w, p, pages[i], errs[i]); err != nil {
			return err
		}
	}
	return out.write(w)
}

// pages lists part after part, from at until the limit is reached; 0: none.
func (m *Lists) pages(ctx context.Context, w http.ResponseWriter, query url.Values, from Versions, at next, limit int, out *merged, budget *atomic.Int64) error {
	resumed := at.At != ""
	if resumed {
		// list the latest objects: a watch from the first page's versions repeats the changes
		out.versions, from = at.Versions, nil
		query.Del("resourceVersionMatch")
	}
	var more next
	for i, p := range m.Parts {
		if p.Key < at.At {
			continue
		}
		n := max(len(out.Items), len(out.Rows))
		if limit > 0 && n >= limit {
			more.At = p.Key
			break
		}
		its := withVersion(query, from.Of(p))
		if limit > 0 {
			its.Set("limit", strconv.Itoa(limit-n))
		}
		if p.Key == at.At && at.Continue != "" {
			its.Set("continue", at.Continue)
		}
		got, err := m.page(ctx, i, its, budget)
		if err := out.add(w, p, got, err); err != nil {
			return err
		}
		if err == nil && got.Metadata.Continue != "" {
			more = next{At: p.Key, Continue: got.Metadata.Continue}
			break
		}
	}
	if more.At != "" {
		m.versions(ctx, query, out)
		more.Versions = out.versions
		out.Metadata.Continue = token(more)
	}
	return out.write(w)
}

// versions reads those of the parts that a first page has not reached: clients watch from the
// version of that page.
func (m *Lists) versions(ctx context.Context, query url.Values, out *merged) {
	query = withVersion(query, "")
	query.Set("limit", "1")
	// empty if it failed: the page of the part has the warning
	found := make([]string, len(m.Parts))
	m.each(func(i int) error {
		if _, ok := out.versions[m.Parts[i].Key]; ok {
			return nil
		}
		budget := &atomic.Int64{}
		budget.Store(maxObject)
		p, err := m.page(ctx, i, query, budget)
		if err == nil {
			found[i] = p.Metadata.ResourceVersion
		}
		return err
	})
	for i, p := range m.Parts {
		out.seen(p, found[i])
	}
}

// withVersion is the query with a part's resourceVersion. Without a version it must not have a
// resourceVersionMatch.
func withVersion(query url.Values, version string) url.Values {
	query = maps.Clone(query)
	if version == "" {
		query.Del("resourceVersionMatch")
	} else {
		query.Set("resourceVersion", version)
	}
	return query
}

func relist() error {
	return apierrors.NewResourceExpired("the clusters of this list have changed, or its version is not from here: list again without resourceVersion and continue")
}

// page reads a list. budget is the number of bytes that all pages of the request may still have.
func (m *Lists) page(ctx context.Context, i int, query url.Values, budget *atomic.Int64) (*page, error) {
	body, err := m.Ask(ctx, i, query)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(&spending{body, budget})
	if budget.Load() < 0 {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the list has more than %d bytes: use a limit (kubectl --chunk-size)", m.MaxBytes))
	}
	p := &page{}
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	for j := 0; j < len(p.Items) && err == nil; j++ {
		p.Items[j], err = dress(p.Items[j], m.Parts[i], nil)
	}
	for j := 0; j < len(p.Rows) && err == nil; j++ {
		p.Rows[j], err = dressRow(p.Rows[j], m.Parts[i], nil)
	}
	return p, notRead(m.Parts[i], err)
}

// spending ends a body when the budget is exceeded.
type spending struct {
	io.Reader
	budget *atomic.Int64
}

func (r *spending) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.budget.Add(-int64(n)) < 0 {
		return 0, io.EOF
	}
	return n, err
}
