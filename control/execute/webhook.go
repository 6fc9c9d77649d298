package execute

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
)

// maxAnswer bounds the response of a webhook, and what a patch may copy, in bytes.
const maxAnswer = 3 << 20

// webhook calls one webhook of a ResourceInterpreterWebhookConfiguration.
type webhook struct {
	configv1alpha1.ResourceInterpreterWebhook
	origin  string // kind and name of the configuration
	url     string
	client  *http.Client
	timeout time.Duration
	invalid error // each call fails with it

	mu sync.Mutex
	// hung is the error of the last call if it timed out. Calls fail with it until a time, so that
	// a webhook that hangs does not hold all workers.
	hung  error
	until time.Time
}

// webhooks are those of all configurations, by configuration and name: the first that matches is
// called, as in Karmada.
type webhooks []*webhook

// newWebhooks compiles a configuration, with an error for each webhook that cannot be called.
func newWebhooks(c *configv1alpha1.ResourceInterpreterWebhookConfiguration, services client.Reader) (all webhooks, errs []error) {
	for _, w := range c.Webhooks {
		h := &webhook{ResourceInterpreterWebhook: w, origin: "ResourceInterpreterWebhookConfiguration " + c.Name}
		if h.invalid = h.open(services); h.invalid != nil {
			errs = append(errs, fmt.Errorf("webhook %s: %w", w.Name, h.invalid))
		}
		all = append(all, h)
	}
	return all, errs
}

// open makes the client.
func (h *webhook) open(services client.Reader) error {
	h.timeout = time.Duration(ptr.Deref(h.TimeoutSeconds, 10)) * time.Second
	if !slices.Contains(h.InterpreterContextVersions, configv1alpha1.GroupVersion.Version) {
		return fmt.Errorf("interpreterContextVersions are %v: add %s", h.InterpreterContextVersions, configv1alpha1.GroupVersion.Version)
	}
	cfg := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: h.ClientConfig.CABundle}}
	at := new(url.URL)
	switch s := h.ClientConfig.Service; {
	case s != nil && services == nil:
		return errors.New("clientConfig.service is a Service of the hub, which this pull member does not reach: use clientConfig.url")
	case s != nil:
		port := ptr.Deref(s.Port, 443)
		*at = url.URL{Scheme: "https", Host: fmt.Sprintf("%s.%s.svc:%d", s.Name, s.Namespace, port), Path: ptr.Deref(s.Path, "")}
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			address, err := addressOf(ctx, services, s, port)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	case h.ClientConfig.URL != nil:
		var err error
		if at, err = url.Parse(*h.ClientConfig.URL); err != nil || at.Scheme != "https" || at.Host == "" {
			return fmt.Errorf("clientConfig.url is %q: it has to be https://host:port/path", *h.ClientConfig.URL)
		}
	default:
		return errors.New("clientConfig needs url or service")
	}
	query := at.Query()
	query.Set("timeout", h.timeout.String())
	at.RawQuery = query.Encode()
	h.url = at.String()
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return fmt.Errorf("clientConfig: %w", err)
	}
	h.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return nil
}

// addressOf is where a Service of the hub answers; one that the hub does not have is looked up in
// DNS.
func addressOf(ctx context.Context, services client.Reader, of *admissionregistrationv1.ServiceReference, port int32) (string, error) {
	var s corev1.Service
	host := of.Name + "." + of.Namespace + ".svc"
	err := services.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Name}, &s)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return "", fmt.Errorf("read the Service %s/%s: %w", of.Namespace, of.Name, err)
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		host = s.Spec.ExternalName
	case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone:
		return "", fmt.Errorf("the Service %s/%s has no cluster IP", of.Namespace, of.Name)
	default:
		host = s.Spec.ClusterIP
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port))), nil
}

// matches reports whether the webhook is for an operation on a kind; "": any operation.
func (h *webhook) matches(operation configv1alpha1.InterpreterOperation, gvk schema.GroupVersionKind) bool {
	return slices.ContainsFunc(h.Rules, func(r configv1alpha1.RuleWithOperations) bool {
		return (operation == "" || isIn(r.Operations, operation)) && isIn(r.APIGroups, gvk.Group) &&
			isIn(r.APIVersions, gvk.Version) && isIn(r.Kinds, gvk.Kind)
	})
}

