package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/coredns"
	"github.com/pelago-net/pelago/control/config"
)

// cacheOptions restricts the cache to what the agent may read, and to what of it is read.
func cacheOptions() cache.Options {
	system := cache.ByObject{Namespaces: map[string]cache.Config{config.SystemNamespace: {}}}
	configMaps := coredns.ConfigMapCache()
	configMaps.Namespaces[config.SystemNamespace] = cache.Config{FieldSelector: named(config.ConfigMapName)}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(), // also of the kinds below, unless they have their own
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{
				config.SystemNamespace: {FieldSelector: named(config.BrokerSecretName)},
			}},
			&corev1.ConfigMap{}:      configMaps,
			&corev1.Pod{}:            {Transform: stripPod},
			&submarinerv1.Cluster{}:  system,
			&submarinerv1.Endpoint{}: system,
		},
	}
}

func named(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }

// stripPod keeps of a Pod what control/agent/ipam and control/agent/ipam read: whose it is, where it runs and whether it
// still does. There are more Pods than all other objects together, and they are large. The agent never writes one.
// What is no Pod, the mark of a deletion that the watch missed, stays as it is.
func stripPod(in any) (any, error) {
	p, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	return &corev1.Pod{
		TypeMeta: p.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}, nil
}
