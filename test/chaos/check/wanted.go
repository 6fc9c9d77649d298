// Package check reports what members must hold, from nothing but the objects at the hub, and
// whether they do. It is written apart from the controllers: it shares no code with them, only the
// API's types, and knows just what churn makes (README.md): Deployments selected by one label, the
// ConfigMaps that they mount, clusters by name, Duplicated and static weights, overrides of image
// tags and labels. What it does not know it refuses. It is pure but for the History, which has a
// lock.
package check

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Object is a template, or what became of it in a member.
type Object struct{ Kind, Namespace, Name string }

func (o Object) String() string { return o.Kind + " " + o.Namespace + "/" + o.Name }

// Place is an object in a member.
type Place struct {
	Member string
	Object
}

func (p Place) String() string { return p.Object.String() + " in " + p.Member }

// Content is what of an object is compared.
type Content struct {
	Replicas int32             // of a Deployment
	Image    string            // of its first container
	Labels   map[string]string // those that a template or an override has set
	Data     map[string]string // of a ConfigMap
}

// Hub is what the hub's users have written there.
type Hub struct {
	Members     []string
	Deployments []appsv1.Deployment
	ConfigMaps  []corev1.ConfigMap
	Policies    []policyv1alpha1.PropagationPolicy
	Overrides   []policyv1alpha1.OverridePolicy
}

// Wanted is what each member must hold. Templates that no policy selects are wanted nowhere.
func Wanted(h Hub) (map[Place]Content, error) {
	wanted := map[Place]Content{}
	for _, d := range h.Deployments {
		if d.DeletionTimestamp != nil {
			continue
		}
		policy, err := policyOf(h.Policies, d)
		if err != nil || policy == nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		shares, err := divide(h.Members, policy.Spec.Placement, d)
		if err != nil {
			return nil, fmt.Errorf("policy %s/%s: %w", policy.Namespace, policy.Name, err)
		}
		for member, replicas := range shares {
			content, err := overridden(h.Overrides, member, d, replicas)
			if err != nil {
				return nil, err
			}
			wanted[Place{member, Object{"Deployment", d.Namespace, d.Name}}] = content
			if !policy.Spec.PropagateDeps {
				continue
			}
			for _, m := range mounted(h.ConfigMaps, d) {
				wanted[Place{member, Object{"ConfigMap", m.Namespace, m.Name}}] = Content{Labels: m.Labels, Data: m.Data}
			}
		}
	}
	return wanted, nil
}

// policyOf is the one policy that selects a Deployment, nil if none exists.
func policyOf(policies []policyv1alpha1.PropagationPolicy, d appsv1.Deployment) (*policyv1alpha1.PropagationPolicy, error) {
	var found *policyv1alpha1.PropagationPolicy
	for i, p := range policies {
		if p.Namespace != d.Namespace || p.DeletionTimestamp != nil {
			continue
		}
		for _, s := range p.Spec.ResourceSelectors {
			matches, err := selects(s, d)
			if err != nil {
				return nil, fmt.Errorf("policy %s/%s: %w", p.Namespace, p.Name, err)
			}
			if !matches {
				continue
			}
			if found != nil {
				return nil, fmt.Errorf("policies %s and %s of %s both select %s: which one comes first is not known here", found.Name, p.Name,
					p.Namespace, d.Name)
			}
			found = &policies[i]
		}
	}
	return found, nil
}

func selects(s policyv1alpha1.ResourceSelector, d appsv1.Deployment) (bool, error) {
	if s.Kind != "Deployment" || s.Name != "" || s.LabelSelector == nil || len(s.LabelSelector.MatchExpressions) > 0 {
		return false, fmt.Errorf("selector %+v is not known here", s)
	}
	for k, v := range s.LabelSelector.MatchLabels {
		if d.Labels[k] != v {
			return false, nil
		}
	}
	return true, nil
}

