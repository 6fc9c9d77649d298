package kube_test

import (
	"context"
	"testing"

	"github.com/pelago-net/pelago/control/kube"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestOneOfTwoClaims(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	for _, who := range []string{"first", "second"} {
		claim := object("120-1-0-1", who, true)
		if err := kube.Claim(t.Context(), c, c, claim); err != nil {
			t.Fatal(err)
		}
		if got := claim.Data["v"]; got != "first" {
			t.Errorf("after the attempt of %s the claim is %s's", who, got)
		}
	}
}

// A claim that ends between the two requests leads to another attempt, not to an error.
func TestAClaimThatEnds(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(object("120-1-0-1", "first", true)).Build()
	gone := interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := c.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(key.Namespace)); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	if err := kube.Claim(t.Context(), c, gone, object("120-1-0-1", "second", true)); !kube.IsStale(err) {
		t.Errorf("got %v", err)
	}
}
