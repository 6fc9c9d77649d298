package verify

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// server runs the server of a pod on loopback and returns its address.
func server(t *testing.T, self Answer) string {
	t.Helper()
	// a port that is free for TCP may be in use for UDP
	var tcp net.Listener
	var udp net.PacketConn
	for try := 0; udp == nil; try++ {
		var err error
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		udp, err = net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			break
		}
		if err = errors.Join(err, tcp.Close()); try == 8 {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(ctx, tcp, udp, self) // closed listeners
	}()
	t.Cleanup(func() { cancel(); <-done })
	return tcp.Addr().String()
}

// Each kind of probe against a server, and what each reports of it.
func TestProbes(t *testing.T) {
	at := server(t, Answer{Cluster: "g2", Pod: "server-0"})
	const size = 1 << 20
	replies := Run(t.Context(), []Probe{
		{Kind: Request, Address: at, Cluster: "g2"}, {Kind: Datagram, Address: at, Cluster: "g2"}, {Kind: Transfer, Address: at, Bytes: size},
		{Kind: Request, Address: at, Cluster: "g1"}, {Kind: "other", Address: at}, {Kind: Hold, Address: at},
	}, strings.NewReader(""))
	for i, r := range replies[:3] {
		if r.Err != "" || r.Answer.Cluster != "g2" || !strings.HasPrefix(r.Answer.Source, "127.0.0.1:") {
			t.Errorf("probe %d: %+v", i, r)
		}
	}
	if r := replies[0]; r.Remote != at {
		t.Errorf("the server is %s, want %s", r.Remote, at)
	}
	if r := replies[1]; r.Sent != len(sizes)*datagramsOfSize || r.Lost > 0 {
		t.Errorf("datagrams: %+v", r)
	}
	if r := replies[2]; r.Answer.Received != size || r.Down <= 0 || r.Up <= 0 {
		t.Errorf("transfer: %+v", r)
	}
	for i, want := range map[int]string{3: `cluster "g2" answers, want g1`, 4: "not known"} {
		if r := replies[i]; !strings.Contains(r.Err, want) {
			t.Errorf("probe %d: error %q lacks %q", i, r.Err, want)
		}
	}
	if r := replies[5]; r.Opened != holdConnections || r.Broken > 0 || r.Err != "" || r.Answer.Pod != "server-0" {
		t.Errorf("hold: %+v", r)
	}
}

// Throughput and latency measure for the time that they are given.
func TestMeasures(t *testing.T) {
	at := server(t, Answer{Cluster: "g2"})
	replies := Run(t.Context(), []Probe{{Kind: Throughput, Address: at, For: 50 * time.Millisecond}, {Kind: Latency, Address: at, For: 50 * time.Millisecond}}, strings.NewReader(""))
	if r := replies[0]; r.Err != "" || r.Down <= 0 || r.Up <= 0 || r.Answer.Received == 0 {
		t.Errorf("flood: %+v", r)
	}
	if r := replies[1]; r.Err != "" || r.Requests == 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.Slowest {
		t.Errorf("latency: %+v", r)
	}
}

// A server that closes connections breaks them, one that does not exist fails all.
func TestHoldBroken(t *testing.T) {
	served := handler(Answer{Cluster: "g2"})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		served.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r := hold(ctx, Probe{Address: s.Listener.Addr().String()}); r.Broken != holdConnections || !strings.Contains(r.Err, "closed") {
		t.Errorf("closing server: %+v", r)
	}
	s.Close()
	if r := hold(ctx, Probe{Address: s.Listener.Addr().String()}); r.Broken != holdConnections || r.Opened > 0 || r.Err == "" {
		t.Errorf("no server: %+v", r)
	}
}

// Invalid requests are refused, and other datagrams are not answered.
func TestServerInput(t *testing.T) {
	h := handler(Answer{})
	for path, want := range map[string]int{"/bytes?n=-1": 400, "/bytes?n=x": 400, "/bytes": 400, "/bytes?n=0": 200, "/": 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("GET %s: %d, want %d", path, w.Code, want)
		}
	}
	conn, err := net.Dial("udp", server(t, Answer{Cluster: "g2"}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("\x00 not JSON")); err != nil {
		t.Fatal(err)
	}
	a, err := exchange(conn, Answer{Sequence: 7}, 600, make([]byte, 1<<16))
	if err != nil || a.Cluster != "g2" || a.Sequence != 7 {
		t.Errorf("%+v, %v", a, err)
	}
}
