package v1alpha1

const (
	// AnnotationCluster names the member in which an object is, in answers of search and proxying.
	// Objects in members do not have it.
	AnnotationCluster = "resource.karmada.io/cached-from-cluster"
	// ConditionKindsServed: whether each of spec.resourceSelectors names a kind that a cluster of
	// spec.targetCluster serves.
	ConditionKindsServed = "KindsServed"
	// ReasonKindsServed and ReasonKindNotServed are its reasons; the message names the selectors.
	ReasonKindsServed   = "KindsServed"
	ReasonKindNotServed = "KindNotServed"
)
