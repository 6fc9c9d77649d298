package spec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// Hub is a hub that runs as pods of a host cluster. The tags are those of Member; the tag fixed
// marks a field that cannot change after the installation, since etcd and its volumes are created
// once.
type Hub struct {
	Namespace string `json:"namespace" flag:"namespace" keep:"-"`

	// EtcdReplicas is 1 or 3.
	EtcdReplicas int `json:"etcdReplicas" flag:"etcd-replicas" fixed:"true"`
	// StorageClass and StorageSize are those of the volumes of etcd; an empty class is the
	// cluster's default. In their place EtcdEmptyDir, which ends with its pod, or the directory
	// EtcdHostPath of EtcdNode.
	StorageClass string `json:"storageClass" flag:"storage-class" fixed:"true"`
	StorageSize  string `json:"storageSize" flag:"storage-size" fixed:"true"`
	EtcdEmptyDir bool   `json:"etcdEmptyDir" flag:"etcd-empty-dir" fixed:"true"`
	EtcdHostPath string `json:"etcdHostPath" flag:"etcd-host-path" fixed:"true"`
	EtcdNode     string `json:"etcdNode" flag:"etcd-node" fixed:"true"`

	// ServiceType and NodePort are those of the Service of the API server; 0: the cluster assigns a
	// port.
	ServiceType string `json:"serviceType" flag:"service-type"`
	NodePort    int    `json:"nodePort" flag:"node-port"`
	// APIAddress is HOST[:PORT]; empty: the load balancer's, or a node's.
	APIAddress string `json:"apiAddress" flag:"api-address"`
	// KarmadaTools: pelago-hub serves Karmada's tools, by a Service of that type.
	KarmadaTools bool `json:"karmadaTools" flag:"karmada-tools"`

	// Image is that of pelago-hub, PullPolicy that of all pods.
	Image      string `json:"image" flag:"image"`
	PullPolicy string `json:"imagePullPolicy" flag:"image-pull-policy"`
	Placement
	// ImageRegistry replaces registry.k8s.io in the names of the other images; those below replace
	// whole names.
	ImageRegistry          string `json:"imageRegistry" flag:"image-registry"`
	EtcdImage              string `json:"etcdImage" flag:"etcd-image"`
	APIServerImage         string `json:"kubeAPIServerImage" flag:"kube-apiserver-image"`
	ControllerManagerImage string `json:"kubeControllerManagerImage" flag:"kube-controller-manager-image"`
}

var serviceTypes = []string{string(corev1.ServiceTypeNodePort), string(corev1.ServiceTypeLoadBalancer), string(corev1.ServiceTypeClusterIP)}

// DefaultHub is a Hub of which nothing is given.
func DefaultHub() Hub {
	return Hub{Namespace: manifests.SystemNamespace, EtcdReplicas: 1, StorageSize: "10Gi", ServiceType: serviceTypes[0],
		Image: manifests.DefaultImage, PullPolicy: "IfNotPresent"}
}

