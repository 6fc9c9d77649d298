package operator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
)

// memberName is the name of the member for an object.
func memberName(u *unstructured.Unstructured) (string, error) {
	name := cmp.Or(u.GetAnnotations()[v1alpha1.AnnotationClusterName], strings.ReplaceAll(u.GetName(), ".", "-"))
	if err := config.CheckClusterID(name); err != nil {
		return "", refusal{"", fmt.Sprintf("%v; the annotation %s chooses the name", err, v1alpha1.AnnotationClusterName)}
	}
	return name, nil
}

// commaList splits an annotation.
func commaList(text string) (out []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// memberFields are the labels and the place that the Cluster of the hub gets.
func memberFields(u *unstructured.Unstructured) (set map[string]string, place map[string]any, err error) {
	set, place = map[string]string{}, map[string]any{}
	for _, key := range commaList(u.GetAnnotations()[v1alpha1.AnnotationClusterLabels]) {
		value, ok := u.GetLabels()[key]
		if !ok {
			return nil, nil, refusal{"", fmt.Sprintf("annotation %s names the label %q, which the Cluster does not have", v1alpha1.AnnotationClusterLabels, key)}
		}
		set[key] = value
	}
	for field, key := range map[string]string{"provider": v1alpha1.AnnotationClusterProvider, "region": v1alpha1.AnnotationClusterRegion} {
		if value := u.GetAnnotations()[key]; value != "" {
			place[field] = value
		}
	}
	var zones []any
	for _, zone := range commaList(u.GetAnnotations()[v1alpha1.AnnotationClusterZones]) {
		zones = append(zones, zone)
	}
	if len(zones) > 0 {
		place["zones"] = zones
	}
	return set, place, nil
}

// join makes the cluster of an object a member. The error reports the result, also success.
func (r *capi) join(ctx context.Context, hub *hubAccess, u *unstructured.Unstructured, s *capiState) error {
	key := client.ObjectKeyFromObject(u)
	name, err := memberName(u)
	if err != nil {
		return err
	}
	set, place, err := memberFields(u)
	if err != nil {
		return err
	}
	have, err := r.member(ctx, hub, key, name)
	if err != nil {
		return err
	}
	mode := u.GetLabels()[v1alpha1.LabelJoin]
	by := clusterv1alpha1.Pull
	switch mode {
	case v1alpha1.JoinPush:
		by = clusterv1alpha1.Push
	case v1alpha1.JoinPull, v1alpha1.JoinNetwork:
	default:
		return refusal{"", fmt.Sprintf("label %s is %q: use %s, %s or %s", v1alpha1.LabelJoin, mode, v1alpha1.JoinPush, v1alpha1.JoinPull, v1alpha1.JoinNetwork)}
	}
	if have != nil && (have.Name != name || have.Spec.SyncMode != by) {
		return refusal{"", fmt.Sprintf("the cluster is a %s member called %s, and neither changes: remove the label %s, wait until it has left, and set it again",
			strings.ToLower(string(have.Spec.SyncMode)), have.Name, v1alpha1.LabelJoin)}
	}
	if have != nil && have.DeletionTimestamp != nil {
		return reported{reasonJoinPending, fmt.Sprintf("member %s is being removed from the hub: the cluster joins again afterwards", name)}
	}
	if !initialized(u) {
		return reported{reasonJoinPending, "the control plane is not initialized yet"}
	}
	access, err := r.kubeconfig(ctx, key)
	if err != nil {
		return err
	}
	if have == nil && by == clusterv1alpha1.Push {
		if err := r.adopts(ctx, hub, key, name, access); err != nil {
			return err
		}
	}
	want, err := r.wanted(ctx, u, name, access, have != nil)
	if err != nil {
		return err
	}
	input := fmt.Sprint(want.input(), set, place, u.GetUID(), sha256.Sum256(append(access.content, hub.kubeconfig...)))
	if (have != nil || s.applied.err != nil) && s.applied.current(input, repairInterval, r.retries()) {
		return cmp.Or(s.applied.err, error(reported{reasonJoined, joinedMessage(name, mode)}))
	}
	if !r.claim(name, key) {
		return reported{reasonJoinPending, fmt.Sprintf("another Cluster is being joined as %q", name)}
	}
	defer r.release(name)
	err = want.apply(ctx, hub.cluster)
	if err != nil && want.keep {
		err = fmt.Errorf("%w (the broker-info.subm of Secret %s/%s has expired: replace it if the cluster has to register again)", err, r.namespace, v1alpha1.BrokerInfoSecret)
	}
	if err == nil && have == nil && by == clusterv1alpha1.Pull {
		err = member.Accept(ctx, hub.Client, name) // who set the label, is an administrator
	}
	if err == nil {
		err = r.mark(ctx, hub, key, name, set, place)
	}
	s.applied = applied{input, time.Now(), err}
	if err != nil {
		return err
	}
	r.record(key, name)
	s.leaving = ""
	return reported{reasonJoined, joinedMessage(name, mode)}
}

// adopts refuses the name of a push member that was joined otherwise, unless the object leads to the
// same API server by the same certificate authority: what the hub writes to that member, Secrets
// included, must not go to a cluster of whoever can write objects of Cluster API.
func (r *capi) adopts(ctx context.Context, hub *hubAccess, key client.ObjectKey, name string, access credential) error {
	c := &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
		return client.IgnoreNotFound(err)
	}
	if c.Spec.SyncMode != clusterv1alpha1.Push {
		return nil // its agent has a credential of its own
	}
	cfg, err := access.config()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{}
	if ref := c.Spec.SecretRef; ref != nil {
		if err := hub.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get Secret %s/%s at the hub: %w", ref.Namespace, ref.Name, err)
		}
	}
	ca := bytes.TrimSpace(secret.Data[clusterv1alpha1.SecretKeyCA])
	if len(ca) > 0 && c.Spec.APIEndpoint == cfg.Host && bytes.Equal(ca, bytes.TrimSpace(cfg.CAData)) {
		return nil
	}
	return refusal{"", fmt.Sprintf("the hub has a member %q that was not joined for this object, with another API server or certificate authority: choose "+
		"another name with the annotation %s; if it is the same cluster, an administrator of the hub runs `kubectl annotate --overwrite %s %s %s=%s`",
		name, v1alpha1.AnnotationClusterName, "clusters.cluster.karmada.io", name, v1alpha1.AnnotationClusterAPI, r.origin(key))}
}

