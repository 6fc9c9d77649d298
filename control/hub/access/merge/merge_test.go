package merge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func partOf(cluster string) Part {
	return Part{Key: cluster, Cluster: cluster, Kind: "Pod", APIVersion: "v1"}
}

func TestVersions(t *testing.T) {
	combined := Versions{"m1": "5", "m2": ""}
	v, ok := ParseVersions(combined.String())
	if diff := cmp.Diff(combined, v); !ok || diff != "" {
		t.Errorf("parsed: %v %s", ok, diff)
	}
	if none, ok := ParseVersions(Versions{}.String()); !ok || !none.Covers(nil) {
		t.Errorf("a version of no clusters: %v %v", none, ok)
	}
	// of an API server; no base64; null; 12
	for _, text := range []string{"12345", "x", "bnVsbA", "MTI"} {
		if v, ok := ParseVersions(text); ok {
			t.Errorf("%q is %v", text, v)
		}
	}
	zero, _ := ParseVersions("0")
	for name, got := range map[string]bool{
		"the same":    v.Covers([]Part{partOf("m1"), partOf("m2")}),
		"one more":    !v.Covers([]Part{partOf("m1"), partOf("m2"), partOf("m3")}),
		"one less":    !v.Covers([]Part{partOf("m1")}),
		"another one": !v.Covers([]Part{partOf("m1"), partOf("m3")}),
		"0":           zero.Covers([]Part{partOf("m3")}) && zero.Of(partOf("m3")) == "0",
		"namespaces":  Versions{"m1/shop": "7"}.Of(Part{Key: "m1", Cluster: "m1", Namespace: "shop"}) == "7",
	} {
		if !got {
			t.Error(name)
		}
	}
}

func TestDress(t *testing.T) {
	doubled := func(own string) string { return own + own }
	for name, c := range map[string]struct {
		raw, want string
		version   func(string) string
	}{
		"an item of a list": {`{"metadata":{"name":"a"}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"resource.karmada.io/cached-from-cluster":"m1"},"name":"a"}}`, nil},
		"its kind stays": {`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"annotations":{"a":"b"},"resourceVersion":"5"},"x":12345678901234567890}`,
			`{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"annotations":{"a":"b","resource.karmada.io/cached-from-cluster":"m1"},"resourceVersion":"55"},"x":12345678901234567890}`, doubled},
		"rows": {`{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{"cells":["a"],"object":{"kind":"P","metadata":{"annotations":null,"resourceVersion":"5"}}}]}`,
			`{"apiVersion":"meta.k8s.io/v1","kind":"Table","rows":[{"cells":["a"],"object":{"kind":"P","metadata":{"annotations":{"resource.karmada.io/cached-from-cluster":"m1"},"resourceVersion":"55"}}}]}`, doubled},
		"a Table of users": {`{"kind":"Table","apiVersion":"furniture.example.com/v1","metadata":{},"rows":1}`,
			`{"apiVersion":"furniture.example.com/v1","kind":"Table","metadata":{"annotations":{"resource.karmada.io/cached-from-cluster":"m1"}},"rows":1}`, nil},
	} {
		got, err := dress(json.RawMessage(c.raw), partOf("m1"), c.version)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n%s, want\n%s", name, err, got, c.want)
		}
	}
	for _, raw := range []string{``, `[]`, `{}`, `{"metadata":null}`, `{"metadata":{"annotations":1}}`, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{}]}`} {
		if got, err := dress(json.RawMessage(raw), partOf("m1"), nil); err == nil {
			t.Errorf("%s: %s", raw, got)
		}
	}
}

// FuzzDress: whatever a member answers, the result is JSON with the annotation.
func FuzzDress(f *testing.F) {
	f.Add([]byte(`{"metadata":{"annotations":{"a":"b"},"resourceVersion":"5"}}`))
	f.Add([]byte(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{"object":{"metadata":{"resourceVersion":"5"}}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, version := range []func(string) string{nil, func(string) string { return "v" }} {
			out, err := dress(raw, partOf("m1"), version)
			if err != nil {
				continue
			}
			var o struct {
				Kind     string
				Metadata struct {
					Annotations     map[string]string
					ResourceVersion string
				}
			}
			if err := json.Unmarshal(out, &o); err != nil {
				t.Fatalf("%s: %v: %s", raw, err, out)
			}
			if o.Kind != "Table" && o.Metadata.Annotations["resource.karmada.io/cached-from-cluster"] != "m1" {
				t.Errorf("%s: %s", raw, out)
			}
		}
	})
}

func TestUndress(t *testing.T) {
	combined := Versions{"m1": "5", "m2": "7"}.String()
	for name, c := range map[string]struct {
		body, want string // want is empty for an error
		changed    bool
	}{
		"an object":         {`{"metadata":{"annotations":{"a":"b","resource.karmada.io/cached-from-cluster":"m1"},"resourceVersion":"5"}}`, `{"metadata":{"annotations":{"a":"b"},"resourceVersion":"5"}}`, true},
		"of an event":       {`{"metadata":{"resourceVersion":"` + combined + `"}}`, `{"metadata":{"resourceVersion":"5"}}`, true},
		"a deletion":        {`{"preconditions":{"resourceVersion":"` + combined + `"}}`, `{"preconditions":{"resourceVersion":"5"}}`, true},
		"another cluster's": {`{"metadata":{"resourceVersion":"` + Versions{"m2": "7"}.String() + `"}}`, ``, false},
		"a patch":           {`{"spec":{"replicas":2}}`, `{"spec":{"replicas":2}}`, false},
		"nothing":           {`null`, `null`, false},
	} {
		var body map[string]any
		if err := json.Unmarshal([]byte(c.body), &body); err != nil {
			t.Fatal(err)
		}
		changed, err := Undress(body, partOf("m1"))
		if got, _ := json.Marshal(body); (err != nil) != (c.want == "") || err == nil && (string(got) != c.want || changed != c.changed) {
			t.Errorf("%s: %s, changed %v, %v", name, got, changed, err)
		}
	}
}

// lists are members with n objects each; negative: the member fails.
func lists(size map[string]int, fail error, keys ...string) *Lists {
	m := &Lists{Kind: "PodList", APIVersion: "v1", MaxBytes: 10_000, Full: semaphore.NewWeighted(1)}
	for _, key := range keys {
		m.Parts = append(m.Parts, partOf(key))
	}
	m.Ask = func(_ context.Context, i int, query url.Values) (io.ReadCloser, error) {
		from, to := 0, size[keys[i]]
		if to < 0 {
			return nil, fail
		}
		_, _ = fmt.Sscan(query.Get("continue"), &from) // 0 without one
		limit, next := to, ""
		if _, err := fmt.Sscan(query.Get("limit"), &limit); err == nil && from+limit < to {
			to, next = from+limit, fmt.Sprint(from+limit)
		}
		var items []string
		for j := from; j < to; j++ {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":"%s-%d"}}`, keys[i], j))
		}
		return io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d","continue":"%s"},"items":[%s]}`,
			100+i, next, strings.Join(items, ",")))), nil
	}
	return m
}

