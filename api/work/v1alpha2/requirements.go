package v1alpha2

import corev1 "k8s.io/api/core/v1"

// ReplicaRequirements is what one replica requests.
type ReplicaRequirements struct {
	// +optional
	NodeClaim *NodeClaim `json:"nodeClaim,omitempty"`
	// +optional
	ResourceRequest corev1.ResourceList `json:"resourceRequest,omitempty"`
	// Namespace is that of the template; its quotas in the members count.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// ResourceLimits and Terminating (activeDeadlineSeconds is set) count for ResourceQuotas of
	// the members. They are not in Karmada.
	//
	// +optional
	ResourceLimits corev1.ResourceList `json:"resourceLimits,omitempty"`
	// +optional
	Terminating bool `json:"terminating,omitempty"`
}

// NodeClaim defines which nodes will do.
type NodeClaim struct {
	// HardNodeAffinity is the required part of the pods' node affinity.
	//
	// +optional
	HardNodeAffinity *corev1.NodeSelector `json:"hardNodeAffinity,omitempty"`
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// Component is one kind of replicas of a template that has several.
type Component struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Name     string `json:"name"`
	Replicas int32  `json:"replicas"`
	// +optional
	ReplicaRequirements *ReplicaRequirements `json:"replicaRequirements,omitempty"`
}
