package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
)

const (
	// AnnotationSubmarinerReplicas keeps, on a Deployment of Submariner that was stopped, the
	// replicas that it had.
	AnnotationSubmarinerReplicas = "pelago.io/submariner-replicas"
	// AnnotationAdopted marks objects that Submariner's controllers have created and that the agent
	// owns now.
	AnnotationAdopted = "pelago.io/adopted"
	// Annotations on the ConfigMap of kept objects: the steps from disconnect on have begun; the
	// switch is complete.
	annotationDisconnected = "pelago.io/disconnected"
	annotationSwitched     = "pelago.io/switched"
	// keptSubmariner is the ConfigMap, in Submariner's namespace, with what the switch replaces or
	// removes, as JSON.
	keptSubmariner = "pelago-kept"
	// migrator is the DaemonSet, in the system namespace, that has the image pulled and then cleans
	// the nodes.
	migrator = "pelago-migrate"
	// labelInternal is on the Services by which globalnet has kube-proxy translate global IPs.
	labelInternal = "submariner.io/exportedServiceRef"
	// lighthouse manages Submariner's EndpointSlices.
	lighthouse = "lighthouse-agent.submariner.io"
)

// Workloads of Submariner. The first ones would recreate the others and their configuration. The
// name server of service discovery stays until its namespace is deleted, since CoreDNS uses it
// until it rereads the Corefile.
var (
	submarinerControllers = []string{"submariner-operator", "submariner-lighthouse-agent"}
	submarinerDaemonSets  = []string{"submariner-globalnet", "submariner-gateway", "submariner-routeagent", "submariner-metrics-proxy"}
)

// Submariner is a cluster in Submariner's network.
type Submariner struct {
	Member, Broker             client.Client
	Namespace, BrokerNamespace string
	// Join makes the cluster a member. Started waits until all components run, Reasons lists the
	// pods of the system namespace that do not.
	Join    func(ctx context.Context, want Joining) error
	Started func(context.Context) error
	Reasons func(context.Context) ([]string, error)
	// Waits reports whether an administrator of the hub has yet to accept the cluster.
	Waits func(ctx context.Context, clusterID string) (bool, error)
	// Image and PullPolicy are those of join.
	Image, PullPolicy string
	// Timeout bounds each wait for pods and nodes.
	Timeout  time.Duration
	Progress manifests.Progress

	state        submarinerState
	disconnected bool // by an interrupted run
}

// Joining is how the cluster joins.
type Joining struct {
	spec.Object
	// Driver is the cable driver that it has in Submariner's network.
	Driver                         string
	RegisterOnly, KeepRegistration bool
}

func (s *Submariner) join(ctx context.Context, want Joining) (err error) {
	if want.Object, err = s.state.member(); err != nil {
		return err
	}
	want.Driver = s.state.driver()
	return s.Join(ctx, want)
}

// step is a part of the switch. Each can be repeated, and continues what an interrupted run has
// left.
type step struct {
	// carrier: what carries connections to other clusters when the step is done
	name, detail, carrier string
	do                    func(context.Context) error
}

// prepared is the number of steps that leave Submariner as it is, connected that of those before
// disconnect.
const prepared, connected = 2, 6

func (s *Submariner) steps() []step {
	return []step{
		{"register", "at the hub: id, ranges, settings; public addresses as annotations; no component", "Submariner", s.register},
		{"pull", "the image on all nodes, and check their kernels", "Submariner", s.pull},
		{"keep", "copies in ConfigMap " + s.Namespace + "/" + keptSubmariner, "Submariner", s.keep},
		{"stop", "Deployments " + strings.Join(submarinerControllers, ", ") + ": changes of exports wait", "Submariner", s.stop},
		{"adopt", "global IPs, ClusterSetIPs, imports, definitions", "Submariner", s.adopt},
		{"unplug", "Submariner's block of the Corefile; CoreDNS rereads it in its own time", "Submariner", s.unplug},
		{"disconnect", "DaemonSets " + strings.Join(submarinerDaemonSets, ", "), "none", s.disconnect},
		{"clean", "the nodes, internal Services, the Endpoint at the broker", "none", s.clean},
		{"install", "components, definitions", "none", s.install},
		{"start", "wait for nodes and components", "Pelago, to clusters that have switched", s.start},
		{"finish", "EndpointSlices, agent for workloads", "Pelago, to clusters that have switched", s.finish},
	}
}