// Validate returns an error for each field that is not valid, the first for the field to correct
// first.
func (h Hub) Validate() field.ErrorList {
	var l list
	size, err := resource.ParseQuantity(h.StorageSize)
	if len(validation.IsDNS1123Label(h.Namespace)) > 0 {
		l.add("namespace", h.Namespace, "spec.namespace %q: not a name of a namespace", h.Namespace)
	}
	if h.EtcdReplicas != 1 && h.EtcdReplicas != 3 {
		l.add("etcdReplicas", h.EtcdReplicas, "spec.etcdReplicas %d: give 1 or 3", h.EtcdReplicas)
	}
	if err != nil || size.Sign() <= 0 {
		l.add("storageSize", h.StorageSize, "spec.storageSize %q: give a size such as 10Gi", h.StorageSize)
	}
	switch {
	case h.EtcdHostPath == "" && h.EtcdNode != "":
		l.add("etcdNode", h.EtcdNode, "spec.etcdHostPath and spec.etcdNode: give both")
	case h.EtcdHostPath != "" && h.EtcdNode == "":
		l.add("etcdHostPath", h.EtcdHostPath, "spec.etcdHostPath and spec.etcdNode: give both")
	case h.EtcdHostPath != "" && h.EtcdReplicas > 1:
		l.add("etcdHostPath", h.EtcdHostPath, "spec.etcdHostPath: a directory of one node holds one member; for three give spec.storageClass")
	}
	const one = "spec.storageClass, spec.etcdHostPath, spec.etcdEmptyDir: give one of them"
	switch {
	case h.EtcdEmptyDir && (h.EtcdHostPath != "" || h.StorageClass != ""):
		l.add("etcdEmptyDir", true, one)
	case h.EtcdHostPath != "" && h.StorageClass != "":
		l.add("storageClass", h.StorageClass, one)
	}
	if !slices.Contains(serviceTypes, h.ServiceType) {
		l.add("serviceType", h.ServiceType, "spec.serviceType %q: use %s", h.ServiceType, either(serviceTypes))
	}
	if h.NodePort < 0 || h.NodePort > 65535 {
		l.add("nodePort", h.NodePort, "spec.nodePort %d: use a port from 1 to 65535, or 0 for one that the cluster assigns", h.NodePort)
	}
	if err := CheckHostPort(h.APIAddress); err != nil {
		l.add("apiAddress", h.APIAddress, "spec.apiAddress %q: %v", h.APIAddress, err)
	} else if h.ServiceType == string(corev1.ServiceTypeClusterIP) && h.APIAddress == "" {
		l.add("apiAddress", h.APIAddress, "spec.serviceType ClusterIP: give spec.apiAddress, at which members reach the API server")
	}
	if !slices.Contains(pullPolicies, h.PullPolicy) {
		l.add("imagePullPolicy", h.PullPolicy, "spec.imagePullPolicy %q is no policy: use %s", h.PullPolicy, either(pullPolicies))
	}
	return append(field.ErrorList(l), h.Placement.Validate()...)
}

// Options are those of the manifests.
func (h Hub) Options() manifests.MemberOptions {
	o := manifests.MemberOptions{Image: h.Image, PullPolicy: h.PullPolicy}
	h.Placement.Apply(&o)
	return o
}

// Keep sets the fields that were not given to those of an earlier installation. given gets the path
// of a field.
func (h *Hub) Keep(former Hub, given func(path string) bool) { keep(h, &former, given) }

// Fixed returns an error for each field that differs from that of an earlier installation and
// cannot change.
func (h Hub) Fixed(former Hub) field.ErrorList {
	var l list
	was := fields(reflect.ValueOf(former))
	for i, f := range fields(reflect.ValueOf(h)) {
		if f.tag.Get("fixed") != "" && f.value.Interface() != was[i].value.Interface() {
			l.add(strings.TrimPrefix(f.path, "spec."), f.value.Interface(), "%s %s: the hub in namespace %s was installed with %q, and that cannot change: "+
				"`pelago hub backup`, `pelago deinit --purge --force` (members keep running), `pelago init` with the new value and all other flags, "+
				"`pelago hub restore`", f.path, text(f.value.Interface()), h.Namespace, text(was[i].value.Interface()))
		}
	}
	return field.ErrorList(l)
}

// Settings are the fields that differ from their defaults, by flag and as it is given: what another
// installation keeps. SettingsHub reads them.
func (h Hub) Settings() map[string]string {
	out, preset := Texts(h), Texts(DefaultHub())
	maps.DeleteFunc(out, func(flag, value string) bool { return value == preset[flag] || flag == "namespace" })
	return out
}

// SettingsHub is the Hub whose installation in a namespace has left settings. Those that it does
// not know are of another version. An image that is run when none is named is left out: another
// release, or a build without one, was the last to install.
func SettingsHub(namespace string, settings map[string]string) (Hub, error) {
	h := DefaultHub()
	h.Namespace = namespace
	for _, f := range fields(reflect.ValueOf(&h).Elem()) {
		flag := f.tag.Get("flag")
		value, ok := settings[flag]
		if !ok || f.tag.Get("keep") == "-" || flag == "image" && manifests.IsDefault(value) {
			continue
		}
		if err := setText(f.value, value); err != nil {
			return h, fmt.Errorf("keep --%s %s of the earlier run: %w: give the flag", flag, value, err)
		}
	}
	return h, nil
}

