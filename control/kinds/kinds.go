// Package kinds knows the kinds of templates: replicas, health, status, dependencies, which fields a member may own,
// and how statuses of several members aggregate. Built-in rules cover Kubernetes' own kinds and the bundled ones
// (bundled/); users add KindRules in CEL.
//
// pelago-hub and agents that execute Works run SetupRules, which feeds KindRules into an Interpreter; the hub also
// writes their conditions. ResourceInterpreterCustomizations in Lua are accepted, get a condition that names the
// remedy, and are not run.
package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Where the kinds have the spec of their pods.
var (
	podItself     = path{"spec"}
	podTemplate   = path{"spec", "template", "spec"}
	podOfSchedule = path{"spec", "jobTemplate", "spec", "template", "spec"}
)

// What is summed up over the clusters.
var (
	deploymentCounts = counts[appsv1.DeploymentStatus]{
		"replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"}
	replicaSetCounts  = counts[appsv1.ReplicaSetStatus]{"replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"}
	statefulSetCounts = counts[appsv1.StatefulSetStatus]{
		"replicas", "currentReplicas", "updatedReplicas", "readyReplicas", "availableReplicas"}
	daemonSetCounts = counts[appsv1.DaemonSetStatus]{
		"currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady",
		"updatedNumberScheduled", "numberAvailable", "numberUnavailable"}
	budgetCounts = counts[policyv1.PodDisruptionBudgetStatus]{
		"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"}
	autoscalerCounts = counts[autoscalingv2.HorizontalPodAutoscalerStatus]{"currentReplicas", "desiredReplicas"}
)

var (
	apps  = appsv1.SchemeGroupVersion.WithKind
	core  = corev1.SchemeGroupVersion.WithKind
	batch = batchv1.SchemeGroupVersion.WithKind
)

// kinds is all that is built in.
var kinds = map[schema.GroupVersionKind]Kind{
	apps("Deployment"): {
		Replicas: replicasOf(podTemplate), Revise: setReplicas, Prune: pruneDeployment, Retain: retainReplicas,
		Reflect: deploymentCounts.reflect, Aggregate: deploymentCounts.aggregate, Healthy: deploymentHealthy,
		Dependencies: podTemplate.dependencies,
	},
	apps("ReplicaSet"): {
		Replicas: replicasOf(podTemplate), Revise: setReplicas, Retain: retainReplicas,
		Reflect: replicaSetCounts.reflect, Aggregate: replicaSetCounts.aggregate, Healthy: replicaSetHealthy,
		Dependencies: podTemplate.dependencies,
	},
	apps("StatefulSet"): {
		Replicas: replicasOf(podTemplate), Revise: setReplicas, Retain: retainReplicas,
		Reflect: statefulSetCounts.reflect, Aggregate: statefulSetCounts.aggregate, Healthy: statefulSetHealthy,
		Dependencies: statefulSetDependencies,
	},
	apps("DaemonSet"): {
		Reflect: daemonSetCounts.reflect, Aggregate: daemonSetCounts.aggregate, Healthy: daemonSetHealthy,
		Dependencies: podTemplate.dependencies,
	},
	batch("Job"): {
		Replicas: jobReplicas, Revise: setParallelism, Prune: pruneJob, Retain: retainJob,
		Reflect:   fields("active", "succeeded", "failed", "conditions", "startTime", "completionTime"),
		Aggregate: aggregateJob, Dependencies: podTemplate.dependencies,
	},
	batch("CronJob"): {Aggregate: aggregateCronJob, Dependencies: podOfSchedule.dependencies},
	core("Pod"): {
		Replicas: podReplicas, Retain: retainPod, Aggregate: aggregatePod, Healthy: podHealthy,
		Dependencies: podItself.dependencies,
	},
	core("Service"): {
		Prune: pruneService, Retain: retainService,
		Reflect: fields("loadBalancer"), Aggregate: aggregateService, Healthy: serviceHealthy,
	},
	networkingv1.SchemeGroupVersion.WithKind("Ingress"): {
		Aggregate: aggregateIngress, Healthy: ingressHealthy, Dependencies: ingressDependencies,
	},
	core("PersistentVolumeClaim"): {Prune: pruneClaim, Retain: retainClaim, Aggregate: aggregateClaim, Healthy: claimHealthy},
	core("PersistentVolume"):      {Retain: retainVolume, Aggregate: aggregateVolume},
	core("ServiceAccount"):        {Prune: pruneServiceAccount, Retain: retainServiceAccount},
	core("Secret"):                {Prune: pruneSecret, Retain: retainSecret},
	policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"): {
		Reflect: reflectBudget, Aggregate: aggregateBudget, Healthy: budgetHealthy,
	},
	autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"): {
		Reflect: autoscalerCounts.reflect, Aggregate: autoscalerCounts.aggregate,
	},
}

// native is the source of what is built in.
func native(gvk schema.GroupVersionKind) Kind { return kinds[gvk] }