// Prepare registers the cluster at the hub and has the image pulled. Submariner stays as it is.
func (s *Submariner) Prepare(ctx context.Context) error { return s.run(ctx, true) }

// Switch replaces Submariner by Pelago, with the addresses that Submariner has allocated.
func (s *Submariner) Switch(ctx context.Context) error { return s.run(ctx, false) }

// rest are the steps of a run. A cluster without connections does not register again.
func (s *Submariner) rest(ctx context.Context, prepare bool) ([]step, error) {
	done, err := s.check(ctx)
	steps := s.steps()
	switch {
	case done || err != nil:
		return nil, err
	case prepare:
		return steps[:prepared], nil
	case s.disconnected:
		return steps[connected:], nil
	}
	return steps, nil
}

func (s *Submariner) run(ctx context.Context, prepare bool) error {
	steps, err := s.rest(ctx, prepare)
	if err == nil && len(steps) == 0 {
		s.Progress("This cluster has been switched; --back restores Submariner")
	}
	for _, step := range steps {
		s.Progress("%s: %s", step.name, step.detail)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w: run the command again, it continues", step.name, err)
		}
	}
	return err
}

// check reads the state and validates that the switch is possible; done: it is complete.
func (s *Submariner) check(ctx context.Context) (done bool, err error) {
	if s.state, err = readSubmariner(ctx, s.Member, s.Broker, s.Namespace, s.BrokerNamespace); err != nil {
		return false, err
	}
	cm := s.kept()
	if err := s.Member.Get(ctx, client.ObjectKeyFromObject(cm), cm); err == nil && cm.Annotations[annotationSwitched] != "" {
		return true, nil
	} else if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	s.disconnected = cm.Annotations[annotationDisconnected] != ""
	if err := s.state.check(); err != nil {
		return false, err
	}
	d := &appsv1.Deployment{}
	if err := s.Member.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: submarinerControllers[0]}, d); err != nil {
		return false, fmt.Errorf("get Deployment %s/%s: %w: --operator-namespace names that of Submariner", s.Namespace, submarinerControllers[0], err)
	}
	if csv := d.Labels["olm.owner"]; csv != "" {
		return false, fmt.Errorf("scale Deployment %s/%s: it belongs to ClusterServiceVersion %s, and OLM would start it again: delete its Subscription and this object first, and leave Submariner %s/submariner", s.Namespace, d.Name, csv, s.Namespace)
	}
	member, errMember := broker.ClusterUID(ctx, s.Member)
	hub, errHub := broker.ClusterUID(ctx, s.Broker)
	if err := errors.Join(errMember, errHub); err != nil {
		return false, err
	}
	if !s.disconnected { // else Gateways and the block are removed
		if err := s.state.checkAddresses(); err != nil {
			return false, err
		}
		if _, err := s.unplugged(ctx); err != nil {
			return false, err
		}
	}
	if others := s.state.others(); member == hub && len(others) > 0 {
		return false, fmt.Errorf("the broker is in this cluster, and its definitions, which the switch replaces, are in use by %s: switch them first", strings.Join(others, ", "))
	}
	return false, nil
}

// others are the other clusters with an Endpoint at the broker.
func (s submarinerState) others() (ids []string) {
	for _, e := range s.endpoints {
		if e.Spec.ClusterID != s.spec.ClusterID {
			ids = append(ids, e.Spec.ClusterID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (s *Submariner) kept() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: keptSubmariner}}
}

func (s *Submariner) register(ctx context.Context) error {
	if err := s.carryAddresses(ctx); err != nil {
		return err
	}
	return s.join(ctx, Joining{RegisterOnly: true})
}

func (s *Submariner) pull(ctx context.Context) error {
	if err := s.putMigrator(ctx, "check"); err != nil {
		return err
	}
	return s.awaitMigrator(ctx)
}

// putMigrator writes the DaemonSet whose pods run pelago-node with args, once, and sleep.
func (s *Submariner) putMigrator(ctx context.Context, args ...string) error {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: migrator}}
	labels := map[string]string{"app": migrator}
	container := func(name string, command ...string) corev1.Container {
		return corev1.Container{Name: name, Image: s.Image, ImagePullPolicy: corev1.PullPolicy(s.PullPolicy), Command: command,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext:          &corev1.SecurityContext{Privileged: ptr.To(true)},
			VolumeMounts:             []corev1.VolumeMount{{Name: "xtables-lock", MountPath: "/run/xtables.lock"}}}
	}
	return manifests.Put(ctx, s.Member, d, func() {
		d.Spec = appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromString("100%"))}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				HostNetwork: true, AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0),
				NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}, PriorityClassName: "system-node-critical",
				Affinity:       topology.DatapathAffinity(),
				Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				InitContainers: []corev1.Container{container("node", append([]string{"pelago-node"}, args...)...)},
				Containers:     []corev1.Container{container("sleep", "sleep", "86400")},
				Volumes: []corev1.Volume{{Name: "xtables-lock", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
					Path: "/run/xtables.lock", Type: ptr.To(corev1.HostPathFileOrCreate)}}}},
			}},
		}
	})
}