func isIn[T ~string](all []T, one T) bool {
	return slices.Contains(all, one) || slices.Contains(all, "*")
}

// kind is the Source of the webhooks.
func (all webhooks) kind(gvk schema.GroupVersionKind) (k kinds.Kind) {
	for operation, set := range map[configv1alpha1.InterpreterOperation]func(*webhook){
		"InterpretReplica":    func(h *webhook) { k.Replicas = h.replicas },
		"InterpretComponent":  func(h *webhook) { k.Components = h.components },
		"ReviseReplica":       func(h *webhook) { k.Revise = h.revise },
		"Retain":              func(h *webhook) { k.Retain = h.retain },
		"AggregateStatus":     func(h *webhook) { k.Aggregate = h.aggregate },
		"InterpretStatus":     func(h *webhook) { k.Reflect = h.reflect },
		"InterpretHealth":     func(h *webhook) { k.Healthy = h.healthy },
		"InterpretDependency": func(h *webhook) { k.Dependencies = h.dependencies },
	} {
		if i := slices.IndexFunc(all, func(h *webhook) bool { return h.matches(operation, gvk) }); i >= 0 {
			set(all[i])
		}
	}
	return k
}

// request is that of Karmada's ResourceInterpreterContext.
type request struct {
	UID       string                              `json:"uid"`
	Kind      map[string]string                   `json:"kind"`
	Name      string                              `json:"name"`
	Namespace string                              `json:"namespace,omitempty"`
	Operation configv1alpha1.InterpreterOperation `json:"operation"`
	Object    map[string]any                      `json:"object"`

	ObservedObject   map[string]any                      `json:"observedObject,omitempty"`
	DesiredReplicas  *int32                              `json:"replicas,omitempty"`
	AggregatedStatus []workv1alpha2.AggregatedStatusItem `json:"aggregatedStatus,omitempty"`
}

// response is that of Karmada's ResourceInterpreterContext.
type response struct {
	UID        string `json:"uid"`
	Successful bool   `json:"successful"`
	Status     struct {
		Message string `json:"message"`
		Code    int64  `json:"code"`
	} `json:"status"`
	Patch               []byte                            `json:"patch"`
	PatchType           string                            `json:"patchType"`
	ReplicaRequirements *workv1alpha2.ReplicaRequirements `json:"replicaRequirements"`
	Replicas            *int64                            `json:"replicas"`
	Components          []any                             `json:"components"`
	Dependencies        []any                             `json:"dependencies"`
	RawStatus           map[string]any                    `json:"rawStatus"`
	Healthy             *bool                             `json:"healthy"`
}

