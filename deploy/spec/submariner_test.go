package spec

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
)

var comparePrefixes = cmpopts.EquateComparable(netip.Prefix{})

// way is a field of a Member: how a Submariner and how flags of join say the same.
type way struct {
	// set and flags; set is nil where a Submariner has the flags in its annotation.
	set   func(*v1alpha1.SubmarinerSpec)
	flags string
	// wrong values, in the same two ways; empty if no value is wrong. wrongPath is where the second
	// is reported if that is elsewhere.
	wrongSet   func(*v1alpha1.SubmarinerSpec)
	wrongFlags string
}

func no() *bool { b := false; return &b }

// ways are the fields of a Member, by path. A new field fails TestSameMember until it is here.
var ways = map[string]way{
	"spec.clusterID": {func(s *v1alpha1.SubmarinerSpec) { s.ClusterID = "c2" }, "--clusterid=c2",
		func(s *v1alpha1.SubmarinerSpec) { s.ClusterID = "C2" }, "--clusterid=C2"},
	"spec.workloadsOnly": {flags: "--workloads-only=true", wrongFlags: "--workloads-only=maybe"},
	"spec.networkOnly":   {flags: "--network-only=true", wrongFlags: "--network-only=maybe"},
	"spec.clusterCIDR": {func(s *v1alpha1.SubmarinerSpec) { s.ClusterCIDR = "10.7.0.0/16,fd00:7::/48" }, "--clustercidr=10.7.0.0/16,fd00:7::/48",
		func(s *v1alpha1.SubmarinerSpec) { s.ClusterCIDR = "10.7.0.0/33" }, "--clustercidr=10.7.0.0/33"},
	"spec.serviceCIDR": {func(s *v1alpha1.SubmarinerSpec) { s.ServiceCIDR = "10.8.0.0/16" }, "--servicecidr=10.8.0.0/16",
		func(s *v1alpha1.SubmarinerSpec) { s.ServiceCIDR = "10.8.0.1/16" }, "--servicecidr=10.8.0.1/16"},
	"spec.externalCIDR":         {flags: "--external-cidr=192.0.2.0/24", wrongFlags: "--external-cidr=192.0.2.1/24"},
	"spec.routeServiceCIDR":     {flags: "--route-service-cidr=true", wrongFlags: "--route-service-cidr=maybe"},
	"spec.globalnet":            {flags: "--globalnet=false", wrongFlags: "--globalnet=maybe"},
	"spec.globalnetClusterSize": {flags: "--globalnet-cluster-size=1024", wrongFlags: "--globalnet-cluster-size=many"},
	"spec.globalCIDR": {func(s *v1alpha1.SubmarinerSpec) { s.GlobalCIDR = "120.1.0.0/24" }, "--globalnet-cidr=120.1.0.0/24",
		func(s *v1alpha1.SubmarinerSpec) { s.GlobalCIDR = "120.1.0.0" }, "--globalnet-cidr=120.1.0.0"},
	"spec.clustersetIPCIDR": {func(s *v1alpha1.SubmarinerSpec) { s.ClustersetIPCIDR = "243.0.16.0/20" }, "--clusterset-ip-cidr=243.0.16.0/20",
		func(s *v1alpha1.SubmarinerSpec) { s.ClustersetIPCIDR = "243.0.16.0" }, "--clusterset-ip-cidr=243.0.16.0"},
	"spec.clustersetIPEnabled": {set: func(s *v1alpha1.SubmarinerSpec) { s.ClustersetIPEnabled = true }, flags: "--enable-clusterset-ip"},
	"spec.cableDriver": {func(s *v1alpha1.SubmarinerSpec) { s.CableDriver = "libreswan" }, "--cable-driver=libreswan",
		func(s *v1alpha1.SubmarinerSpec) { s.CableDriver = "pigeon" }, "--cable-driver=pigeon"},
	"spec.ceIPSecNATTPort": {func(s *v1alpha1.SubmarinerSpec) { s.CeIPSecNATTPort = 4600 }, "--nattport=4600",
		func(s *v1alpha1.SubmarinerSpec) { s.CeIPSecNATTPort = 4800 }, "--nattport=4800"},
	"spec.cableTunnels":           {flags: "--cable-tunnels=4", wrongFlags: "--cable-tunnels=5"},
	"spec.nattDiscoveryPort":      {flags: "--natt-discovery-port=4491", wrongFlags: "--natt-discovery-port=4504"},
	"spec.natEnabled":             {set: func(s *v1alpha1.SubmarinerSpec) { s.NatEnabled = no() }, flags: "--natt=false"},
	"spec.ceIPSecPreferredServer": {set: func(s *v1alpha1.SubmarinerSpec) { s.CeIPSecPreferredServer = true }, flags: "--preferred-server"},
	"spec.loadBalancerEnabled": {func(s *v1alpha1.SubmarinerSpec) { s.LoadBalancerEnabled = true }, "--load-balancer",
		func(s *v1alpha1.SubmarinerSpec) { s.LoadBalancerEnabled, s.CableDriver = true, "vxlan" }, "--load-balancer --cable-driver=vxlan"},
	"spec.gatewayMode":         {flags: "--gateway-mode=active-passive", wrongFlags: "--gateway-mode=both"},
	"spec.airGappedDeployment": {set: func(s *v1alpha1.SubmarinerSpec) { s.AirGappedDeployment = true }, flags: "--air-gapped"},
	"spec.xdp":                 {flags: "--xdp=auto", wrongFlags: "--xdp=generic"},
	"spec.datapath":            {flags: "--datapath=hybrid", wrongFlags: "--datapath=slow"},
	"spec.coreDNSCustomConfig": {func(s *v1alpha1.SubmarinerSpec) {
		s.CoreDNSCustomConfig = &v1alpha1.CoreDNSCustomConfig{ConfigMapName: "custom", Namespace: "kube-system"}
	}, "--coredns-custom-configmap=kube-system/custom",
		func(s *v1alpha1.SubmarinerSpec) {
			s.CoreDNSCustomConfig = &v1alpha1.CoreDNSCustomConfig{ConfigMapName: "custom", Namespace: "other"}
		}, "--coredns-custom-configmap=other/custom"},
	"spec.dnsTTL":           {flags: "--dns-ttl=30s", wrongFlags: "--dns-ttl=0s"},
	"spec.dnsCache":         {flags: "--dns-cache=2s", wrongFlags: "--dns-cache=500ms"},
	"spec.gateways":         {flags: "--gateways=3", wrongFlags: "--gateways=17"},
	"spec.gatewayNodes":     {flags: "--gateway-node=n1"},
	"spec.labelGateway":     {flags: "--label-gateway=false", wrongFlags: "--label-gateway=maybe"},
	"spec.imagePullPolicy":  {flags: "--image-pull-policy=Never", wrongFlags: "--image-pull-policy=Sometimes"},
	"spec.imagePullSecrets": {flags: "--image-pull-secret=pull", wrongFlags: "--image-pull-secret=A_B"},
	"spec.nodeSelector": {func(s *v1alpha1.SubmarinerSpec) { s.NodeSelector = map[string]string{"pool": "infra"} }, "--node-selector=pool=infra",
		func(s *v1alpha1.SubmarinerSpec) { s.NodeSelector = map[string]string{"kubernetes.io/os": "plan9"} }, "--node-selector=pool"},
	"spec.tolerations": {func(s *v1alpha1.SubmarinerSpec) {
		s.Tolerations = []corev1.Toleration{{Key: "infra", Value: "yes", Effect: "NoSchedule"}, {Key: "spot", Operator: "Exists"}}
	}, "--toleration=infra=yes:NoSchedule,spot",
		func(s *v1alpha1.SubmarinerSpec) { s.Tolerations = []corev1.Toleration{{Key: "a", Effect: "Never"}} }, "--toleration=a:Never"},
	"spec.httpProxy":  {flags: "--http-proxy=http://192.0.2.1:3128", wrongFlags: "--http-proxy=proxy"},
	"spec.httpsProxy": {flags: "--https-proxy=http://192.0.2.1:3128", wrongFlags: "--https-proxy=proxy"},
	"spec.noProxy":    {flags: "--https-proxy=http://192.0.2.1:3128 --no-proxy=.example.org", wrongFlags: "--no-proxy=.example.org"},
}

