package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/await"
)

// testHubMoves: the hub gets another address with another CA. Its members follow without a join, and
// work with it when the former address is gone.
func (s *clusterset) testHubMoves(t *testing.T) {
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: s.config.CAData}})
	must(t, err)
	to, err := url.Parse(s.config.Host)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval, proxy.ErrorLog = transport, -1, log.New(io.Discard, "", 0)
	next := httptest.NewTLSServer(proxy)
	t.Cleanup(func() { next.CloseClientConnections(); next.Close() })
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: next.Certificate().Raw})

	set := &corev1.ConfigMap{}
	must(t, s.hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: config.ClustersetConfigMap}, set))
	announce := func(server string, bundle []byte) {
		t.Helper()
		set.Data[config.KeySetServer], set.Data[config.KeySetCA] = server, string(bundle)
		must(t, s.hub.Update(t.Context(), set))
	}
	announce(next.URL, config.MergeCA(s.config.CAData, ca))
	restarted := func(with string) {
		t.Helper()
		for _, m := range []*member{s.g1, s.g2} {
			await.True(t, "the agent of "+m.id+" ends for a restart with "+with, func() bool {
				select {
				case err := <-m.ended:
					must(t, err)
					return true
				default:
					return false
				}
			})
			m.ended <- nil // for stop
			m.stop()
			m.start()
		}
	}
	restarted("the new address")
	following := func() string {
		left, err := broker.NotFollowing(t.Context(), s.hub, manifests.BrokerNamespace)
		return fmt.Sprint(left, err)
	}
	await.Equal(t, "[] <nil>", following)
	s.line.Cut()
	const ns, name = "moved", "web"
	namespace(t, ns, s.g1, s.g2)
	s.g2.service(t, ns, name, web)
	s.g2.export(t, ns, name)
	within(t, "Ready, with the former address gone", s.g2.conditionIs(ns, name, "Ready", "True"))

	// Back again, as the tests that follow use the former address.
	s.line.Heal()
	announce("https://"+s.line.Address(), config.MergeCA(s.config.CAData, ca)) // another bundle would be another restart
	restarted("the former address")
	await.Equal(t, "[] <nil>", following)
}