// divide is the number of replicas in each cluster that gets the Deployment.
func divide(members []string, p policyv1alpha1.Placement, d appsv1.Deployment) (map[string]int32, error) {
	if p.ClusterAffinity == nil || len(p.ClusterAffinity.ClusterNames) == 0 || p.ClusterAffinity.LabelSelector != nil ||
		p.ClusterAffinity.FieldSelector != nil ||
		len(p.ClusterAffinity.ExcludeClusters)+len(p.ClusterAffinities)+len(p.SpreadConstraints) > 0 {
		return nil, fmt.Errorf("a placement other than by cluster names is not known here")
	}
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	var clusters []string
	for _, c := range slices.Sorted(slices.Values(p.ClusterAffinity.ClusterNames)) {
		if slices.Contains(members, c) {
			clusters = append(clusters, c)
		}
	}
	shares := map[string]int32{}
	if p.ReplicaScheduling == nil || p.ReplicaScheduling.ReplicaSchedulingType == policyv1alpha1.ReplicaSchedulingTypeDuplicated {
		for _, c := range clusters {
			shares[c] = replicas
		}
		return shares, nil
	}
	if p.ReplicaScheduling.WeightPreference == nil || p.ReplicaScheduling.WeightPreference.DynamicWeight != "" {
		return nil, fmt.Errorf("a division other than by static weights is not known here")
	}
	weights := map[string]int64{}
	for _, w := range p.ReplicaScheduling.WeightPreference.StaticWeightList {
		for _, c := range w.TargetCluster.ClusterNames {
			weights[c] = max(weights[c], w.Weight)
		}
	}
	clusters = slices.DeleteFunc(clusters, func(c string) bool { return weights[c] == 0 })
	if len(clusters) == 0 {
		return nil, fmt.Errorf("weights that match no cluster are not known here")
	}
	for range replicas {
		shares[next(clusters, weights, shares, string(d.UID))]++
	}
	return shares, nil
}

// next is who gets the next replica: the highest weight/(2·seats+1) (Sainte-Laguë). Equal
// quotients: the one with fewer; then by name, descending if the FNV-1a hash of the template's UID
// is odd. The names are sorted.
func next(clusters []string, weights map[string]int64, seats map[string]int32, uid string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid)) // a hash takes everything
	odd := h.Sum32()%2 == 1
	best := clusters[0]
	for _, c := range clusters[1:] {
		// w(c)/(2s(c)+1) against w(best)/(2s(best)+1), without fractions
		left, right := weights[c]*int64(2*seats[best]+1), weights[best]*int64(2*seats[c]+1)
		if left > right || left == right && (seats[c] < seats[best] || seats[c] == seats[best] && odd) {
			best = c
		}
	}
	return best
}

// overridden is the content in one member.
func overridden(overrides []policyv1alpha1.OverridePolicy, member string, d appsv1.Deployment, replicas int32) (Content, error) {
	content := Content{Replicas: replicas, Image: d.Spec.Template.Spec.Containers[0].Image, Labels: maps.Clone(d.Labels)}
	ordered := slices.SortedFunc(slices.Values(overrides), func(a,
		b policyv1alpha1.OverridePolicy) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, o := range ordered {
		if o.Namespace != d.Namespace || o.DeletionTimestamp != nil {
			continue
		}
		if len(o.Spec.ResourceSelectors) != 1 {
			return content, fmt.Errorf("override %s/%s: other than one selector is not known here", o.Namespace, o.Name)
		}
		matches, err := selects(o.Spec.ResourceSelectors[0], d)
		if err != nil {
			return content, fmt.Errorf("override %s/%s: %w", o.Namespace, o.Name, err)
		}
		for _, rule := range o.Spec.OverrideRules {
			if !matches || rule.TargetCluster != nil && !slices.Contains(rule.TargetCluster.ClusterNames, member) {
				continue
			}
			if err := override(&content, rule.Overriders); err != nil {
				return content, fmt.Errorf("override %s/%s: %w", o.Namespace, o.Name, err)
			}
		}
	}
	return content, nil
}

func override(c *Content, o policyv1alpha1.Overriders) error {
	for _, image := range o.ImageOverrider {
		if image.Component != policyv1alpha1.Tag || image.Operator != policyv1alpha1.OverriderOpReplace || image.Predicate != nil {
			return fmt.Errorf("an image override other than of the tag is not known here")
		}
		name, _, _ := strings.Cut(c.Image, ":")
		c.Image = name + ":" + image.Value
	}
	for _, l := range o.LabelsOverrider {
		if l.Operator != policyv1alpha1.OverriderOpAdd {
			return fmt.Errorf("a label override other than add is not known here")
		}
		maps.Copy(c.Labels, l.Value)
	}
	if len(o.Plaintext)+len(o.CommandOverrider)+len(o.ArgsOverrider)+len(o.AnnotationsOverrider)+len(o.FieldOverrider) > 0 {
		return fmt.Errorf("overrides other than of image tags and labels are not known here")
	}
	return nil
}

// mounted are the ConfigMaps that a Deployment needs and that exist at the hub.
func mounted(all []corev1.ConfigMap, d appsv1.Deployment) (found []corev1.ConfigMap) {
	for _, v := range d.Spec.Template.Spec.Volumes {
		for _, m := range all {
			if v.ConfigMap != nil && m.Namespace == d.Namespace && m.Name == v.ConfigMap.Name && m.DeletionTimestamp == nil {
				found = append(found, m)
			}
		}
	}
	return found
}
