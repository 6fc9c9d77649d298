package access

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
)

var served, stored = searchv1alpha1.GroupVersion.String(), searchv1alpha1.Stored.String()

// discover lists the resources: ResourceRegistries as the hub's API server has them, and the paths
// of this server.
func (h *searchHandler) discover(w http.ResponseWriter, q *http.Request) error {
	list := &metav1.APIResourceList{}
	get, err := http.NewRequestWithContext(q.Context(), http.MethodGet, h.hub.URL.JoinPath("/apis/"+stored).String(), nil)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	r, err := h.hub.Plain.RoundTrip(get)
	if err == nil {
		defer r.Body.Close()
		if err = json.NewDecoder(r.Body).Decode(list); r.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %s: run `pelago init`", r.Status)
		}
	}
	if err != nil {
		return unavailable("read what the hub's API server has of %s: %v", stored, err)
	}
	list.GroupVersion = served
	for name, verbs := range map[string]metav1.Verbs{"search/api": {"get"}, "search/apis": {"get"}, "proxying/proxy": {"create", "delete", "get", "patch", "update"}} {
		kind, _, _ := strings.Cut(name, "/")
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: strings.ToUpper(kind[:1]) + kind[1:], Verbs: verbs})
	}
	write(w, http.StatusOK, list)
	return nil
}

// registries sends requests for ResourceRegistries on to the hub's API server, in the version in
// which it serves them itself.
func (h *searchHandler) registries(w http.ResponseWriter, q *http.Request, who user.Info) error {
	accept, err := jsonOnly(q)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, maxWrite))
	if err != nil {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("read the request: %v", err))
	}
	q = q.Clone(q.Context())
	q.URL.Path, q.URL.RawPath = strings.Replace(q.URL.Path, served, stored, 1), strings.Replace(q.URL.RawPath, served, stored, 1)
	q.Header.Set("Accept", accept)
	q.Header.Del("Accept-Encoding") // the transport's, which decompresses
	// protobuf has lengths; the options of a deletion are in no particular version
	if !bytes.HasPrefix(body, []byte("k8s\x00")) {
		body = bytes.ReplaceAll(body, []byte(served), []byte(stored))
	}
	q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	q.Header.Set("Content-Length", strconv.Itoa(len(body)))
	h.toHub(w, q, h.hub.as(who), func(r *http.Response) error {
		r.Header.Del("Content-Length")
		r.ContentLength = -1
		r.Body = asServed(r.Body)
		return nil
	})
	return nil
}

// asServed replaces the version line by line: an object or list is one, and so is each event of a
// watch.
func asServed(body io.ReadCloser) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		for lines := bufio.NewReader(body); ; {
			line, err := lines.ReadBytes('\n')
			if _, gone := in.Write(bytes.ReplaceAll(line, []byte(stored), []byte(served))); gone != nil || err != nil {
				in.CloseWithError(err)
				return
			}
		}
	}()
	return struct {
		io.Reader
		io.Closer
	}{out, closers{out, body}}
}

type closers []io.Closer

func (c closers) Close() error {
	for _, x := range c {
		_ = x.Close() // read only
	}
	return nil
}
