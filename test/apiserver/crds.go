package apiserver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/lab/binaries"
)

// crdSelection names the definitions to install; all of them if it names none. labels are added to
// each.
type crdSelection struct {
	names  []string
	labels map[string]string
}

// chosen are the definitions.
func (c *crdSelection) chosen() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	known, err := knownCRDs()
	if err != nil {
		return nil, fmt.Errorf("read CRDs: %w", err)
	}
	for _, crd := range known {
		if crd.Labels == nil {
			crd.Labels = map[string]string{}
		}
		maps.Copy(crd.Labels, c.labels)
	}
	if len(c.names) == 0 {
		return known, nil
	}
	chosen := slices.DeleteFunc(known, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !slices.Contains(c.names, crd.Name)
	})
	if len(chosen) != len(c.names) {
		return nil, fmt.Errorf("read CRDs: not all of %v exist", c.names)
	}
	return chosen, nil
}

// install creates the definitions and waits until discovery shows them.
func (c *crdSelection) install(config *rest.Config) error {
	chosen, err := c.chosen()
	if err != nil {
		return err
	}
	log.SetLogger(logr.Discard()) // else controller-runtime warns that no logger is set
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{CRDs: chosen, MaxTime: startTimeout}); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

// await waits until discovery shows the definitions, which exist.
func (c *crdSelection) await(config *rest.Config) error {
	chosen, err := c.chosen()
	if err != nil {
		return err
	}
	options := envtest.CRDInstallOptions{MaxTime: startTimeout, PollInterval: 20 * time.Millisecond}
	if err := envtest.WaitForCRDs(config, chosen, options); err != nil {
		return fmt.Errorf("wait for CRDs: %w", err)
	}
	return nil
}

// knownCRDs reads deploy/crds and adds the definitions of the MCS API.
func knownCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	root, err := binaries.Repository()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, "deploy", "crds", "*.yaml"))
	if err != nil {
		return nil, err
	}
	texts := [][]byte{mcscrd.ServiceExportCRD, mcscrd.ServiceImportCRD}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, text := range texts {
		crd := new(apiextensionsv1.CustomResourceDefinition)
		if err := yaml.Unmarshal(text, crd); err != nil {
			return nil, err
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
