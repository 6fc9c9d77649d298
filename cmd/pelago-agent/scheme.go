package main

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// mcsVersions are the versions of the MCS API that the agent can work with, the best first. Their schemas are the same.
var mcsVersions = []string{"v1beta1", "v1alpha1"}

// mcsVersion is the version in which the member serves the MCS API: somebody else may have installed it.
func mcsVersion(member *rest.Config) (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(member)
	if err != nil {
		return "", fmt.Errorf("ask for the version of the MCS API: %w", err)
	}
	for _, version := range mcsVersions {
		list, err := client.ServerResourcesForGroupVersion(schema.GroupVersion{Group: mcs.GroupName, Version: version}.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("ask for the version of the MCS API: %w", err)
		}
		served := map[string]bool{}
		for _, r := range list.APIResources {
			served[r.Name] = true
		}
		if served[mcs.ServiceExportPluralName] && served[mcs.ServiceImportPluralName] {
			return version, nil
		}
	}
	return "", errors.New("the cluster serves neither version of ServiceExport and ServiceImport (multicluster.x-k8s.io): run `pelago join`, which installs them")
}

// scheme is that of the kinds that the roles need: those of the MCS API, which every member in the network has, only for that role.
func (r roles) scheme(member *rest.Config) (*runtime.Scheme, error) {
	if !r.network {
		return newScheme(mcsVersions[0])
	}
	version, err := mcsVersion(member)
	if err != nil {
		return nil, err
	}
	return newScheme(version)
}

// newScheme knows the kinds that the agent reads and writes. The Go types of the MCS API stand for whichever version
// is served.
func newScheme(mcsVersion string) (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	gv := schema.GroupVersion{Group: mcs.GroupName, Version: mcsVersion}
	s.AddKnownTypes(gv, &mcs.ServiceExport{}, &mcs.ServiceExportList{}, &mcs.ServiceImport{}, &mcs.ServiceImportList{})
	metav1.AddToGroupVersion(s, gv)
	if err := errors.Join(scheme.AddToScheme(s), submarinerv1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return nil, fmt.Errorf("collect the kinds: %w", err)
	}
	return s, nil
}
