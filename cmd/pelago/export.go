package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func exportCommand() *cobra.Command {
	parent := &cobra.Command{Use: "export", Short: "Export services to the other clusters", Args: cobra.NoArgs}
	parent.AddCommand(serviceCommand("Export a service to the other clusters",
		`export service creates a ServiceExport of the same name. The other clusters reach the
service as NAME.NAMESPACE.svc.clusterset.local; the result is in the
conditions of the ServiceExport.`,
		`  pelago export service whereami-cs --namespace sample
  kubectl -n sample wait serviceexport/whereami-cs --for=condition=Ready`, exportService))
	return parent
}

func unexportCommand() *cobra.Command {
	parent := &cobra.Command{Use: "unexport", Short: "Stop exporting services to the other clusters", Args: cobra.NoArgs}
	parent.AddCommand(serviceCommand("Stop exporting a service to the other clusters",
		"unexport service deletes the ServiceExport of the same name; the service itself stays.",
		"  pelago unexport service whereami-cs --namespace sample", unexportService))
	return parent
}

func serviceCommand(short, long, example string, do func(context.Context, client.Client, client.ObjectKey, io.Writer) error) *cobra.Command {
	var a access
	cmd := &cobra.Command{
		Use: "service NAME", Short: short, Long: long, Example: example, Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, c *cluster, args []string, out io.Writer) error {
			return do(ctx, c.Client, client.ObjectKey{Namespace: c.namespace, Name: args[0]}, out)
		}),
	}
	a.addFlags(cmd.Flags())
	a.addNamespace(cmd.Flags())
	return cmd
}

func exportService(ctx context.Context, c client.Client, key client.ObjectKey, out io.Writer) error {
	service := &corev1.Service{}
	if err := c.Get(ctx, key, service); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("export Service %s: there is no such Service: name one of `kubectl -n %s get services`", key, key.Namespace)
		}
		return fmt.Errorf("get Service %s: %w", key, err)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return fmt.Errorf("export Service %s: a Service of type ExternalName has no endpoints to export (KEP-1645): export one with a selector", key)
	}
	export, err := serviceExport(c, key)
	if err != nil {
		return fmt.Errorf("export Service %s: %w", key, err)
	}
	switch err := c.Create(ctx, export); {
	case apierrors.IsAlreadyExists(err):
		fmt.Fprintf(out, "Service %s was exported before\n", key)
	case err != nil:
		return fmt.Errorf("create ServiceExport %s: %w", key, err)
	default:
		fmt.Fprintf(out, "Service %s is exported\n", key)
	}
	return nil
}

func unexportService(ctx context.Context, c client.Client, key client.ObjectKey, out io.Writer) error {
	export, err := serviceExport(c, key)
	if err != nil {
		return fmt.Errorf("unexport Service %s: %w", key, err)
	}
	err = c.Delete(ctx, export)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("unexport Service %s: it is not exported: name one of `kubectl -n %s get serviceexports`", key, key.Namespace)
	}
	if err != nil {
		return fmt.Errorf("delete ServiceExport %s: %w", key, err)
	}
	fmt.Fprintf(out, "Service %s is no longer exported\n", key)
	return nil
}

// serviceExport is a ServiceExport without content, of the version that the cluster prefers.
func serviceExport(c client.Client, key client.ObjectKey) (*unstructured.Unstructured, error) {
	mapping, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: "multicluster.x-k8s.io", Kind: "ServiceExport"})
	if meta.IsNoMatchError(err) {
		return nil, errors.New("this cluster has no kind ServiceExport: join it first with `pelago join`")
	}
	if err != nil {
		return nil, fmt.Errorf("find kind ServiceExport: %w", err)
	}
	export := &unstructured.Unstructured{}
	export.SetGroupVersionKind(mapping.GroupVersionKind)
	export.SetNamespace(key.Namespace)
	export.SetName(key.Name)
	return export, nil
}
