package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
)

// newFailures is the counter of failed reconciles. Their errors are reported in conditions and
// Events and retried at a fixed interval, so they are not returned to controller-runtime, which
// therefore does not count them.
func newFailures() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pelago_operator_failures_total",
		Help: "Reconciles by the operator that failed."}, []string{"kind"})
	for _, kind := range []string{"Submariner", "Broker", "ServiceDiscovery", "Cluster"} {
		c.WithLabelValues(kind) // the first failure is an increase
	}
	return c
}

// count counts an error, unless it is a wait.
func (o *operator) count(kind string, err error) {
	var wait updating
	if err != nil && !errors.As(err, &wait) {
		o.failures.WithLabelValues(kind).Inc()
	}
}

// observe writes into the status what runs; phase is the error of install.
func (o *operator) observe(ctx context.Context, s *v1alpha1.Submariner, phase error) error {
	c, err := o.joined(ctx)
	if err != nil {
		return err
	}
	st := &s.Status
	st.ClusterID, st.NatEnabled = c.ClusterID, c.ClusterID != "" && !c.NoNAT
	data := c.Data()
	st.ClusterCIDR, st.ServiceCIDR = data[config.KeyPodCIDR], data[config.KeyServiceCIDR]
	st.GlobalCIDR, st.ClustersetIPCIDR = data[config.KeyGlobalCIDR], data[config.KeyVIPCIDR]
	if st.Components, err = o.components(ctx); err != nil {
		return err
	}
	st.Version = version(st.Components)
	st.Gateways = nil
	gateways := &submarinerv1.GatewayList{}
	if err := o.live.List(ctx, gateways, client.InNamespace(config.SystemNamespace)); err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("list Gateways: %w", err)
	}
	for _, g := range gateways.Items {
		for i := range g.Status.Connections { // they change all the time, and are in the Gateway
			g.Status.Connections[i].LatencyRTT, g.Status.Connections[i].LossPercent = nil, 0
		}
		st.Gateways = append(st.Gateways, g.Status)
	}
	setConditions(&st.Status, s.Generation, st.Components, phase)
	setGateways(&st.Status, s.Generation, len(st.Gateways), c)
	return nil
}

// setGateways reports whether the cluster keeps its connections when a gateway fails; not before it
// has joined.
func setGateways(s *v1alpha1.Status, generation int64, n int, c config.Config) {
	condition := metav1.Condition{Type: v1alpha1.ConditionGatewaysRedundant, ObservedGeneration: generation, Status: metav1.ConditionTrue, Reason: "Redundant"}
	remedy := fmt.Sprintf("label another node %s=true, or have the agent keep two with the annotation %s: --gateways=2", submarinerv1.LabelGateway, v1alpha1.AnnotationFlags)
	switch {
	case c.ClusterID == "" || c.WorkloadsOnly:
		meta.RemoveStatusCondition(&s.Conditions, condition.Type)
		return
	case n == 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, "NoGateway"
		condition.Message = "no gateway reports, so the cluster has no connection: " + remedy
	case n == 1:
		condition.Status, condition.Reason = metav1.ConditionFalse, "SingleGateway"
		condition.Message = "while the only gateway is down the cluster has no connection: " + remedy
	}
	meta.SetStatusCondition(&s.Conditions, condition)
}

// components reads the Deployments and DaemonSets of Pelago.
func (o *operator) components(ctx context.Context) (out []v1alpha1.Component, err error) {
	deployments, daemons := &appsv1.DeploymentList{}, &appsv1.DaemonSetList{}
	in := client.InNamespace(config.SystemNamespace)
	if err := errors.Join(o.client.List(ctx, deployments, in), o.client.List(ctx, daemons, in)); err != nil {
		return nil, fmt.Errorf("list the components: %w", err)
	}
	add := func(kind string, m metav1.ObjectMeta, pod corev1.PodTemplateSpec, observed int64, desired, updated, ready int32) {
		if !strings.HasPrefix(m.Name, "pelago-") || strings.HasPrefix(m.Name, "pelago-hub") {
			return // of a hub in the same cluster, or of users
		}
		if observed < m.Generation {
			updated = 0 // not known yet
		}
		out = append(out, v1alpha1.Component{Kind: kind, Name: m.Name, Image: pod.Spec.Containers[0].Image, Desired: desired, Updated: updated, Ready: ready})
	}
	for _, d := range deployments.Items {
		add("Deployment", d.ObjectMeta, d.Spec.Template, d.Status.ObservedGeneration, *d.Spec.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas)
	}
	for _, d := range daemons.Items {
		add("DaemonSet", d.ObjectMeta, d.Spec.Template, d.Status.ObservedGeneration, d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberReady)
	}
	slices.SortFunc(out, func(a, b v1alpha1.Component) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// version is the tag of the image that all components run.
func version(components []v1alpha1.Component) string {
	image := ""
	for _, c := range components {
		if !current(c) || image != "" && image != c.Image {
			return ""
		}
		image = c.Image
	}
	return image[strings.LastIndexAny(image, ":@")+1:]
}

// current reports whether all pods of a component have its newest template and are ready.
func current(c v1alpha1.Component) bool {
	return c.Updated >= c.Desired && c.Ready >= c.Desired && c.Updated > 0
}

// serves reports whether a component does its work: a rolling update takes one pod at a time.
func serves(c v1alpha1.Component) bool { return c.Ready > 0 && c.Ready >= c.Desired-1 }

// setConditions derives the conditions from the components and the error of the installation.
func setConditions(s *v1alpha1.Status, generation int64, components []v1alpha1.Component, err error) {
	s.ObservedGeneration = generation
	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation})
	}
	var waiting []string
	available := len(components) > 0
	for _, c := range components {
		available = available && serves(c)
		if !current(c) {
			waiting = append(waiting, fmt.Sprintf("%s %s: %d of %d updated, %d ready", c.Kind, c.Name, c.Updated, c.Desired, c.Ready))
		}
	}
	rollout := strings.Join(waiting, "; ")
	if len(components) == 0 {
		rollout = "there are no components yet"
	}
	reason, message := "AsSpecified", ""
	var update updating
	var wrong refusal
	switch {
	case errors.As(err, &update):
		reason, message = "UpdatingOperator", string(update)
		set(v1alpha1.ConditionDegraded, false, "AsSpecified", "")
	case errors.As(err, &wrong):
		reason, message = wrong.reason, err.Error()
		set(v1alpha1.ConditionDegraded, true, reason, message)
	case err != nil:
		reason, message = "InstallFailed", err.Error()
		set(v1alpha1.ConditionDegraded, true, reason, message)
	default:
		set(v1alpha1.ConditionDegraded, false, reason, message)
		if rollout != "" {
			reason, message = "RollingOut", rollout
		}
	}
	degraded := meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionDegraded)
	progressing := !degraded && reason != "AsSpecified"
	set(v1alpha1.ConditionProgressing, progressing, reason, message)
	set(v1alpha1.ConditionAvailable, available, map[bool]string{true: "ComponentsServe", false: "ComponentsMissing"}[available], rollout)
	set(v1alpha1.ConditionReady, available && !degraded && !progressing, reason, message)
}