// withoutMember are the fields of a Submariner that are no part of a Member.
var withoutMember = strings.Fields("broker brokerK8sApiServer brokerK8sApiServerToken brokerK8sCA brokerK8sSecret brokerK8sRemoteNamespace " +
	"brokerK8sInsecure ceIPSecPSK ceIPSecPSKSecret repository version imageOverrides namespace serviceDiscoveryEnabled customDomains " +
	"connectionHealthCheck debug ceIPSecDebug ceIPSecIKEPort ceIPSecForceUDPEncaps haltOnCertificateError colorCodes")

// own reads a Submariner as migrate does, which has it as an unstructured object of Submariner's.
func own(t *testing.T, s v1alpha1.SubmarinerSpec) (out v1alpha1.SubmarinerSpec) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "submariner.io/v1alpha1", "kind": "Submariner", "spec": s})
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object["spec"].(map[string]any), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func annotated(flags string) map[string]string {
	return map[string]string{v1alpha1.AnnotationFlags: flags}
}

// TestSameMember: the operator, join and migrate make the same Member of the same settings, for
// every field that there is.
func TestSameMember(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range fields(reflect.ValueOf(Member{})) {
		seen[f.path] = true
		w, ok := ways[f.path]
		if !ok && f.path != "spec.image" { // the operator's own, or of repository and version
			t.Errorf("%s: add the field to ways", f.path)
			continue
		}
		if f.path == "spec.image" {
			continue
		}
		t.Run(f.path, func(t *testing.T) {
			s, annotations := v1alpha1.SubmarinerSpec{ClusterID: "c1"}, annotated(w.flags)
			if w.set != nil {
				w.set(&s)
				annotations = nil
			}
			operator, errs := FromSubmariner(s, annotations)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			migrate, errs := FromSubmariner(own(t, s), annotations)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			join, _ := bind(t, strings.Fields(w.flags)...)
			for name, m := range map[string]Member{"operator": operator.Member, "migrate": migrate.Member} {
				if diff := cmp.Diff(*join, m, comparePrefixes); diff != "" {
					t.Errorf("-join +%s\n%s", name, diff)
				}
			}
			printed, _ := bind(t, operator.Args()...)
			if diff := cmp.Diff(*join, *printed, comparePrefixes); diff != "" {
				t.Errorf("-join +join with the flags that are printed, %q\n%s", operator.Args(), diff)
			}
			if diff := cmp.Diff(value(t, DefaultMember(), f.path), value(t, operator.Member, f.path), comparePrefixes); diff == "" {
				t.Errorf("%s has its default", f.path)
			}
			if !operator.Given(f.path) {
				t.Errorf("%s is not given", f.path)
			}
		})
	}
	for path := range ways {
		if !seen[path] {
			t.Errorf("%s: there is no such field any more", path)
		}
	}
	spec := reflect.TypeFor[v1alpha1.SubmarinerSpec]()
	for i := range spec.NumField() {
		name, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		if w, ok := ways["spec."+name]; (!ok || w.set == nil) && !slices.Contains(withoutMember, name) {
			t.Errorf("spec.%s of a Submariner: say in ways or in withoutMember what becomes of it", name)
		}
	}
}

