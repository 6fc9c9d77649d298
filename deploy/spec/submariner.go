package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
)

// annotation is the path of flags in the annotation of an object.
const annotation = "metadata.annotations"

// Flags that v1alpha1.AnnotationFlags may have: those that have no field in the spec and access
// nothing but the cluster and the hub.
var (
	memberAnnotation = []string{"cable-tunnels", "datapath", "dns-cache", "dns-ttl", "external-cidr", "gateway-mode", "gateway-node", "gateways",
		"globalnet", "globalnet-cluster-size", "http-proxy", "https-proxy", "image-pull-policy", "image-pull-secret", "label-gateway", "natt-discovery-port",
		"network-only", "no-proxy", "route-service-cidr", "workloads-only", "xdp"}
	brokerAnnotation = []string{"auto-accept", "auto-accept-network", "broker-url", "cluster-ranges", "fabric-cidr", "member-objects", "mode"}
	// workloadsAnnotation has an effect with workloads-only.
	workloadsAnnotation = []string{"workloads-only", "image-pull-policy", "image-pull-secret", "http-proxy", "https-proxy", "no-proxy"}
)

// submarinerFields are the paths of the fields that a Submariner has always: one that it does not
// name has its default.
var submarinerFields = []string{"spec.clusterID", "spec.clusterCIDR", "spec.serviceCIDR", "spec.clustersetIPEnabled", "spec.ceIPSecNATTPort",
	"spec.ceIPSecPreferredServer", "spec.natEnabled", "spec.airGappedDeployment", "spec.loadBalancerEnabled"}

// podFields are those that it has with --workloads-only as well.
var podFields = []string{"spec.clusterID", "spec.nodeSelector", "spec.tolerations"}

// Object is a Member that an object of the API describes.
type Object struct {
	Member
	// Names are what the object calls the fields.
	Names Names

	given map[string]bool
}

// Given reports whether the object decides a field, be it with its default.
func (o Object) Given(path string) bool { return o.given[path] }

// SetImage sets the image of all components.
func (o *Object) SetImage(image string) { o.Image, o.given["spec.image"] = image, true }

// FromSubmariner is the Member that a Submariner describes, one of the operator or Submariner's
// own. Fields about the hub, its credentials and the image are not part of it.
func FromSubmariner(s v1alpha1.SubmarinerSpec, annotations map[string]string) (Object, field.ErrorList) {
	o, flags, errs := fromAnnotation(annotations, memberAnnotation)
	o.ClusterID = s.ClusterID
	for key, value := range s.NodeSelector {
		if o.NodeSelector == nil {
			o.NodeSelector = map[string]string{}
		}
		o.NodeSelector[key] = value
	}
	for _, t := range s.Tolerations {
		o.Tolerations = append(o.Tolerations, normal(t))
	}
	for _, path := range podFields {
		o.given[path] = true
	}
	if o.WorkloadsOnly {
		return o, append(errs, outside(flags, workloadsAnnotation)...)
	}
	for _, path := range submarinerFields {
		o.given[path] = true
	}
	var l list
	parse := func(name, text string, to *[]netip.Prefix) {
		if text == "" {
			return
		}
		var err error
		if *to, err = ParseRanges(strings.Split(text, ",")); err != nil {
			l.add(name, text, "spec.%s: %v", name, err)
		}
	}
	one := func(name, text string, to *netip.Prefix) {
		if text == "" {
			return
		}
		var err error
		if *to, err = netip.ParsePrefix(text); err != nil {
			l.add(name, text, "spec.%s: %v", name, err)
		}
		o.given["spec."+name] = true
	}
	parse("clusterCIDR", s.ClusterCIDR, &o.ClusterCIDR)
	parse("serviceCIDR", s.ServiceCIDR, &o.ServiceCIDR)
	one("globalCIDR", s.GlobalCIDR, &o.GlobalCIDR)
	one("clustersetIPCIDR", s.ClustersetIPCIDR, &o.ClustersetIPCIDR)
	o.ClustersetIPEnabled, o.CableDriver = s.ClustersetIPEnabled, s.CableDriver
	o.given["spec.cableDriver"] = s.CableDriver != ""
	if s.CableDriver == "ipsec" { // as subctl accepts it
		o.CableDriver = "libreswan"
	}
	if s.CeIPSecNATTPort != 0 {
		o.CablePort = uint16(s.CeIPSecNATTPort)
		if int32(o.CablePort) != s.CeIPSecNATTPort {
			l.add("ceIPSecNATTPort", s.CeIPSecNATTPort, "spec.ceIPSecNATTPort %d: use a port from 1 to 65535", s.CeIPSecNATTPort)
		}
	}
	o.NAT = s.NatEnabled == nil || *s.NatEnabled
	o.PreferredServer, o.AirGapped, o.LoadBalancer = s.CeIPSecPreferredServer, s.AirGappedDeployment, s.LoadBalancerEnabled
	if c := s.CoreDNSCustomConfig; c != nil && c.ConfigMapName != "" {
		name := c.ConfigMapName
		if c.Namespace != "" {
			name = c.Namespace + "/" + name
		}
		o.CoreDNSCustom = customName(name)
		o.given["spec.coreDNSCustomConfig"] = true
	}
	return o, append(errs, field.ErrorList(l)...)
}

