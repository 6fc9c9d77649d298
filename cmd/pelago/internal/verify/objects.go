package verify

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Namespace holds everything that a run makes, but for annotations of drained gateways.
	Namespace = "pelago-verify"
	// Label of the namespace, "true": a run has made it.
	Label = "pelago.io/verify"
	// annotationDrained of a Node, "true": a run has drained the gateway.
	annotationDrained = "pelago.io/verify-drained"

	labelApp  = "app"
	appServer = "server"
	appClient = "client"
	port      = 8080
	// user is not root, and has no name in the image.
	user = 65532
	// servers is the number of server pods of a cluster.
	servers = 2
)

// Names of the services of a cluster. vipAll is exported by all of them.
func webName(id string) string      { return "web-" + id }
func headlessName(id string) string { return "headless-" + id }
func vipName(id string) string      { return "vip-" + id }

const vipAll = "vip"

func serverName(i int) string { return fmt.Sprintf("server-%d", i) }

// domain follows namespace and service in names of the clusterset. Names end with a dot, so that no
// search list is tried.
const domain = "." + Namespace + ".svc.clusterset.local."

// namespaceObject admits only pods without privileges.
func namespaceObject() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: map[string]string{
		Label: "true", "pod-security.kubernetes.io/enforce": "restricted",
	}}}
}

// pods are the servers and the client of a cluster.
func (c *Cluster) pods() (out []*corev1.Pod) {
	for i := range servers {
		p := c.pod(serverName(i), appServer)
		p.Spec.Hostname, p.Spec.Subdomain = p.Name, headlessName(c.ID()) // gives it a name of its own
		out = append(out, p)
	}
	return append(out, c.pod(appClient, appClient))
}

// pod serves, also as the client, in which commands are run.
func (c *Cluster) pod(name, app string) *corev1.Pod {
	env := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{labelApp: app}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelOSStable: "linux"},
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](user),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname,
				WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: labelApp, Operator: metav1.LabelSelectorOpExists}}}}},
			Containers: []corev1.Container{{
				Name: "verify", Image: c.Image, ImagePullPolicy: c.Pull,
				Command: []string{"pelago", "verify-pod", "serve", "--cluster", c.ID(), "--port", fmt.Sprint(port)},
				Env:     []corev1.EnvVar{env("POD_NAME", "metadata.name")},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Path: "/", Port: intstr.FromInt32(port)}}},
			}},
		},
	}
}

// services are those of a cluster, all of which it exports.
func (c *Cluster) services() (out []*corev1.Service) {
	names := []string{webName(c.ID()), headlessName(c.ID())}
	if c.hasClusterSetIPs() {
		names = append(names, vipName(c.ID()), vipAll)
	}
	for _, name := range names {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
		s.Spec.Selector = map[string]string{labelApp: appServer}
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: port, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(port)},
			{Name: "udp", Port: port, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(port)},
		}
		if name == headlessName(c.ID()) {
			s.Spec.ClusterIP = corev1.ClusterIPNone
		}
		out = append(out, s)
	}
	return out
}

func key(name string) client.ObjectKey { return client.ObjectKey{Namespace: Namespace, Name: name} }
