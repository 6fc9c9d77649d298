package replay

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// step is a request of a plan.
type step struct {
	*Request
	key   string // of the object that it is about; "" for a collection
	after []int  // steps that must have been answered
}

// plan orders recorded requests. A step waits for
//
//   - the last write to the same object that had been answered when it began: what is created is
//     there before it is changed, and the writes to one object stay in order. A write waits for the
//     reads since then as well: they are to find what they found;
//   - the one that created an object whose UID stands in its body;
//   - the one that gave out the resourceVersion that it names as precondition;
//   - the creation of its namespace;
//   - a watch for the list of the same collection, from which it continues.
//
// It waits for nothing else: the replaying client does not care that a controller could decide on
// the request only later.
func plan(requests []Request) []step {
	steps := make([]step, 0, len(requests))
	writers := map[string][]int{} // by key, ascending
	readers := map[string][]int{} // by key, since the last write
	lists := map[string]int{}     // by collection
	makers := map[string]int{}    // by UID
	versions := map[string]int{}  // by key and version
	for i := range requests {
		q := &requests[i]
		s := step{Request: q, key: keyOf(q)}
		for _, w := range slices.Backward(writers[s.key]) {
			if steps[w].ended < q.began {
				s.after = append(s.after, w)
				break
			}
		}
		for _, ns := range writers[namespaceOf(q)] {
			if steps[ns].ended < q.began {
				s.after = append(s.after, ns)
				break
			}
		}
		for _, uid := range uids.FindAllString(string(q.Body), -1) {
			if w, ok := makers[uid]; ok {
				s.after = append(s.after, w)
			}
		}
		for _, version := range preconditions(q.Body) {
			if w, ok := versions[s.key+"@"+version]; ok {
				s.after = append(s.after, w)
			}
		}
		if list, ok := lists[collectionOf(q)]; ok && q.Watch && steps[list].ended < q.began {
			s.after = append(s.after, list)
		}
		write := q.Method != http.MethodGet && s.key != ""
		if write {
			for _, r := range readers[s.key] {
				if steps[r].ended < q.began {
					s.after = append(s.after, r)
				}
			}
		}
		slices.Sort(s.after)
		s.after = slices.Compact(s.after)
		steps = append(steps, s)
		switch {
		case q.Method == http.MethodGet && !q.Watch && s.key == "":
			lists[collectionOf(q)] = i
		case !write && !q.Watch && s.key != "":
			readers[s.key] = append(readers[s.key], i)
		case write:
			delete(readers, s.key)
			writers[s.key] = append(writers[s.key], i)
			if _, known := makers[q.reply.UID]; q.reply.UID != "" && !known {
				makers[q.reply.UID] = i
			}
			if q.reply.Version != "" {
				versions[s.key+"@"+q.reply.Version] = i
			}
		}
	}
	return steps
}

var uids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// collectionOf is the server and path of a request, without its query.
func collectionOf(q *Request) string {
	path, _, _ := strings.Cut(q.URL, "?")
	return q.Server + path
}

// keyOf names the object that a request is about: server, group, resource, namespace and name; its
// subresources are it as well.
func keyOf(q *Request) string {
	u, err := url.Parse(q.URL)
	if err != nil {
		return ""
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = parts[1], parts[3:]
	default:
		return ""
	}
	namespace := ""
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		namespace, parts = parts[1], parts[2:]
	}
	name := q.reply.Name // of what was created
	if len(parts) > 1 {
		name = parts[1]
	}
	if name == "" {
		return ""
	}
	return strings.Join([]string{q.Server, group, parts[0], namespace, name}, "/")
}

// namespaceOf is the key of the namespace in which a request works.
func namespaceOf(q *Request) string {
	_, rest, ok := strings.Cut(q.URL, "/namespaces/")
	if !ok {
		return "none"
	}
	name, _, _ := strings.Cut(rest, "/")
	name, _, _ = strings.Cut(name, "?")
	return strings.Join([]string{q.Server, "", "namespaces", "", name}, "/")
}