func value(t *testing.T, m Member, path string) any {
	t.Helper()
	for _, f := range fields(reflect.ValueOf(m)) {
		if f.path == path {
			return f.value.Interface()
		}
	}
	t.Fatalf("no field %s", path)
	return nil
}

// TestWrongFieldIsNamed: a wrong value of each field is reported at its path by a Submariner, or at
// its annotation, and by the name of its flag in the command line.
func TestWrongFieldIsNamed(t *testing.T) {
	for path, w := range ways {
		t.Run(path, func(t *testing.T) {
			s, want := v1alpha1.SubmarinerSpec{ClusterID: "c1"}, path
			annotations := map[string]string{}
			switch {
			case w.wrongSet != nil:
				w.wrongSet(&s)
			case w.wrongFlags == "":
				return
			default:
				annotations, want = annotated(w.wrongFlags), "metadata.annotations[pelago.io/flags]"
			}
			o, errs := FromSubmariner(s, annotations)
			if len(errs) == 0 {
				errs = o.Validate()
			}
			if len(errs) == 0 {
				t.Fatal("no error")
			}
			got := o.Locate(&Error{Path: errs[0].Field, Text: errs[0].Detail})
			if got.Path != want {
				t.Errorf("reported at %s: %s", got.Path, got.Text)
			}
			if _, err := parse(strings.Fields(w.wrongFlags)...); err == nil {
				t.Errorf("no error of join %s", w.wrongFlags)
			} else if flag := Flags(Member{})[path]; path != "spec.clusterID" && !strings.Contains(err.Error(), flag) {
				t.Errorf("join %s: %v: it does not name %s", w.wrongFlags, err, flag)
			}
		})
	}
}