func TestMergeList(t *testing.T) {
	away := apierrors.NewServiceUnavailable("cluster is away")
	old := apierrors.NewResourceExpired("too old")
	sizes := map[string]int{"m1": 3, "m2": 0, "m3": 2}
	for name, c := range map[string]struct {
		m     *Lists
		limit string
		pages string // names of each page, or the error
		warns int
	}{
		"all":            {lists(sizes, nil, "m1", "m2", "m3"), "", "m1-0 m1-1 m1-2 m3-0 m3-1", 0},
		"pages":          {lists(sizes, nil, "m1", "m2", "m3"), "2", "m1-0 m1-1|m1-2 m3-0|m3-1", 0},
		"exactly":        {lists(sizes, nil, "m1", "m2", "m3"), "3", "m1-0 m1-1 m1-2|m3-0 m3-1", 0},
		"none":           {lists(nil, nil), "", "", 0},
		"one is away":    {lists(map[string]int{"m1": 1, "m2": -1}, away, "m1", "m2"), "", "m1-0", 1},
		"away, pages":    {lists(map[string]int{"m1": -1, "m2": 2}, away, "m1", "m2"), "1", "m2-0|m2-1", 1},
		"all are away":   {lists(map[string]int{"m1": -1, "m2": -1}, away, "m1", "m2"), "", "cluster is away", 0},
		"one is too old": {lists(map[string]int{"m1": 1, "m2": -1}, old, "m1", "m2"), "", "too old", 0},
		"too large":      {lists(map[string]int{"m1": 1000}, nil, "m1"), "", "the list has more than 10000 bytes: use a limit (kubectl --chunk-size)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var pages []string
			query, warns := url.Values{"limit": {c.limit}}, 0
			for first := true; ; first = false {
				w := httptest.NewRecorder()
				if err := c.m.List(t.Context(), w, query); err != nil {
					pages = append(pages, strings.TrimPrefix(err.Error(), "Request entity too large: "))
					break
				}
				warns += len(w.Header().Values("Warning"))
				p := &page{}
				if err := json.Unmarshal(w.Body.Bytes(), p); err != nil {
					t.Fatalf("%v: %s", err, w.Body)
				}
				if v, ok := ParseVersions(p.Metadata.ResourceVersion); first && (!ok || !v.Covers(c.m.Parts)) {
					t.Errorf("the first page has version %v", v)
				}
				var names []string
				for _, item := range p.Items {
					var o struct{ Metadata struct{ Name string } }
					if err := json.Unmarshal(item, &o); err != nil {
						t.Fatal(err)
					}
					names = append(names, o.Metadata.Name)
				}
				pages = append(pages, strings.Join(names, " "))
				if p.Metadata.Continue == "" {
					break
				}
				query.Set("continue", p.Metadata.Continue)
			}
			if got := strings.Join(pages, "|"); got != c.pages || warns != c.warns {
				t.Errorf("%s with %d warnings, want %s with %d", got, warns, c.pages, c.warns)
			}
		})
	}
}
