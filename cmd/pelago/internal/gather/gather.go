// Package gather writes one archive with what a report of a defect needs: the objects of Pelago,
// the logs of its pods, nodes, and the result of package check. The verb gather calls it. It reads
// no Secret, and redacts credentials by their form.
package gather

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Source is a cluster to gather from.
type Source struct {
	Context string
	Open    func() (view.Member, error)
}

// Bounds of an archive.
const (
	// logBytes bounds the log of a container.
	logBytes = 2 << 20
	// objects bounds the objects of a kind in a cluster.
	objects = 2000
)

// groups are the API groups whose objects are gathered, whatever their kinds.
var groups = []string{"submariner.io", "pelago.io", "multicluster.x-k8s.io", "about.k8s.io", ".karmada.io"}

// of others, in the namespaces of Pelago or in the cluster.
var others = []struct {
	gvk       schema.GroupVersionKind
	namespace string
}{
	{schema.GroupVersionKind{Version: "v1", Kind: "Node"}, ""},
	{schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Version: "v1", Kind: "Service"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Version: "v1", Kind: "Event"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, manifests.SystemNamespace},
	{schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, manifests.BrokerNamespace},
	{schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}, manifests.BrokerNamespace},
}

// File is one of the archive.
type File struct {
	Name    string
	Content []byte
	// Redacted is how often something was cut out.
	Redacted int
}

// Archive collects files and problems of all clusters.
type Archive struct {
	files    []File
	problems []string
}

// Add adds a file, with credentials redacted.
func (a *Archive) Add(name string, content []byte) {
	clean, n := redact(content)
	a.files = append(a.files, File{name, clean, n})
}

// Problem records what could not be read.
func (a *Archive) Problem(format string, args ...any) {
	a.problems = append(a.problems, fmt.Sprintf(format, args...))
}

// Collect gathers from all clusters in parallel, each for at most timeout. A cluster that is away
// is a problem in the index.
func (a *Archive) Collect(ctx context.Context, sources []Source, timeout time.Duration) {
	parts := make([]Archive, len(sources))
	var group errgroup.Group
	group.SetLimit(16)
	for i, s := range sources {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			done := make(chan Archive, 1)
			go func() {
				var part Archive
				part.cluster(ctx, s)
				done <- part
			}()
			select {
			case parts[i] = <-done:
				return nil
			case <-ctx.Done():
			}
			select { // discovery has no context
			case parts[i] = <-done:
			case <-time.After(2 * time.Second):
				parts[i].Problem("%s: no answer within %s: nothing is gathered of it", s.Context, timeout)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil
	for _, p := range parts {
		a.files, a.problems = append(a.files, p.files...), append(a.problems, p.problems...)
	}
}

// cluster gathers from one cluster.
func (a *Archive) cluster(ctx context.Context, s Source) {
	m, err := s.Open()
	if err != nil {
		a.Problem("%s: %v", s.Context, err)
		return
	}
	for _, o := range others {
		a.list(ctx, s.Context, m.Client, o.gvk, o.namespace)
	}
	lists, err := discovery.ServerPreferredResources(m.Typed.Discovery())
	if err != nil { // some groups
		a.Problem("%s: find the kinds: %v", s.Context, err)
	}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || !slices.ContainsFunc(groups, func(g string) bool {
			return gv.Group == g || strings.HasPrefix(g, ".") && strings.HasSuffix(gv.Group, g)
		}) {
			continue
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "list") && !strings.Contains(r.Name, "/") {
				a.list(ctx, s.Context, m.Client, gv.WithKind(r.Kind), "")
			}
		}
	}
	a.logs(ctx, s.Context, m)
}