// call performs an operation and reads the response with read. Errors are *kinds.RuleError.
func (h *webhook) call(operation configv1alpha1.InterpreterOperation, obj *unstructured.Unstructured, r request, read func(*response) error) error {
	gvk := obj.GroupVersionKind()
	r.UID, r.Operation, r.Object = string(uuid.NewUUID()), operation, obj.Object
	r.Kind = map[string]string{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
	r.Name, r.Namespace = obj.GetName(), obj.GetNamespace()
	answer, err := h.post(&r)
	if err == nil {
		err = read(answer)
	}
	if err != nil {
		return &kinds.RuleError{Origin: h.origin, Rule: string(operation), Expression: "webhook " + h.Name, Err: err}
	}
	return nil
}

func (h *webhook) post(r *request) (*response, error) {
	h.mu.Lock()
	hung, until := h.hung, h.until
	h.mu.Unlock()
	switch {
	case h.invalid != nil:
		return nil, h.invalid
	case hung != nil && time.Now().Before(until):
		return nil, hung
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	answer, err := h.exchange(ctx, r)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hung = nil; ctx.Err() != nil {
		h.hung, h.until = err, time.Now().Add(h.timeout)
	}
	return answer, err
}

func (h *webhook) exchange(ctx context.Context, r *request) (*response, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": configv1alpha1.GroupVersion.String(), "kind": "ResourceInterpreterContext", "request": r,
	})
	if err != nil {
		return nil, err
	}
	to, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	to.Header.Set("Content-Type", "application/json")
	to.Header.Set("Accept", "application/json")
	from, err := h.client.Do(to)
	if err != nil {
		return nil, lasting(err)
	}
	defer from.Body.Close()
	text, err := io.ReadAll(io.LimitReader(from.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response: %w", lasting(err))
	case from.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the webhook answers %s: %s", from.Status, kinds.Shorten(strings.TrimSpace(string(text)), 200))
	case len(text) > maxAnswer:
		return nil, fmt.Errorf("the response has more than %d bytes", maxAnswer)
	}
	return r.read(text)
}

// lasting removes from an error what differs in each attempt, the local port and the time: it is
// part of conditions, which a retry must not change.
func lasting(err error) error {
	var network *net.OpError
	var expired x509.CertificateInvalidError
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return errors.New("the certificate of the webhook has expired or is not valid yet")
	case errors.As(err, &network) && network.Addr != nil:
		return fmt.Errorf("%s %s: %w", network.Op, network.Addr, network.Err)
	}
	return err
}

// read reads the response to the request.
func (r *request) read(text []byte) (*response, error) {
	var is map[string]any
	if err := utiljson.Unmarshal(text, &is); err != nil {
		return nil, fmt.Errorf("the response is no JSON: %w", err)
	}
	content, ok := is["response"].(map[string]any)
	if !ok {
		return nil, errors.New("the response has no field response")
	}
	out := new(response)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, out); err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	switch {
	case out.UID != r.UID:
		return nil, errors.New("the response is to another request: its uid is not that of the request")
	case !out.Successful:
		return nil, fmt.Errorf("the webhook reports code %d: %s", out.Status.Code, kinds.Shorten(out.Status.Message, 500))
	}
	return out, nil
}

func (h *webhook) replicas(template *unstructured.Unstructured) (n int32, each *workv1alpha2.ReplicaRequirements, err error) {
	err = h.call("InterpretReplica", template, request{}, func(r *response) error {
		if r.Replicas == nil || *r.Replicas < 0 || *r.Replicas > math.MaxInt32 {
			return fmt.Errorf("response.replicas is %d, which is no number of replicas", ptr.Deref(r.Replicas, -1))
		}
		if n, each = int32(*r.Replicas), r.ReplicaRequirements; each != nil {
			each.Namespace = template.GetNamespace()
		}
		return nil
	})
	return n, each, err
}

func (h *webhook) components(template *unstructured.Unstructured) (all []workv1alpha2.Component, err error) {
	err = h.call("InterpretComponent", template, request{}, func(r *response) (err error) {
		all, err = kinds.ComponentsIn(r.Components)
		return err
	})
	return all, err
}

func (h *webhook) revise(obj *unstructured.Unstructured, replicas int32) error {
	return h.patched("ReviseReplica", obj, request{DesiredReplicas: &replicas})
}

func (h *webhook) retain(desired, observed *unstructured.Unstructured) error {
	return h.patchedBy("Retain", desired, request{ObservedObject: observed.Object}, kinds.ReplaceRetained)
}

func (h *webhook) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	obj := template.DeepCopy()
	if err := h.patched("AggregateStatus", obj, request{AggregatedStatus: items}); err != nil {
		return nil, err
	}
	status, _, err := unstructured.NestedMap(obj.Object, "status")
	return status, err
}

func (h *webhook) reflect(observed *unstructured.Unstructured) (status map[string]any, err error) {
	err = h.call("InterpretStatus", observed, request{}, func(r *response) error {
		if status = r.RawStatus; status == nil {
			return errors.New("response.rawStatus is missing")
		}
		return nil
	})
	return status, err
}