// FromClusterAPI is the Member that a Cluster of Cluster API describes by its annotations, in pull
// mode (for workloads only) or in the network.
func FromClusterAPI(name string, pull bool, annotations map[string]string) (Object, field.ErrorList) {
	allowed := slices.DeleteFunc(slices.Clone(memberAnnotation), func(flag string) bool { return flag == "network-only" || flag == "workloads-only" })
	o, flags, errs := fromAnnotation(annotations, allowed)
	o.ClusterID = name
	if pull {
		o.WorkloadsOnly, o.given["spec.workloadsOnly"] = true, true
		errs = append(errs, outside(flags, workloadsAnnotation)...)
	}
	return o, errs
}

// fromAnnotation is the Member of an annotation, and the flags that it has.
func fromAnnotation(annotations map[string]string, allowed []string) (Object, *pflag.FlagSet, field.ErrorList) {
	o := Object{Names: Names{}, given: map[string]bool{}}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := o.Member.AddFlags(set, "clusterid")
	errs := parseAnnotation(set, annotations, allowed)
	errs = append(errs, flags.Read()...)
	for path, flag := range Flags(Member{}) {
		if name := strings.TrimPrefix(flag, "--"); slices.Contains(memberAnnotation, name) {
			o.Names[path], o.given[path] = flag, set.Changed(name)
		}
	}
	return o, set, errs
}

// parseAnnotation parses the flags in an annotation.
func parseAnnotation(set *pflag.FlagSet, annotations map[string]string, allowed []string) (errs field.ErrorList) {
	for _, flag := range strings.Fields(annotations[v1alpha1.AnnotationFlags]) {
		name, value, ok := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if !ok || !strings.HasPrefix(flag, "--") || !slices.Contains(allowed, name) {
			errs = append(errs, annotationError(flag, "annotation %s: %q: write --name=value with one of the names %s", v1alpha1.AnnotationFlags, flag,
				strings.Join(allowed, ", ")))
			continue
		}
		if err := set.Set(name, value); err != nil {
			errs = append(errs, annotationError(flag, "annotation %s: %v", v1alpha1.AnnotationFlags, err))
		}
	}
	return errs
}

func annotationError(value, format string, args ...any) *field.Error {
	return field.Invalid(field.NewPath(annotation).Key(v1alpha1.AnnotationFlags), value, fmt.Sprintf(format, args...))
}

// outside refuses flags that were given without being allowed with --workloads-only.
func outside(set *pflag.FlagSet, allowed []string) (errs field.ErrorList) {
	set.Visit(func(f *pflag.Flag) {
		if !slices.Contains(allowed, f.Name) {
			errs = append(errs, annotationError("--"+f.Name, "annotation %s: [--%s]: %s", v1alpha1.AnnotationFlags, f.Name, NetworkRefusal))
		}
	})
	return errs
}

// NetworkRefusal is why fields of the network mean nothing without it.
const NetworkRefusal = "joining with spec.workloadsOnly leaves the network out, which needs such flags: leave them out, or spec.workloadsOnly"

// Locate is the error about a field of a Member as one about what the object has in its place: a
// field, or a flag of its annotation.
func (o Object) Locate(err *Error) *Error {
	if _, ok := o.Names[err.Path]; ok {
		e := annotationError("", "annotation %s: %s", v1alpha1.AnnotationFlags, o.Names.Text(err.Text))
		return &Error{Path: e.Field, Text: e.Detail}
	}
	return &Error{Path: err.Path, Text: o.Names.Text(err.Text)}
}

// Grants are what the hub has to grant to a Submariner, as texts for a digest in its status: their
// form must not change, since a cluster whose digest differs has to register again.
func Grants(s v1alpha1.SubmarinerSpec, annotations map[string]string) []string {
	hub := []string{"external-cidr", "globalnet", "globalnet-cluster-size", "network-only", "workloads-only"}
	out := []string{"--clusterid=" + s.ClusterID}
	workloadsOnly := false
	for _, flag := range strings.Fields(annotations[v1alpha1.AnnotationFlags]) {
		if name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "="); slices.Contains(hub, name) {
			out = append(out, flag)
		}
		workloadsOnly = workloadsOnly || flag == "--workloads-only=true"
	}
	if workloadsOnly {
		return out
	}
	out = append(out, "--clustercidr="+s.ClusterCIDR, "--servicecidr="+s.ServiceCIDR, fmt.Sprintf("--enable-clusterset-ip=%t", s.ClustersetIPEnabled))
	for flag, value := range map[string]string{"globalnet-cidr": s.GlobalCIDR, "clusterset-ip-cidr": s.ClustersetIPCIDR} {
		if value != "" {
			out = append(out, "--"+flag+"="+value)
		}
	}
	slices.Sort(out)
	return out
}
