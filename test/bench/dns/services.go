package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	miekg "github.com/miekg/dns"
)

const namespace = "sample"

// Cases: what is asked for.
const (
	caseClusterIP = "clusterip" // A of a service with one address
	caseHeadless  = "headless"  // A of a service of three pods
	caseNXDomain  = "nxdomain"  // A of a service that does not exist
)

var cases = []string{caseClusterIP, caseHeadless, caseNXDomain}

// services are the addresses of each service, in the cluster as in the clusterset.
type services map[string][]netip.Addr

// create makes n services and imports of the same names and addresses, and a tenth as many headless
// ones.
func create(ctx context.Context, api *rest.Config, n int) (services, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), mcs.Install(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(api, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := c.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	out := services{}
	type made struct {
		name      string
		addresses []netip.Addr
	}
	results := make(chan made, 2*n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	pod := netip.MustParseAddr("10.7.0.1")
	for i := range n {
		group.Go(func() error {
			name := fmt.Sprintf("web-%d", i)
			ip, err := createService(ctx, c, name, "", nil)
			results <- made{name, []netip.Addr{ip}}
			return err
		})
		if i%10 != 0 {
			continue
		}
		var pods []netip.Addr
		for range 3 {
			pod = pod.Next()
			pods = append(pods, pod)
		}
		group.Go(func() error {
			name := fmt.Sprintf("db-%d", i)
			_, err := createService(ctx, c, name, corev1.ClusterIPNone, pods)
			results <- made{name, pods}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("create services: %w", err)
	}
	close(results)
	for r := range results {
		out[r.name] = r.addresses
	}
	return out, nil
}

func createService(ctx context.Context, c client.Client, name, clusterIP string, pods []netip.Addr) (ip netip.Addr, err error) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if err := c.Create(ctx, svc); err != nil {
		return ip, err
	}
	imported := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, Ports: []mcs.ServicePort{{Name: "http", Port: 80}}}}
	addresses := pods
	if pods != nil {
		imported.Spec.Type = mcs.Headless
	} else {
		if ip, err = netip.ParseAddr(svc.Spec.ClusterIP); err != nil {
			return ip, err
		}
		addresses = []netip.Addr{ip}
	}
	slice := func(name string, labels map[string]string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &imported.Spec.Ports[0].Name, Port: &imported.Spec.Ports[0].Port}}}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
		}
		return s
	}
	errs := []error{c.Create(ctx, imported),
		c.Create(ctx, slice(name+"-g2", map[string]string{mcs.LabelServiceName: name, mcs.LabelSourceCluster: "g2"}))}
	if pods != nil {
		errs = append(errs, c.Create(ctx, slice(name, map[string]string{discoveryv1.LabelServiceName: name})))
	}
	return ip, errors.Join(errs...)
}

// question is a query in wire form, without its id, and what its answer must hold.
type question struct {
	name      string
	wire      []byte
	rcode     int
	addresses []netip.Addr
}

// questions are those of a case in a zone.
func (s *setup) questions(c, zone string) (out []question) {
	prefix := map[string]string{caseClusterIP: "web-", caseHeadless: "db-", caseNXDomain: "web-"}[c]
	for name, addresses := range s.services {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		q := question{name: name, addresses: addresses}
		if c == caseNXDomain {
			q = question{name: "no-" + name, rcode: miekg.RcodeNameError}
		}
		wire, err := new(miekg.Msg).SetQuestion(fmt.Sprintf("%s.%s.svc.%s.", q.name, namespace, zone), miekg.TypeA).Pack()
		if err != nil {
			panic(err) // the names are ours
		}
		q.wire = wire
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b question) int { return slices.Compare(a.wire[2:], b.wire[2:]) })
	return out
}