// TestKeptFields: what a join was given is read from the configuration that it has left, for every
// field that is kept.
func TestKeptFields(t *testing.T) {
	for _, f := range fields(reflect.ValueOf(Member{})) {
		pod := slices.Contains(append([]string{"spec.image", "spec.imagePullPolicy"}, PodFields...), f.path)
		if f.tag.Get("keep") == "-" || pod { // pods keep theirs
			continue
		}
		m, _ := bind(t, strings.Fields(ways[f.path].flags)...)
		if diff := cmp.Diff(value(t, *m, f.path), value(t, FromConfig(m.Config()), f.path), comparePrefixes); diff != "" {
			t.Errorf("%s: -given +kept\n%s", f.path, diff)
		}
	}
}

// TestAnnotations: an annotation has only flags that access nothing but the cluster and the hub.
func TestAnnotations(t *testing.T) {
	for _, flags := range []string{"--kubeconfig=/etc/shadow", "--datapath hybrid", "datapath=hybrid", "--clusterid=c2"} {
		if _, errs := FromSubmariner(v1alpha1.SubmarinerSpec{ClusterID: "c1"}, annotated(flags)); len(errs) == 0 || !strings.Contains(errs[0].Detail, "write --name=value") {
			t.Errorf("%s: %v", flags, errs)
		}
	}
	if _, errs := FromClusterAPI("c1", true, annotated("--network-only=true")); len(errs) == 0 {
		t.Error("the label of a Cluster decides its mode, and an annotation is accepted as well")
	}
	_, errs := FromSubmariner(v1alpha1.SubmarinerSpec{ClusterID: "c1", CableDriver: "vxlan"}, annotated("--workloads-only=true --datapath=fast"))
	if len(errs) != 1 || !strings.Contains(errs[0].Detail, "leaves the network out") {
		t.Errorf("a flag of the network with --workloads-only: %v", errs)
	}
}

// TestGrants: the texts whose digest is in the status of Submariners that have joined stay the
// same.
func TestGrants(t *testing.T) {
	s := v1alpha1.SubmarinerSpec{ClusterID: "c1", ClusterCIDR: "10.0.0.0/16", GlobalCIDR: "120.1.0.0/24", CableDriver: "libreswan"}
	got := Grants(s, annotated("--datapath=hybrid --external-cidr=192.0.2.0/24"))
	if diff := cmp.Diff([]string{"--clustercidr=10.0.0.0/16", "--clusterid=c1", "--enable-clusterset-ip=false", "--external-cidr=192.0.2.0/24",
		"--globalnet-cidr=120.1.0.0/24", "--servicecidr="}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := Grants(s, annotated("--workloads-only=true")); len(got) != 2 {
		t.Errorf("workloads only: %q", got)
	}
}