func (h *webhook) healthy(observed *unstructured.Unstructured) (yes bool, err error) {
	err = h.call("InterpretHealth", observed, request{}, func(r *response) error {
		if r.Healthy == nil {
			return errors.New("response.healthy is missing")
		}
		yes = *r.Healthy
		return nil
	})
	return yes, err
}

func (h *webhook) dependencies(template *unstructured.Unstructured) (refs []kinds.DependentReference, err error) {
	err = h.call("InterpretDependency", template, request{}, func(r *response) (err error) {
		refs, err = kinds.ReferencesIn(r.Dependencies, template.GetNamespace())
		return err
	})
	return refs, err
}

// patched applies the JSON patch of a response to the object, if there is one.
func (h *webhook) patched(operation configv1alpha1.InterpreterOperation, obj *unstructured.Unstructured, r request) error {
	return h.patchedBy(operation, obj, r, kinds.Replace)
}

// patchedBy is patched with the function that replaces the object.
func (h *webhook) patchedBy(
	operation configv1alpha1.InterpreterOperation, obj *unstructured.Unstructured, r request,
	replace func(*unstructured.Unstructured, map[string]any) error,
) error {
	return h.call(operation, obj, r, func(r *response) error {
		switch {
		case len(r.Patch) == 0 && r.PatchType == "":
			return nil
		case r.PatchType != "JSONPatch":
			return fmt.Errorf("response.patchType is %q, want JSONPatch", kinds.Shorten(r.PatchType, 64))
		}
		patch, err := jsonpatch.DecodePatch(r.Patch)
		if err != nil {
			return fmt.Errorf("response.patch is no JSON patch: %w", err)
		}
		text, err := obj.MarshalJSON()
		if err != nil {
			return err
		}
		options := jsonpatch.NewApplyOptions()
		options.AccumulatedCopySizeLimit = maxAnswer
		if text, err = patch.ApplyWithOptions(text, options); err != nil {
			return fmt.Errorf("response.patch does not apply: %s", kinds.Shorten(err.Error(), 500))
		}
		var out map[string]any
		if err := utiljson.Unmarshal(text, &out); err != nil {
			return fmt.Errorf("response.patch makes no object: %w", err)
		}
		return replace(obj, out)
	})
}

// hookSet keeps the webhooks of each configuration between two reconciles, so that connections
// last.
type hookSet struct {
	services client.Reader // of the hub; nil in a member
	of       map[string]compiledHooks
}

type compiledHooks struct {
	version string
	hooks   webhooks
	errs    []error
}

// set passes the webhooks of all configurations to the interpreter and returns the problems of
// each, by name.
func (s *hookSet) set(custom *kinds.Custom, all []configv1alpha1.ResourceInterpreterWebhookConfiguration) map[string]kinds.Verdict {
	next := make(map[string]compiledHooks, len(all))
	var hooks, changed webhooks
	verdicts := map[string]kinds.Verdict{}
	slices.SortFunc(all, func(a, b configv1alpha1.ResourceInterpreterWebhookConfiguration) int {
		return cmp.Compare(a.Name, b.Name)
	})
	for i := range all {
		c := &all[i]
		is, version := s.of[c.Name], fmt.Sprint(c.UID, "/", c.Generation)
		if is.version != version {
			changed = append(changed, is.hooks...)
			is.version = version
			is.hooks, is.errs = newWebhooks(c, s.services)
			slices.SortFunc(is.hooks, func(a, b *webhook) int { return cmp.Compare(a.Name, b.Name) })
			changed = append(changed, is.hooks...)
		}
		next[c.Name] = is
		hooks = append(hooks, is.hooks...)
		if is.errs != nil {
			verdicts[c.Name] = kinds.Verdict{Invalid: is.errs}
		}
	}
	for name, was := range s.of {
		if _, still := next[name]; !still {
			changed = append(changed, was.hooks...)
		}
	}
	s.of = next
	if len(changed) > 0 {
		custom.SetWebhooks(hooks.kind, func(gvk schema.GroupVersionKind) bool {
			return slices.ContainsFunc(changed, func(h *webhook) bool { return h.matches("", gvk) })
		})
	}
	return verdicts
}