// list adds the objects of a kind, as one YAML document each, without managed fields.
func (a *Archive) list(ctx context.Context, in string, c client.Client, gvk schema.GroupVersionKind, namespace string) {
	var l unstructured.UnstructuredList
	l.SetGroupVersionKind(gvk)
	err := c.List(ctx, &l, client.InNamespace(namespace), client.Limit(objects))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		a.Problem("%s: list %s: %v", in, gvk.Kind, err)
		return
	}
	if len(l.Items) == 0 {
		return
	}
	if l.GetContinue() != "" {
		a.Problem("%s: only %d objects of kind %s are here", in, len(l.Items), gvk.Kind)
	}
	var out bytes.Buffer
	for i := range l.Items {
		o := &l.Items[i]
		if o.GetKind() == "Secret" {
			continue
		}
		o.SetManagedFields(nil)
		delete(o.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
		hide(o.Object)
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			a.Problem("%s: write %s %s: %v", in, gvk.Kind, o.GetName(), err)
			continue
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	name := strings.ToLower(gvk.Kind)
	if gvk.Group != "" {
		name += "." + gvk.Group
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	a.Add(in+"/"+name+".yaml", out.Bytes())
}

// logs adds those of all containers of the system namespace, also of their last run.
func (a *Archive) logs(ctx context.Context, in string, m view.Member) {
	pods, err := m.Typed.CoreV1().Pods(manifests.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		a.Problem("%s: list the pods: %v", in, err)
		return
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			for _, previous := range []bool{false, true} {
				if previous && c.RestartCount == 0 {
					continue
				}
				name := in + "/logs/" + p.Name + "-" + c.Name + map[bool]string{true: "-previous"}[previous] + ".log"
				limit := int64(logBytes)
				text, err := m.Typed.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: c.Name, Previous: previous, LimitBytes: &limit}).DoRaw(ctx)
				if err != nil {
					a.Problem("%s: log of %s: %v", in, p.Name, err)
					continue
				}
				a.Add(name, text)
			}
		}
	}
}

// index is the first file.
func (a *Archive) index(now time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Gathered by pelago at %s\n\n", now.UTC().Format(time.RFC3339))
	b.WriteString("Secrets are left out. What looks like a credential (tokens, private keys, passwords) is replaced by " + mark + ".\n\n")
	if len(a.problems) > 0 {
		b.WriteString("## Not gathered\n\n")
		for _, p := range a.problems {
			fmt.Fprintf(&b, "- %s\n", p)
		}
		b.WriteString("\n")
	}
	b.WriteString("## Files\n\n| file | bytes | redacted |\n|---|---:|---:|\n")
	for _, f := range a.files {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", f.Name, len(f.Content), f.Redacted)
	}
	return b.Bytes()
}

// Problems are what could not be read.
func (a *Archive) Problems() []string { return a.problems }

// Write writes the archive, index.md first. It fails rather than write what still looks like a
// credential.
func (a *Archive) Write(out io.Writer, now time.Time) error {
	slices.SortFunc(a.files, func(x, y File) int { return strings.Compare(x.Name, y.Name) })
	for i, p := range a.problems { // error texts may quote what was sent
		clean, _ := redact([]byte(p)) // the number of replacements
		a.problems[i] = string(clean)
	}
	files := append([]File{{Name: "index.md", Content: a.index(now)}}, a.files...)
	for _, f := range files {
		if _, n := redact(f.Content); n > 0 {
			return fmt.Errorf("write the archive: file %s has %d credentials after they were redacted: report this as a defect", f.Name, n)
		}
	}
	z := gzip.NewWriter(out)
	w := tar.NewWriter(z)
	for _, f := range files {
		err := w.WriteHeader(&tar.Header{Name: "pelago/" + f.Name, Mode: 0o600, Size: int64(len(f.Content)), ModTime: now, Typeflag: tar.TypeReg})
		if err == nil {
			_, err = w.Write(f.Content)
		}
		if err != nil {
			return fmt.Errorf("write %s into the archive: %w", f.Name, err)
		}
	}
	return errors.Join(w.Close(), z.Close())
}
