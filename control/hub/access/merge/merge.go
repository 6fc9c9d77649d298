// Package merge makes one list, or one watch, of those of several clusters: combined
// resourceVersions and continue tokens, objects that name their cluster, and the reverse for
// writes.
//
// control/hub/access reads the parts for it. It never chooses clusters and knows no user.
package merge

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
)

// Part is the list of one cluster in a list over several.
type Part struct {
	Key                string // unique in the list
	Cluster, Namespace string // Namespace: empty for all
	Kind, APIVersion   string // of its objects
}

// Versions is a combined resourceVersion: that of each part, by key; empty for one that could not
// be read. To clients it is base64 of its JSON.
type Versions map[string]string

func (v Versions) String() string { return token(v) }

// Of is the resourceVersion of a part: a plain "" or "0" applies to all parts.
func (v Versions) Of(p Part) string {
	if all, ok := v[""]; ok {
		return all
	}
	if own, ok := v[p.Key]; ok {
		return own
	}
	// of a list of several namespaces, in a request for one object
	return v[p.Cluster+"/"+p.Namespace]
}

// ParseVersions reports false for other versions, above all those of a single API server.
func ParseVersions(text string) (Versions, bool) {
	if text == "" || text == "0" {
		return Versions{"": text}, true
	}
	var v Versions
	return v, parseToken(text, &v) && v != nil
}

// Covers reports whether v has exactly the parts of a request. Objects of a part that is no longer
// selected would stay in the client's cache, and those of a new one have no version from which a
// watch could be resumed.
func (v Versions) Covers(now []Part) bool {
	_, all := v[""]
	return all || len(v) == len(now) && !slices.ContainsFunc(now, func(p Part) bool { _, ok := v[p.Key]; return !ok })
}

// next is a combined continue token: the list continues in part At with that member's token, and
// then in the parts after it.
type next struct {
	Versions Versions
	At       string
	Continue string `json:",omitempty"`
}

func token(of any) string {
	text, _ := json.Marshal(of) // strings and maps of them
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseToken(text string, into any) bool {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	return err == nil && json.Unmarshal(raw, into) == nil
}

// jsonObject has the fields of a JSON object.
type jsonObject = map[string]json.RawMessage

// dress adds to an object of a part, or to those of a Table, the annotation with the cluster, and
// the kind, which members leave out in lists. version, if set, replaces the resourceVersion.
func dress(raw json.RawMessage, p Part, version func(own string) string) (json.RawMessage, error) {
	var o, m jsonObject
	annotations := map[string]string{}
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, err
	}
	if string(o["kind"]) == `"Table"` && strings.HasPrefix(string(o["apiVersion"]), `"meta.k8s.io/`) {
		var rows []json.RawMessage
		if err := json.Unmarshal(o["rows"], &rows); err != nil {
			return nil, err
		}
		for i := range rows {
			var err error
			if rows[i], err = dressRow(rows[i], p, version); err != nil {
				return nil, err
			}
		}
		o["rows"], _ = json.Marshal(rows) // parsed above
		return json.Marshal(o)
	}
	if err := json.Unmarshal(o["metadata"], &m); err != nil {
		return nil, err
	}
	if m == nil { // null
		return nil, errors.New("an object without metadata")
	}
	if m["annotations"] != nil {
		if err := json.Unmarshal(m["annotations"], &annotations); err != nil {
			return nil, err
		}
	}
	if annotations == nil { // null
		annotations = map[string]string{}
	}
	annotations[searchv1alpha1.AnnotationCluster] = p.Cluster
	m["annotations"], _ = json.Marshal(annotations)
	if version != nil {
		var own string
		if err := json.Unmarshal(m["resourceVersion"], &own); err != nil {
			return nil, err
		}
		m["resourceVersion"], _ = json.Marshal(version(own))
	}
	o["metadata"], _ = json.Marshal(m)
	if o["kind"] == nil {
		o["kind"], _ = json.Marshal(p.Kind)
		o["apiVersion"], _ = json.Marshal(p.APIVersion)
	}
	return json.Marshal(o)
}

// dressRow does the same to the object of a Table's row.
func dressRow(raw json.RawMessage, p Part, version func(own string) string) (json.RawMessage, error) {
	var row jsonObject
	if err := json.Unmarshal(raw, &row); err != nil {
		return nil, err
	}
	var err error
	if row["object"], err = dress(row["object"], p, version); err != nil {
		return nil, err
	}
	return json.Marshal(row)
}

// Undress reverts dress in the object, patch or options of a write: it removes the annotation, and
// makes a combined resourceVersion that of the part. changed is false if neither is there. An error
// is a combined version without this part.
func Undress(object map[string]any, p Part) (changed bool, err error) {
	for _, of := range []string{"metadata", "preconditions"} {
		m, _ := object[of].(map[string]any)
		if annotations, ok := m["annotations"].(map[string]any); ok && annotations[searchv1alpha1.AnnotationCluster] != nil {
			delete(annotations, searchv1alpha1.AnnotationCluster)
			changed = true
		}
		combined, _ := m["resourceVersion"].(string)
		v, ok := ParseVersions(combined)
		if !ok || combined == "" || combined == "0" {
			continue
		}
		if m["resourceVersion"] = v.Of(p); v.Of(p) == "" {
			return false, fmt.Errorf("its resourceVersion is from before cluster %s was selected: read it again", p.Cluster)
		}
		changed = true
	}
	return changed, nil
}
