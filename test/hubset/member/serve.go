package member

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
)

// request is what a path and a query request.
type request struct {
	*http.Request
	resource    *resource
	name        types.NamespacedName // the name is empty for a collection
	subresource string
	user        string
}

// ServeHTTP answers one request.
func (m *Member) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, ok := m.user(r)
	if !ok {
		fail(w, apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	switch r.URL.Path {
	case "/readyz", "/livez", "/healthz":
		_, _ = w.Write([]byte("ok")) // a client that has gone does not matter, here and below
		return
	case "/version":
		answer(w, http.StatusOK, version.Info{Major: "1", Minor: "34", GitVersion: serverVersion, Platform: "linux/amd64"})
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var group string
	switch parts[0] {
	case "api":
		if len(parts) == 1 {
			answer(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
			return
		}
	case "apis":
		if len(parts) == 1 {
			answer(w, http.StatusOK, groups())
			return
		}
		group = parts[1]
		parts = parts[1:]
	default:
		fail(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	if len(parts) == 1 { // /apis/<group>
		m.serveGroup(w, group)
		return
	}
	if len(parts) == 2 {
		m.serveResources(w, group, parts[1])
		return
	}
	req, err := locate(r, group, parts[1], parts[2:])
	if err != nil {
		fail(w, err)
		return
	}
	req.user = user
	m.serveResource(w, req)
}

func (m *Member) serveGroup(w http.ResponseWriter, name string) {
	for _, g := range groups().Groups {
		if g.Name == name {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			answer(w, http.StatusOK, g)
			return
		}
	}
	fail(w, apierrors.NewNotFound(schema.GroupResource{}, name))
}

func (m *Member) serveResources(w http.ResponseWriter, group, version string) {
	list := resourcesOf(group, version)
	if list == nil {
		fail(w, apierrors.NewNotFound(schema.GroupResource{}, group+"/"+version))
		return
	}
	answer(w, http.StatusOK, list)
}

// locate reads the rest of a path: [namespaces <ns>] <resource> [<name> [<subresource>]].
func locate(r *http.Request, group, version string, rest []string) (*request, error) {
	req := &request{Request: r}
	if rest[0] == "namespaces" && len(rest) > 2 && rest[2] != "status" && rest[2] != "finalize" {
		req.name.Namespace = rest[1]
		rest = rest[2:]
	}
	req.resource = find(group, version, rest[0])
	if req.resource == nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{Group: group,
			Resource: rest[0]}, "", "", 0, true)
	}
	if len(rest) > 1 {
		req.name.Name = rest[1]
	}
	if len(rest) > 2 {
		req.subresource = rest[2]
	}
	if known := req.subresource == "" || req.subresource == "status" && req.resource.status ||
		req.subresource == "token" && req.resource == serviceAccounts; !known || len(rest) > 3 {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, req.resource.groupResource(), req.name.Name, "", 0,
			true)
	}
	return req, nil
}

// serveResource does what a request requests and answers it.
func (m *Member) serveResource(w http.ResponseWriter, r *request) {
	if r.Method == http.MethodGet && r.name.Name == "" {
		m.serveCollection(w, r)
		return
	}
	do := map[string]func(*request) (int, any, error){
		http.MethodGet: m.serveGet, http.MethodPost: m.servePost, http.MethodPut: m.servePut,
		http.MethodPatch: m.servePatch, http.MethodDelete: m.serveDelete,
	}[r.Method]
	if do == nil {
		fail(w, apierrors.NewMethodNotSupported(r.resource.groupResource(), r.Method))
		return
	}
	code, body, err := do(r)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, code, r.shape(body))
}

// answer writes a value as JSON.
func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}

// fail writes the Status of an error.
func fail(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	answer(w, int(s.Code), s)
}