func (s *Submariner) awaitMigrator(ctx context.Context) error {
	d := &appsv1.DaemonSet{}
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, s.Timeout, true, func(context.Context) (bool, error) {
		err := s.Member.Get(ctx, client.ObjectKey{Namespace: manifests.SystemNamespace, Name: migrator}, d)
		have := d.Status
		return err == nil && have.ObservedGeneration >= d.Generation && have.UpdatedNumberScheduled >= have.DesiredNumberScheduled && have.NumberReady >= have.DesiredNumberScheduled, err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		reasons, unread := s.Reasons(ctx)
		return errors.Join(fmt.Errorf("after %s only %d of %d pods of DaemonSet %s/%s are ready\n%s", s.Timeout, d.Status.NumberReady, d.Status.DesiredNumberScheduled,
			d.Namespace, d.Name, strings.Join(reasons, "\n")), unread)
	}
	return err
}

// keep copies the objects that the switch replaces or removes and that Submariner's operator does
// not recreate. An existing copy is never overwritten: after an interruption the object may already
// have been changed.
func (s *Submariner) keep(ctx context.Context) error {
	crds, err := s.definitions(ctx)
	if err != nil {
		return err
	}
	services, err := s.internal(ctx)
	if err != nil {
		return err
	}
	cm := s.kept()
	var failed error
	return errors.Join(manifests.Put(ctx, s.Member, cm, func() {
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		for _, u := range append(crds, services...) {
			key := strings.ToLower(u.GetKind()) + "." + strings.ReplaceAll(manifests.Title(client.ObjectKeyFromObject(&u)), "/", ".")
			if _, ok := cm.Data[key]; ok {
				continue
			}
			copied := restorable(&u)
			for _, allocated := range []string{"clusterIP", "clusterIPs"} {
				unstructured.RemoveNestedField(copied, "spec", allocated)
			}
			text, err := json.Marshal(copied)
			failed = errors.Join(failed, err)
			cm.Data[key] = string(text)
		}
	}), failed)
}

// definitions are Submariner's definitions of kinds that Pelago has as well.
func (s *Submariner) definitions(ctx context.Context) (out []unstructured.Unstructured, err error) {
	want, err := manifests.MemberCRDs()
	if err != nil {
		return nil, err
	}
	for _, crd := range want {
		have := unstructured.Unstructured{}
		have.SetGroupVersionKind(crd.GroupVersionKind())
		err := s.Member.Get(ctx, client.ObjectKeyFromObject(crd), &have)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get CRD %s: %w", crd.GetName(), err)
		}
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		if err == nil && group == submarinerv1.GroupVersion.Group && have.GetLabels()[manifests.LabelCRDRevision] == "" {
			out = append(out, have)
		}
	}
	return out, nil
}

// internal are globalnet's Services.
func (s *Submariner) internal(ctx context.Context) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	if err := s.Member.List(ctx, list, client.HasLabels{labelInternal}); err != nil {
		return nil, fmt.Errorf("list Services with label %s: %w", labelInternal, err)
	}
	return list.Items, nil
}

func (s *Submariner) scaler() scaler {
	return scaler{s.Member, s.Namespace, AnnotationSubmarinerReplicas, "the cluster", s.Timeout, s.Progress}
}

func (s *Submariner) stop(ctx context.Context) error {
	id := s.state.spec.ClusterID
	if waits, err := s.Waits(ctx, id); err != nil {
		return err
	} else if waits {
		return fmt.Errorf("no administrator of the hub has accepted cluster %s, to which no other one would connect: run `pelago clusters accept %s` at the hub", id, id)
	}
	return s.scaler().scale(ctx, submarinerControllers, false)
}

