// Package pelago tests that an implementation of the Gateway API resolves our ServiceImports: the
// translator of Envoy Gateway, which turns routes into clusters of Envoy, gets what the agent makes
// of exports (control/agent/services/testdata) and the route of deploy/examples/gateway-api.yaml.
package pelago

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/internal/gatewayapi"
	"github.com/envoyproxy/gateway/internal/gatewayapi/resource"
	"github.com/envoyproxy/gateway/internal/logging"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"
)

// load reads the objects of files into what the translator takes.
func load(t *testing.T, files ...string) *resource.Resources {
	t.Helper()
	r := resource.NewResources()
	r.Namespaces = append(r.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sample"}})
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(text), "\n---\n") {
			var head metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(part), &head); err != nil {
				t.Fatal(err)
			}
			switch head.Kind {
			case "GatewayClass":
				r.GatewayClass = object[gatewayv1.GatewayClass](t, part)
			case "Gateway":
				r.Gateways = append(r.Gateways, object[gatewayv1.Gateway](t, part))
			case "HTTPRoute":
				r.HTTPRoutes = append(r.HTTPRoutes, object[gatewayv1.HTTPRoute](t, part))
			case "ServiceImport":
				r.ServiceImports = append(r.ServiceImports, object[mcs.ServiceImport](t, part))
			case "EndpointSlice":
				r.EndpointSlices = append(r.EndpointSlices, object[discoveryv1.EndpointSlice](t, part))
			default:
				t.Fatalf("%s: unexpected kind %q", file, head.Kind)
			}
		}
	}
	return r
}

func object[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// defaulted has what the API server fills in.
func defaulted(r *resource.Resources) *resource.Resources {
	from, exact, root := gatewayv1.NamespacesFromSame, gatewayv1.PathMatchPathPrefix, "/"
	for _, g := range r.Gateways {
		for i := range g.Spec.Listeners {
			g.Spec.Listeners[i].AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &from}}
		}
	}
	for _, route := range r.HTTPRoutes {
		for i := range route.Spec.Rules {
			route.Spec.Rules[i].Matches = []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &exact, Value: &root}}}
		}
	}
	return r
}

// resolve translates and returns the addresses that Envoy gets for the route, those for which no
// new requests are marked, and the route's ResolvedRefs condition.
func resolve(t *testing.T, r *resource.Resources) (addresses []string, resolved metav1.Condition) {
	t.Helper()
	// What its control plane has made for the wire to Envoy.
	r.Secrets = append(r.Secrets, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "envoy-gateway-system", Name: "envoy"}})
	translator := &gatewayapi.Translator{
		TranslatorContext:     &gatewayapi.TranslatorContext{},
		GatewayControllerName: v1alpha1.GatewayControllerName, GatewayClassName: "envoy", ControllerNamespace: "envoy-gateway-system",
		Logger: logging.DefaultLogger(t.Output(), v1alpha1.LogLevelInfo),
	}
	out, err := translator.Translate(t.Context(), defaulted(r))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range out.XdsIR {
		for _, listener := range x.HTTP {
			for _, route := range listener.Routes {
				if route.Destination == nil {
					continue
				}
				for _, setting := range route.Destination.Settings {
					for _, e := range setting.Endpoints {
						text := fmt.Sprintf("%s:%d", e.Host, e.Port)
						if e.Draining {
							text += " draining"
						}
						addresses = append(addresses, text)
					}
				}
			}
		}
	}
	if len(out.HTTPRoutes) != 1 || len(out.HTTPRoutes[0].Status.Parents) != 1 {
		t.Fatalf("the route is attached to no gateway: %+v", out.HTTPRoutes)
	}
	c := meta.FindStatusCondition(out.HTTPRoutes[0].Status.Parents[0].Conditions, string(gatewayv1.RouteConditionResolvedRefs))
	if c == nil {
		t.Fatal("the route has no condition ResolvedRefs")
	}
	slices.Sort(addresses)
	return addresses, *c
}

const route, imported = "../../deploy/examples/gateway-api.yaml", "../../control/agent/services/testdata/imported.yaml"

// The endpoints are those of the exporting clusters; one that no gateway reaches gets no new
// requests.
func TestRouteToEndpoints(t *testing.T) {
	addresses, c := resolve(t, load(t, route, imported))
	if !slices.Equal(addresses, []string{"120.2.0.9:80", "120.3.0.9:80 draining"}) || c.Status != metav1.ConditionTrue {
		t.Errorf("endpoints %v, ResolvedRefs %s %s: %s; want those of g2 and g3, which is dead", addresses, c.Status, c.Reason, c.Message)
	}
}

// With routing by services the endpoint is the ClusterSetIP.
func TestRouteToClusterSetIP(t *testing.T) {
	r := load(t, route, imported)
	routing := v1alpha1.ServiceRoutingType
	r.EnvoyProxyForGatewayClass = &v1alpha1.EnvoyProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "vip"},
		Spec: v1alpha1.EnvoyProxySpec{RoutingType: &routing}}
	addresses, c := resolve(t, r)
	if !slices.Equal(addresses, []string{"243.0.0.9:80"}) || c.Status != metav1.ConditionTrue {
		t.Errorf("endpoints %v, ResolvedRefs %s %s: %s; want the ClusterSetIP", addresses, c.Status, c.Reason, c.Message)
	}
}

// A service that no cluster exports is a backend that does not exist.
func TestRouteToNothing(t *testing.T) {
	addresses, c := resolve(t, load(t, route))
	if len(addresses) > 0 || c.Status != metav1.ConditionFalse || c.Reason != string(gatewayv1.RouteReasonBackendNotFound) {
		t.Errorf("endpoints %v, ResolvedRefs %s %s; want none, BackendNotFound", addresses, c.Status, c.Reason)
	}
}
