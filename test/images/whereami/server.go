package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// answer is what a request gets, in the order in which it is printed.
type answer struct {
	Pod       string `json:"pod"`
	Namespace string `json:"namespace"`
	Node      string `json:"node"`
	Address   string `json:"address"` // the pod's, as it knows it
	Local     string `json:"local"`   // address:port that the request arrived at
	Source    string `json:"source"`  // address:port that the request came from
	Host      string `json:"host"`    // name that the client requested
}

// lines is the text form.
func (a answer) lines() string {
	return fmt.Sprintf("pod: %s\nnamespace: %s\nnode: %s\naddress: %s\nlocal: %s\nsource: %s\nhost: %s\n",
		a.Pod, a.Namespace, a.Node, a.Address, a.Local, a.Source, a.Host)
}

// handler answers with what is known of the pod (me) and of the request.
//
//	GET /      one "key: value" line each
//	GET /json  the same as a JSON object
//	GET /healthz
func handler(me answer) http.Handler {
	describe := func(r *http.Request) answer {
		a := me
		a.Source, a.Host = r.RemoteAddr, r.Host
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			a.Local = local.String()
		}
		return a
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, describe(r).lines())
	})
	mux.HandleFunc("GET /json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(describe(r)); err != nil {
			slog.Warn("answer is not sent", "source", r.RemoteAddr, "error", err)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mux
}

// serve is the HTTP server. Pod, namespace, node and address come from the environment (POD_NAME,
// NAMESPACE, NODE_NAME, POD_IP; a Deployment sets them from the downward API).
func serve(args []string) error {
	flags := flag.NewFlagSet("whereami", flag.ExitOnError)
	listen := flags.String("listen", ":80", "address and port to listen on")
	_ = flags.Parse(args) // ends the process on an error
	me := answer{Pod: os.Getenv("POD_NAME"), Namespace: os.Getenv("NAMESPACE"), Node: os.Getenv("NODE_NAME"), Address: os.Getenv("POD_IP")}
	if me.Pod == "" {
		me.Pod, _ = os.Hostname() // a pod's host name is its name; empty is said as it is
	}
	server := &http.Server{Addr: *listen, Handler: handler(me), ReadHeaderTimeout: 5 * time.Minute}
	slog.Info("listening", "address", *listen)
	return fmt.Errorf("serve on %s: %w", *listen, server.ListenAndServe())
}
