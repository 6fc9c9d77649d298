package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Placement defines to which clusters a template goes, and how its replicas are divided.
//
// +kubebuilder:validation:XValidation:rule="!has(self.clusterAffinity) || !has(self.clusterAffinities)",message="clusterAffinities cannot co-exist with clusterAffinity",fieldPath=.clusterAffinities
// +kubebuilder:validation:XValidation:rule="!has(self.clusterAffinities) || !self.clusterAffinities.exists(a, has(a.overflowAffinities) && a.overflowAffinities.size() > 0) || (has(self.replicaScheduling) && (!has(self.replicaScheduling.replicaSchedulingType) || self.replicaScheduling.replicaSchedulingType == 'Divided') && ((has(self.replicaScheduling.replicaDivisionPreference) && self.replicaScheduling.replicaDivisionPreference == 'Aggregated') || (has(self.replicaScheduling.weightPreference) && has(self.replicaScheduling.weightPreference.dynamicWeight))))",message="overflowAffinities can only be used together with dynamic weight or aggregated scheduling",fieldPath=.clusterAffinities
type Placement struct {
	// +optional
	ClusterAffinity *ClusterAffinity `json:"clusterAffinity,omitempty"`
	// ClusterAffinities are tried in this order until one of them fits.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.affinityName == a.affinityName))",message="each affinity term in a policy must have a unique name"
	ClusterAffinities []ClusterAffinityTerm `json:"clusterAffinities,omitempty"`
	// +optional
	// +listType=atomic
	ClusterTolerations []Toleration `json:"clusterTolerations,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.spreadByField) ? c.spreadByField == 'cluster' : !has(c.spreadByLabel) || c.spreadByLabel.size() == 0).size() <= 1",message="multiple cluster spread constraints are not allowed"
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.spreadByField) && c.spreadByField == 'region').size() <= 1",message="multiple region spread constraints are not allowed"
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.spreadByField) && c.spreadByField == 'zone').size() <= 1",message="multiple zone spread constraints are not allowed"
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.spreadByField) && c.spreadByField == 'provider').size() <= 1",message="multiple provider spread constraints are not allowed"
	// +kubebuilder:validation:XValidation:rule="!self.exists(c, has(c.spreadByField)) || self.exists(c, has(c.spreadByField) ? c.spreadByField == 'cluster' : !has(c.spreadByLabel) || c.spreadByLabel.size() == 0)",message="the cluster spread constraint must be enabled in one of the constraints in case of SpreadByField is enabled"
	SpreadConstraints []SpreadConstraint `json:"spreadConstraints,omitempty"`
	// ReplicaScheduling is Duplicated if not set.
	//
	// +optional
	ReplicaScheduling *ReplicaSchedulingStrategy `json:"replicaScheduling,omitempty"`
	// +optional
	WorkloadAffinity *WorkloadAffinity `json:"workloadAffinity,omitempty"`
}

// Toleration has the fields of Kubernetes' toleration of pods and converts to it
// (corev1.Toleration(t)); of its operators only two have a meaning for clusters.
type Toleration struct {
	// +optional
	Key string `json:"key,omitempty"`
	// Operator is Equal if not set.
	//
	// +optional
	// +kubebuilder:validation:Enum="";Exists;Equal
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// +optional
	Value string `json:"value,omitempty"`
	// Effect that is not set stands for all.
	//
	// +optional
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// TolerationSeconds ends the toleration of a NoExecute taint so long after it appeared; never
	// if not set.
	//
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Tolerates reports whether t covers a taint, by the rules of tolerations of pods.
func (t Toleration) Tolerates(taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	}
	return false
}

// SpreadField is a field by which clusters are grouped.
//
// +kubebuilder:validation:Enum=cluster;region;zone;provider
type SpreadField string

const (
	SpreadByFieldCluster  SpreadField = "cluster"
	SpreadByFieldRegion   SpreadField = "region"
	SpreadByFieldZone     SpreadField = "zone"
	SpreadByFieldProvider SpreadField = "provider"
)

// SpreadConstraint bounds the number of groups of clusters; by cluster and at least 1 if nothing is
// given.
//
// +kubebuilder:validation:XValidation:rule="!has(self.spreadByField) || !has(self.spreadByLabel) || self.spreadByLabel.size() == 0",message="spreadByLabel should not co-exist with spreadByField",fieldPath=.spreadByLabel
// +kubebuilder:validation:XValidation:rule="!has(self.maxGroups) || self.maxGroups <= 0 || !has(self.minGroups) || self.maxGroups >= self.minGroups",message="maxGroups lower than minGroups is not allowed",fieldPath=.maxGroups
// +kubebuilder:validation:XValidation:rule="!has(self.minGroups) || self.minGroups >= 0",message="minGroups lower than 0 is not allowed",fieldPath=.minGroups
// +kubebuilder:validation:XValidation:rule="!has(self.maxGroups) || self.maxGroups >= 0",message="maxGroups lower than 0 is not allowed",fieldPath=.maxGroups
type SpreadConstraint struct {
	// +optional
	SpreadByField SpreadField `json:"spreadByField,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=317
	SpreadByLabel string `json:"spreadByLabel,omitempty"`
	// MaxGroups 0 stands for no limit.
	//
	// +optional
	MaxGroups int `json:"maxGroups,omitempty"`
	// +optional
	MinGroups int `json:"minGroups,omitempty"`
}

