package apiserver

import (
	"fmt"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"
)

// installCRDs creates the definitions of deploy/crds and of the MCS API and waits until discovery shows them.
func installCRDs(config *rest.Config) error {
	root, err := repository()
	if err != nil {
		return err
	}
	crds, err := mcsCRDs()
	if err != nil {
		return err
	}
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths:              []string{filepath.Join(root, "deploy", "crds")},
		ErrorIfPathMissing: true,
		CRDs:               crds,
	})
	if err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

func mcsCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, text := range [][]byte{mcscrd.ServiceExportCRD, mcscrd.ServiceImportCRD} {
		crd := new(apiextensionsv1.CustomResourceDefinition)
		if err := yaml.Unmarshal(text, crd); err != nil {
			return nil, fmt.Errorf("read the CRDs of the MCS API: %w", err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// repository is the root of this repository: tests run in the directory of their package.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "crds")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find deploy/crds above the working directory: run the test inside the repository")
		}
	}
}
