package member

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// maxBody bounds what a request may carry, as a real API server does.
const maxBody = 3 << 20

func (m *Member) serveGet(r *request) (int, any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, err := m.get(r.resource, r.name)
	return http.StatusOK, o, err
}

func (m *Member) servePost(r *request) (int, any, error) {
	body, err := r.body()
	if err != nil {
		return 0, nil, err
	}
	o, err := decode(body)
	if err != nil {
		return 0, nil, err
	}
	if r.subresource == "token" {
		return m.createToken(r, o)
	}
	if err := r.fits(o); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	made, err := m.create(r.resource, o, r.manager())
	return http.StatusCreated, made, err
}

func (m *Member) servePut(r *request) (int, any, error) {
	body, err := r.body()
	if err != nil {
		return 0, nil, err
	}
	o, err := decode(body)
	if err != nil {
		return 0, nil, err
	}
	if err := r.fits(o); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, err := m.get(r.resource, r.name)
	if err != nil {
		return 0, nil, err
	}
	stored, err := m.replace(r.resource, old, o, r.subresource, r.manager())
	return http.StatusOK, stored, err
}

func (m *Member) servePatch(r *request) (int, any, error) {
	patch, err := r.body()
	if err != nil {
		return 0, nil, err
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	m.mu.Lock()
	defer m.mu.Unlock()
	if kind == string(types.ApplyPatchType) {
		return m.patchApply(r, patch)
	}
	old, err := m.get(r.resource, r.name)
	if err != nil {
		return 0, nil, err
	}
	o, err := patched(r.resource, old, types.PatchType(kind), patch)
	if err != nil {
		return 0, nil, err
	}
	if o.GetUID() != old.GetUID() {
		wrong := field.Invalid(field.NewPath("metadata", "uid"), o.GetUID(), "field is immutable")
		return 0, nil, apierrors.NewInvalid(r.resource.gvk().GroupKind(), old.GetName(), field.ErrorList{wrong})
	}
	stored, err := m.replace(r.resource, old, o, r.subresource, r.manager())
	return http.StatusOK, stored, err
}

func (m *Member) patchApply(r *request, patch []byte) (int, any, error) {
	text, err := yaml.YAMLToJSON(patch)
	if err != nil {
		return 0, nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	o, err := decode(text)
	if err != nil {
		return 0, nil, err
	}
	if err := r.fits(o); err != nil {
		return 0, nil, err
	}
	force, _ := strconv.ParseBool(r.URL.Query().Get("force")) // not given is false
	stored, created, err := m.apply(r.resource, r.name, r.subresource, o, r.URL.Query().Get("fieldManager"), force)
	if created {
		return http.StatusCreated, stored, err
	}
	return http.StatusOK, stored, err
}

// patched is an object with a patch of one of the other three kinds.
func patched(r *resource, old *unstructured.Unstructured, kind types.PatchType, patch []byte) (*unstructured.Unstructured, error) {
	before, err := old.MarshalJSON()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	switch kind {
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, patch)
	case types.JSONPatchType:
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(patch); err == nil {
			if after, err = p.Apply(before); err != nil {
				return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", r.groupResource(), old.GetName(),
					err.Error(), 0, true)
			}
		}
	case types.StrategicMergePatchType:
		var typed runtime.Object
		if typed, err = clientgoscheme.Scheme.New(r.gvk()); err == nil {
			after, err = strategicpatch.StrategicMergePatch(before, patch, typed)
		}
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", r.groupResource(), old.GetName(),
			string(kind), 0, true)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return decode(after)
}

func (m *Member) serveDelete(r *request) (int, any, error) {
	var o metav1.DeleteOptions
	body, err := r.body()
	if err != nil {
		return 0, nil, err
	}
	if len(body) > 0 {
		// Protobuf or JSON; the kind is missing where an old client writes it.
		if _, _, err := codecs.UniversalDeserializer().Decode(body, ptrTo(metav1.SchemeGroupVersion.WithKind("DeleteOptions")),
			&o); err != nil {
			return 0, nil, apierrors.NewBadRequest("decode DeleteOptions: " + err.Error())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.name.Name == "" {
		sel, err := newSelection(r)
		if err != nil {
			return 0, nil, err
		}
		for _, found := range m.list(r.resource, sel) {
			if _, _, err := m.erase(r.resource, key(found), o); err != nil {
				return 0, nil, err
			}
		}
		return http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusSuccess}, nil
	}
	last, gone, err := m.erase(r.resource, r.name, o)
	if err != nil || !gone {
		return http.StatusOK, last, err
	}
	return http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: last.GetName(), Group: r.resource.group, Kind: r.resource.name, UID: last.GetUID()},
	}, nil
}

func ptrTo[T any](v T) *T { return &v }

func (r *request) body() ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, apierrors.NewBadRequest("read the body: " + err.Error())
	}
	if len(body) > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	return body, nil
}

// manager is the field manager of a request: the one given, else the beginning of the user agent.
func (r *request) manager() string {
	if name := r.URL.Query().Get("fieldManager"); name != "" {
		return name
	}
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	if name == "" {
		return "unknown"
	}
	return name
}

// fits gives an object the name and namespace of the path, and refuses one of another kind.
func (r *request) fits(o *unstructured.Unstructured) error {
	if o.GroupVersionKind() != r.resource.gvk() {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in the body is not the %s of the path", o.GroupVersionKind(), r.resource.gvk()))
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(r.name.Namespace)
	}
	if o.GetName() == "" && r.name.Name != "" {
		o.SetName(r.name.Name)
	}
	if o.GetNamespace() != r.name.Namespace || r.name.Name != "" && o.GetName() != r.name.Name {
		return apierrors.NewBadRequest("the name or namespace of the object does not match that of the request")
	}
	return nil
}

var codecs = serializer.NewCodecFactory(clientgoscheme.Scheme)

// decode reads an object as JSON or, as typed clients send it, as protobuf.
func decode(body []byte) (*unstructured.Unstructured, error) {
	if !strings.HasPrefix(string(body[:min(len(body), 4)]), "k8s\x00") {
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal(body, &o.Object); err != nil || o.Object == nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("decode the object: %v", err))
		}
		return o, nil
	}
	typed, gvk, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest("decode the object: " + err.Error())
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(*gvk)
	return o, nil
}
