package work

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// maxKept bounds the text of a kept revision in bytes: an object has 256 KiB of annotations.
const maxKept = 192 << 10

// revisions are those of a template in a rollout.
type revisions struct {
	*workv1alpha2.Rollout
	// text is that of AnnotationKeptRevision, template its content; empty: it is not kept, since it
	// is too large, or older than the rollout's annotation.
	text     string
	template *unstructured.Unstructured
}

// newRevisions reads the revision that has passed from the Works. While no rollout is in progress
// it is the template's, unless that was edited. nil: there is no rollout.
func newRevisions(in *BindingInput, edited bool) (*revisions, error) {
	r := &revisions{Rollout: workv1alpha2.ReadRollout(in.Binding.GetAnnotations())}
	if r.Rollout == nil {
		return nil, nil
	}
	for _, w := range in.Works {
		if text := w.Annotations[workv1alpha2.AnnotationKeptRevision]; strings.HasPrefix(text, r.Passed+":") {
			r.text = text
			break
		}
	}
	var err error
	switch {
	case (r.InProgress() || edited) && r.text != "":
		r.template, err = kept(r.text)
	case !r.InProgress() && r.text == "" && !edited:
		r.text, err = keep(r.Passed, in.Template)
	}
	return r, err
}

// holds reports whether a Work has a revision. One without annotation is older than the first
// rollout: its revision is the one that has passed.
func (r *revisions) holds(w *workv1alpha1.Work, revision string) bool {
	have := w.Annotations[workv1alpha2.AnnotationRevision]
	return have == revision || have == "" && revision == r.Passed
}

// keep is the text of a template; "" if it is too large.
func keep(revision string, template *unstructured.Unstructured) (string, error) {
	content := &unstructured.Unstructured{Object: maps.Clone(template.Object)}
	delete(content.Object, "status")
	raw, err := content.MarshalJSON()
	if err != nil {
		return "", fmt.Errorf("keep the revision of %s %s: %w", template.GetKind(), template.GetName(), err)
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	_, err = zip.Write(raw)
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		return "", fmt.Errorf("keep the revision of %s %s: %w", template.GetKind(), template.GetName(), err)
	}
	text := revision + ":" + base64.StdEncoding.EncodeToString(out.Bytes())
	if len(text) > maxKept {
		return "", nil
	}
	return text, nil
}

// maxTemplate bounds a template in bytes: the API server stores no larger one.
const maxTemplate = 4 << 20

func kept(text string) (*unstructured.Unstructured, error) {
	_, content, _ := strings.Cut(text, ":")
	zipped, err := base64.StdEncoding.DecodeString(content)
	var raw []byte
	if err == nil {
		var zip *gzip.Reader
		if zip, err = gzip.NewReader(bytes.NewReader(zipped)); err == nil {
			raw, err = io.ReadAll(io.LimitReader(zip, maxTemplate))
		}
	}
	out := &unstructured.Unstructured{}
	if err == nil {
		err = out.UnmarshalJSON(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("read annotation %s of the Works: %w: remove it", workv1alpha2.AnnotationKeptRevision, err)
	}
	return out, nil
}

// former is the Work whose object is rendered again for a cluster that has the revision that has
// passed, where that is not kept: the target's own, for a new one that of another cluster.
func (r *revisions) former(have *workv1alpha1.Work, all []*workv1alpha1.Work) *workv1alpha1.Work {
	if have != nil {
		all = []*workv1alpha1.Work{have}
	}
	if i := slices.IndexFunc(all, func(w *workv1alpha1.Work) bool { return r.holds(w, r.Passed) }); i >= 0 {
		return all[i]
	}
	return nil
}
