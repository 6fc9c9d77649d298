package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionAccepted of KindRules is False if the API server took them but not all of them can work.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted, next to ReasonAccepted.
const (
	// ReasonInvalidExpression: a rule does not compile; the message has the rule, the error and its
	// position. Objects of the kind stay unchanged in members until the rule is fixed: nothing is
	// decided without it.
	ReasonInvalidExpression = "InvalidExpression"
	// ReasonConflict: older KindRules have the same rule for the same kind, and are used.
	ReasonConflict = "Conflict"
)

// KindRules define with CEL expressions how the hub and the members' agents interpret objects of
// some kinds. Each rule takes precedence over the built-in one for the same operation; operations
// without a rule keep their built-in behaviour.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=kindrules,singular=kindrules,scope=Cluster,shortName=kr,categories=pelago
// +kubebuilder:printcolumn:name="Kinds",type=string,JSONPath=`.spec.kinds[*].kind`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`
type KindRules struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KindRulesSpec `json:"spec"`
	// +optional
	Status KindRulesStatus `json:"status,omitempty"`
}

// KindRulesSpec are the kinds, and the rules for all of them.
type KindRulesSpec struct {
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=apiVersion
	// +listMapKey=kind
	Kinds []RuledKind `json:"kinds"`
	Rules Rules       `json:"rules"`
}

// RuledKind is a kind that the rules are for.
type RuledKind struct {
	// APIVersion is group/version, as objects have it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$`
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9]*$`
	Kind string `json:"kind"`
}

// Expression is a CEL expression.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=16384
type Expression string

// Rules has an expression for each operation. The variables: `object` is the template at the hub,
// `desired` what is about to be written to a member, `observed` the member's object, `replicas` the
// number that a cluster is given, `items` what the clusters report: a list of {clusterName, status,
// applied, health}, in which `status` is not there before the cluster has reported.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.requirements) || has(self.replicas)",message="requirements are those of replicas: a rule for replicas is missing"
type Rules struct {
	// Replicas gives the number of replicas of `object`.
	//
	// +optional
	Replicas Expression `json:"replicas,omitempty"`
	// Requirements gives what each replica of `object` requests, as a map with the fields of
	// spec.replicaRequirements of bindings, or null; see the function podRequirements.
	//
	// +optional
	Requirements Expression `json:"requirements,omitempty"`
	// Components lists the components of an `object` with several pod templates, as maps with name,
	// replicas and replicaRequirements (see Requirements). They take precedence over Replicas: each
	// cluster gets the whole object.
	//
	// +optional
	Components Expression `json:"components,omitempty"`
	// Revise gives what changes in `object` if it has `replicas` replicas, as a merge patch (RFC
	// 7386).
	//
	// +optional
	Revise Expression `json:"revise,omitempty"`
	// Prune removes the fields of `object` that members must not get, as a merge patch: null
	// removes a field.
	//
	// +optional
	Prune Expression `json:"prune,omitempty"`
	// Retain returns the fields of the `observed` object that the member owns, as a merge patch
	// onto the `desired` one.
	//
	// +optional
	Retain Expression `json:"retain,omitempty"`
	// Reflect returns the part of the status of `observed` that is reported to the hub, as a map;
	// null: none exists yet.
	//
	// +optional
	Reflect Expression `json:"reflect,omitempty"`
	// Aggregate computes the status of `object` from the `items`, as a map; null: it stays
	// unchanged.
	//
	// +optional
	Aggregate Expression `json:"aggregate,omitempty"`
	// Healthy reports whether `observed` is healthy.
	//
	// +optional
	Healthy Expression `json:"healthy,omitempty"`
	// Dependencies lists what `object` refers to, as maps with apiVersion, kind, name or
	// labelSelector, and namespace (that of the object if it is left out); see the function
	// podReferences.
	//
	// +optional
	Dependencies Expression `json:"dependencies,omitempty"`
}

// KindRulesStatus reports whether the rules can work; see ConditionAccepted.
type KindRulesStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KindRulesList is a list of KindRules.
//
// +kubebuilder:object:root=true
type KindRulesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KindRules `json:"items"`
}
