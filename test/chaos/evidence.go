package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// record writes the objects of the hub and of the members next to the logs, for who looks for the
// cause of a violation.
func (s *stage) record(ctx context.Context) error {
	errs := []error{write(ctx, s.set.Server.Config(), filepath.Join(s.dir, "hub.json"), append(hubsKinds, usersKinds[1:]...))}
	for _, m := range s.set.Members {
		file := filepath.Join(s.dir, m.Name+".json")
		errs = append(errs, write(ctx, m.Config, file, []schema.GroupVersionResource{kinds["Deployment"], kinds["ConfigMap"]}))
	}
	return errors.Join(errs...)
}

// write writes all objects of some kinds to a file, an object a line.
func write(ctx context.Context, config *rest.Config, file string, resources []schema.GroupVersionResource) (err error) {
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("record objects in %s: %w", file, err)
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("record objects: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := json.NewEncoder(f)
	for _, r := range resources {
		list, err := c.Resource(r).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("record %s in %s: %w", r.Resource, file, err)
		}
		for i := range list.Items {
			list.Items[i].SetManagedFields(nil)
			if err := out.Encode(&list.Items[i]); err != nil {
				return fmt.Errorf("record %s in %s: %w", r.Resource, file, err)
			}
		}
	}
	return nil
}
