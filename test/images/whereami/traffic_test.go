package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// faulty drops or repeats every n-th datagram. After sixty it calls enough.
type faulty struct {
	net.PacketConn
	n, dropEvery, repeatEvery int
	enough                    func()
}

func (f *faulty) WriteTo(b []byte, to net.Addr) (int, error) {
	if f.n++; f.n == 60 {
		f.enough()
	}
	if f.dropEvery > 0 && f.n%f.dropEvery == 0 {
		return len(b), nil
	}
	if f.repeatEvery > 0 && f.n%f.repeatEvery == 0 {
		if _, err := f.PacketConn.WriteTo(b, to); err != nil {
			return 0, err
		}
	}
	return f.PacketConn.WriteTo(b, to)
}

func TestPing(t *testing.T) {
	for name, tt := range map[string]struct {
		drop, repeat int
		want         func(sent int) pings
	}{
		"nothing happens": {0, 0, func(sent int) pings { return pings{Sent: sent, FirstLost: -1, LastLost: -1} }},
		"every tenth is lost": {10, 0, func(sent int) pings {
			return pings{Sent: sent, Lost: sent / 10, FirstLost: 9, LastLost: sent/10*10 - 1}
		}},
		"every tenth comes twice": {0, 10, func(sent int) pings {
			return pings{Sent: sent, Duplicates: sent / 10, FirstLost: -1, LastLost: -1}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go sendBack(&faulty{PacketConn: server, dropEvery: tt.drop, repeatEvery: tt.repeat, enough: cancel})
			conn, err := net.Dial("udp", server.LocalAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			got := exchange(ctx, conn, 5*time.Millisecond, 64)
			if diff := cmp.Diff(tt.want(got.Sent), got, cmpopts.IgnoreFields(pings{}, "LongestGapMs", "GapUnscheduledMs", "MaxRTTMs")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if w := got.GapUnscheduledMs; w < 0 || w > got.LongestGapMs {
				t.Errorf("%v ms without a processor in a gap of %v ms", w, got.LongestGapMs)
			}
			if got.LongestGapMs <= 0 || got.MaxRTTMs <= 0 {
				t.Errorf("gap %v ms, round trip %v ms, want some", got.LongestGapMs, got.MaxRTTMs)
			}
		})
	}
}

func TestHold(t *testing.T) {
	first := httptest.NewServer(handler(answer{Pod: "first"}))
	defer first.Close()
	address := strings.TrimPrefix(first.URL, "http://")

	t.Run("nothing breaks", func(t *testing.T) {
		var requests atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) == 200 {
				cancel()
			}
			handler(answer{Pod: "first"}).ServeHTTP(w, r)
		}))
		defer server.Close()
		got := holdAll(ctx, strings.TrimPrefix(server.URL, "http://"), 10, 10*time.Millisecond)
		want := held{Opened: 10, PerPod: map[string]int{"first": 10}, Broken: []broken{}}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(held{}, "Requests", "SlowestMs")); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if got.Requests < 200 || got.Requests != int(requests.Load()) {
			t.Errorf("%d requests are counted, the server had %d, want 200 or a few more", got.Requests, requests.Load())
		}
	})
	t.Run("the server goes", func(t *testing.T) {
		time.AfterFunc(200*time.Millisecond, first.CloseClientConnections)
		got := holdAll(t.Context(), address, 10, 10*time.Millisecond)
		if len(got.Broken) != 10 || got.Broken[0].Pod != "first" || got.Broken[0].Error == "" {
			t.Errorf("broken: %+v, want all ten, of pod first", got.Broken)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		got := holdAll(t.Context(), "127.0.0.1:1", 1, time.Second)
		if got.Opened != 0 || len(got.Broken) != 1 || !strings.Contains(got.Broken[0].Error, "refused") {
			t.Errorf("%+v, want one connection that was refused", got)
		}
	})
}

func TestBurst(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"pod":"p"}`)) }))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	got := burstOf(t.Context(), address, 50, 10*time.Millisecond, 20*time.Second)
	if got.Opened != 50 || got.FailedCount != 0 || len(got.Failed) != 0 || got.P99Ms < got.P50Ms || got.P50Ms <= 0 {
		t.Errorf("%+v, want 50 connections", got)
	}
	server.Close()
	if got := burstOf(t.Context(), address, 12, time.Millisecond, 20*time.Second); got.Opened != 0 || got.FailedCount != 12 || len(got.Failed) != 10 {
		t.Errorf("%+v, want 12 failures, 10 of them named", got)
	}
}