// disconnect ends Submariner's data path.
func (s *Submariner) disconnect(ctx context.Context) error {
	if err := s.mark(ctx, annotationDisconnected); err != nil {
		return err
	}
	s.Progress("Connections to other clusters end now")
	for _, name := range submarinerDaemonSets {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
		if err := s.Member.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete DaemonSet %s/%s: %w", s.Namespace, name, err)
		}
	}
	var left []string
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, s.Timeout, true, func(context.Context) (bool, error) {
		left = nil
		pods := &corev1.PodList{}
		err := s.Member.List(ctx, pods, client.InNamespace(s.Namespace))
		for _, p := range pods.Items {
			if slices.Contains(submarinerDaemonSets, p.Labels["app"]) {
				left = append(left, p.Name)
			}
		}
		return len(left) == 0, err
	})
	if len(left) > 0 {
		return fmt.Errorf("wait for the end of pods %s: %w", strings.Join(left, ", "), err)
	}
	return err
}

// clean starts to clean the nodes, and removes what would compete for traffic.
func (s *Submariner) clean(ctx context.Context) error {
	args := []string{"remove-submariner"}
	var remote []string
	for _, e := range s.state.endpoints {
		if e.Spec.ClusterID != s.state.spec.ClusterID {
			remote = append(remote, e.Spec.Subnets...)
		}
	}
	if len(remote) > 0 {
		args = append(args, "--remote-subnets="+strings.Join(remote, ","))
	}
	if err := s.putMigrator(ctx, args...); err != nil {
		return err
	}
	services, err := s.internal(ctx)
	if err != nil {
		return err
	}
	for i := range services {
		u := &services[i]
		title := manifests.Title(client.ObjectKeyFromObject(u))
		before := u.DeepCopy()
		u.SetFinalizers(nil) // of globalnet, which is gone
		if err := s.Member.Patch(ctx, u, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove the finalizer of Service %s: %w", title, err)
		}
		if err := s.Member.Delete(ctx, u); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Service %s: %w", title, err)
		}
	}
	for i := range s.state.endpoints {
		e := &s.state.endpoints[i]
		if e.Spec.ClusterID != s.state.spec.ClusterID {
			continue
		}
		if err := s.Broker.Delete(ctx, e); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Endpoint %s/%s at Submariner's broker: %w", e.Namespace, e.Name, err)
		}
	}
	return nil
}

func (s *Submariner) install(ctx context.Context) error {
	if err := s.replaceable(ctx); err != nil {
		return err
	}
	return s.join(ctx, Joining{KeepRegistration: true})
}

// replaceable lets join replace Submariner's definitions, which require fields that Pelago does not
// write.
func (s *Submariner) replaceable(ctx context.Context) error {
	crds, err := s.definitions(ctx)
	if err != nil {
		return err
	}
	for i := range crds {
		u, before := &crds[i], crds[i].DeepCopy()
		labels := u.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[manifests.LabelCRDRevision] = "0"
		u.SetLabels(labels)
		if err := s.Member.Patch(ctx, u, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("label CRD %s: %w", u.GetName(), err)
		}
	}
	return nil
}

func (s *Submariner) start(ctx context.Context) error {
	if err := s.awaitMigrator(ctx); err != nil {
		return err
	}
	return s.Started(ctx)
}

// finish removes Submariner's EndpointSlices, for which the agent has made its own, and completes
// what join has left out.
func (s *Submariner) finish(ctx context.Context) error {
	former, err := member.Former(ctx, s.Member)
	if err != nil {
		return err
	}
	list := &discoveryv1.EndpointSliceList{}
	if err := s.Member.List(ctx, list, client.MatchingLabels{discoveryv1.LabelManagedBy: lighthouse}); err != nil {
		return fmt.Errorf("list EndpointSlices of %s: %w", lighthouse, err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if (kube.Owner{HubID: former.HubID}).Owns(e) || e.Namespace == s.Namespace {
			continue
		}
		if err := s.Member.Delete(ctx, e); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete EndpointSlice %s/%s: %w", e.Namespace, e.Name, err)
		}
	}
	if err := s.join(ctx, Joining{}); err != nil {
		return err
	}
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: migrator}}
	if err := s.Member.Delete(ctx, d); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete DaemonSet %s: %w", migrator, err)
	}
	return s.mark(ctx, annotationSwitched)
}

// mark records progress.
func (s *Submariner) mark(ctx context.Context, annotation string) error {
	cm := s.kept()
	return manifests.Put(ctx, s.Member, cm, func() { metav1.SetMetaDataAnnotation(&cm.ObjectMeta, annotation, "true") })
}