func joinedMessage(name, mode string) string {
	return fmt.Sprintf("the cluster is member %s of the hub (%s): see `kubectl get clusters.cluster.karmada.io %s` there", name, mode, name)
}

// wanted is how a cluster joins.
type wanted struct {
	push   *member.Push
	object spec.Object
	info   broker.Info
	secret []byte // of info
	keep   bool   // a cluster that has joined needs no valid broker-info.subm
	access credential
}

// input identifies it.
func (w wanted) input() string {
	if w.push != nil {
		return "push " + w.push.Name
	}
	return fmt.Sprint(spec.Texts(w.object.Member), w.keep, sha256.Sum256(w.secret))
}

func (r *capi) wanted(ctx context.Context, u *unstructured.Unstructured, name string, access credential, joined bool) (w wanted, err error) {
	mode := u.GetLabels()[v1alpha1.LabelJoin]
	w.access = access
	o, errs := spec.FromClusterAPI(name, mode == v1alpha1.JoinPull, u.GetAnnotations())
	if err := located(o.Locate, spec.Join(errs)); err != nil {
		return w, err
	}
	if mode == v1alpha1.JoinPush {
		if u.GetAnnotations()[v1alpha1.AnnotationFlags] != "" {
			return w, refusal{"", fmt.Sprintf("annotation %s has no meaning with label %s=%s: remove it", v1alpha1.AnnotationFlags, v1alpha1.LabelJoin, mode)}
		}
		w.push = &member.Push{Name: name, Access: access.from}
		return w, nil
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.namespace, Name: v1alpha1.BrokerInfoSecret}
	if err := r.live.Get(ctx, key, secret); err != nil {
		return w, fmt.Errorf("get Secret %s: %w: make a Broker object, or the Secret of a broker-info.subm of the hub, for the label %s=%s", key, err,
			v1alpha1.LabelJoin, mode)
	}
	w.secret = secret.Data[v1alpha1.BrokerInfoKey]
	if w.info, err = broker.DecodeInfo(w.secret); err != nil {
		return w, fmt.Errorf("read Secret %s: %w", key, err)
	}
	w.object, w.keep = o, joined && w.info.CheckExpiry(time.Now()) != nil
	w.object.SetImage(cmp.Or(r.image, manifests.DefaultImage))
	return w, nil
}

// apply joins the cluster. Fields in the error are those of annotations; the spec of a Cluster
// belongs to Cluster API.
func (w wanted) apply(ctx context.Context, hub manifests.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if w.push == nil {
		c, err := w.access.open()
		if err != nil {
			return err
		}
		err = join(ctx, c, w.object, w.info, w.keep)
		if err != nil {
			return spec.Flags(spec.Member{}).Error(err)
		}
		return nil
	}
	c, proxy, err := w.access.push()
	if err != nil {
		return err
	}
	w.push.Proxy = proxy
	return w.push.Join(ctx, hub, c, progress)
}

// claim keeps two objects from being joined under one name at the same time.
func (r *capi) claim(name string, key client.ObjectKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, busy := r.names[name]; busy {
		return false
	}
	r.names[name] = key
	return true
}

func (r *capi) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
}

// mark applies the labels and the place derived from the object to the hub's Cluster, and the
// labels to the network's Cluster, if there is one. Fields that the operator applied before and
// does not apply again are removed.
func (r *capi) mark(ctx context.Context, hub *hubAccess, key client.ObjectKey, name string, set map[string]string, place map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": place}}
	if len(place) == 0 {
		u.Object = map[string]any{}
	}
	u.SetGroupVersionKind(clusterv1alpha1.GroupVersion.WithKind("Cluster"))
	u.SetAnnotations(map[string]string{v1alpha1.AnnotationClusterAPI: r.origin(key)})
	objects := []*unstructured.Unstructured{u}
	network := &submarinerv1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: name}, network)
	switch {
	case err == nil:
		n := &unstructured.Unstructured{}
		n.SetGroupVersionKind(submarinerv1.GroupVersion.WithKind("Cluster"))
		n.SetNamespace(network.Namespace)
		objects = append(objects, n)
	case client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err):
		return fmt.Errorf("get Cluster %s of the network at the hub: %w", name, err)
	}
	for _, u := range objects {
		u.SetName(name)
		u.SetLabels(set)
		if err := hub.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(capiOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("label Cluster %s at the hub: %w", name, err)
		}
	}
	return nil
}