// ReplicaSchedulingType defines whether each cluster gets all replicas or a share.
//
// +kubebuilder:validation:Enum=Duplicated;Divided
type ReplicaSchedulingType string

const (
	ReplicaSchedulingTypeDuplicated ReplicaSchedulingType = "Duplicated"
	ReplicaSchedulingTypeDivided    ReplicaSchedulingType = "Divided"
)

// ReplicaDivisionPreference defines how replicas are divided.
//
// +kubebuilder:validation:Enum=Aggregated;Weighted
type ReplicaDivisionPreference string

const (
	// ReplicaDivisionPreferenceAggregated uses as few clusters as have room.
	ReplicaDivisionPreferenceAggregated ReplicaDivisionPreference = "Aggregated"
	// ReplicaDivisionPreferenceWeighted divides by weight.
	ReplicaDivisionPreferenceWeighted ReplicaDivisionPreference = "Weighted"
)

// ReplicaSchedulingStrategy defines how many replicas each cluster gets.
type ReplicaSchedulingStrategy struct {
	// +optional
	// +kubebuilder:default=Divided
	ReplicaSchedulingType ReplicaSchedulingType `json:"replicaSchedulingType,omitempty"`
	// ReplicaDivisionPreference is Weighted if the type is Divided and nothing is given.
	//
	// +optional
	ReplicaDivisionPreference ReplicaDivisionPreference `json:"replicaDivisionPreference,omitempty"`
	// WeightPreference is the same weight for all clusters if not set.
	//
	// +optional
	WeightPreference *ClusterPreferences `json:"weightPreference,omitempty"`
}

// DynamicWeightFactor is where dynamic weights come from.
//
// +kubebuilder:validation:Enum=AvailableReplicas
type DynamicWeightFactor string

// DynamicWeightByAvailableReplicas weights a cluster by how many more replicas it has room for.
const DynamicWeightByAvailableReplicas DynamicWeightFactor = "AvailableReplicas"

// ClusterPreferences are weights; the dynamic ones win.
type ClusterPreferences struct {
	// +optional
	// +listType=atomic
	StaticWeightList []StaticClusterWeight `json:"staticWeightList,omitempty"`
	// +optional
	DynamicWeight DynamicWeightFactor `json:"dynamicWeight,omitempty"`
}

// StaticClusterWeight is the weight of each cluster that matches; the largest counts where several
// rules do.
type StaticClusterWeight struct {
	TargetCluster ClusterAffinity `json:"targetCluster"`
	// +kubebuilder:validation:Minimum=1
	Weight int64 `json:"weight"`
}

// WorkloadAffinity puts workloads of one namespace with the same value of a label into the same
// clusters, or into others.
//
// +kubebuilder:validation:XValidation:rule="!has(self.affinity) || !has(self.antiAffinity) || self.affinity.groupByLabelKey != self.antiAffinity.groupByLabelKey",message="affinity and antiAffinity must not use the same groupByLabelKey"
type WorkloadAffinity struct {
	// +optional
	Affinity *WorkloadAffinityTerm `json:"affinity,omitempty"`
	// +optional
	AntiAffinity *WorkloadAffinityTerm `json:"antiAffinity,omitempty"`
}

// WorkloadAffinityTerm names the label.
type WorkloadAffinityTerm struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	GroupByLabelKey string `json:"groupByLabelKey"`
}