// setText is the inverse of text.
func setText(v reflect.Value, text string) error {
	switch to := v.Addr().Interface().(type) {
	case *string:
		*to = text
		return nil
	case *int:
		n, err := strconv.Atoi(text)
		*to = n
		return err
	case *bool:
		on, err := strconv.ParseBool(text)
		*to = on
		return err
	}
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	var errs list
	switch to := v.Addr().Interface().(type) {
	case *[]string:
		*to = parts
	case *map[string]string:
		*to, errs = parseSelector(parts)
	case *[]corev1.Toleration:
		*to = parseTolerations(parts)
	}
	return Join(field.ErrorList(errs))
}

// HubFlags are the flags of a Hub.
type HubFlags struct {
	*Hub
	set       *pflag.FlagSet
	placement *PlacementFlags
}

// AddFlags sets the hub to its defaults and adds its flags, except that of the namespace.
func (h *Hub) AddFlags(f *pflag.FlagSet) *HubFlags {
	*h = DefaultHub()
	b := &HubFlags{Hub: h, set: f}
	f.IntVar(&h.EtcdReplicas, "etcd-replicas", h.EtcdReplicas, "members of etcd, 1 or 3; with 3 two API servers run")
	f.StringVar(&h.StorageClass, "storage-class", "", "StorageClass of the volumes of etcd (default: the host cluster's default class)")
	f.StringVar(&h.StorageSize, "storage-size", h.StorageSize, "size of a volume of etcd")
	f.BoolVar(&h.EtcdEmptyDir, "etcd-empty-dir", false, "keep the data of etcd in its pod: all is lost with the pod. For trials")
	f.StringVar(&h.EtcdHostPath, "etcd-host-path", "", "keep the data of etcd in this `directory` of the node of --etcd-node instead of a volume; for one member")
	f.StringVar(&h.EtcdNode, "etcd-node", "", "node on which etcd runs, with --etcd-host-path")
	AddChoice(f, &h.ServiceType, "service-type", h.ServiceType, "how the API server is reached from outside: NodePort, LoadBalancer "+
		"or ClusterIP, for which --api-address is needed", serviceTypes...)
	f.IntVar(&h.NodePort, "node-port", 0, "port of the Service of the API server on the nodes (default: chosen by the host cluster)")
	AddHostPort(f, &h.APIAddress, "api-address", "`HOST[:PORT]` at which members and users reach the API server (default: the load balancer's, or a node's)")
	f.BoolVar(&h.KarmadaTools, "karmada-tools", false, "with --host-context or --local: serve Karmada's tools (karmadactl, its "+
		"dashboard, Argo CD) at an address of their own: context karmada of the kubeconfig")
	f.StringVar(&h.Image, "image", h.Image, "image of pelago-hub, where it runs as a Deployment")
	AddChoice(f, &h.PullPolicy, "image-pull-policy", h.PullPolicy, either(pullPolicies), pullPolicies...)
	b.placement = h.Placement.AddFlags(f, "the namespace of the hub", "the pods of the hub")
	f.StringVar(&h.ImageRegistry, "image-registry", "", "registry that replaces registry.k8s.io in the names of the images")
	f.StringVar(&h.EtcdImage, "etcd-image", "", "image of etcd")
	f.StringVar(&h.APIServerImage, "kube-apiserver-image", "", "image of kube-apiserver")
	f.StringVar(&h.ControllerManagerImage, "kube-controller-manager-image", "", "image of kube-controller-manager")
	return b
}

// Read parses what flags do not parse themselves, and returns an error for each whose form is
// wrong.
func (b *HubFlags) Read() field.ErrorList { return b.placement.Read() }

// Given reports whether the flag of a field was given.
func (b *HubFlags) Given(path string) bool {
	return b.set.Changed(strings.TrimPrefix(Flags(Hub{})[path], "--"))
}

// Names are the flags of the fields.
func (b *HubFlags) Names() Names { return Flags(Hub{}) }
