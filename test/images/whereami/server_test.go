package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ask sends a request to a server that runs for the test.
func ask(t *testing.T, path string) (status int, body, local string) {
	t.Helper()
	server := httptest.NewServer(handler(answer{Pod: "whereami-abc", Namespace: "sample", Node: "g2-n1", Address: "10.7.1.3"}))
	defer server.Close()
	response, err := http.Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data), server.Listener.Addr().String()
}

func TestLines(t *testing.T) {
	_, body, local := ask(t, "/")
	var keys []string
	values := map[string]string{}
	for line := range strings.Lines(body) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			t.Fatalf("line %q has no key", line)
		}
		keys, values[key] = append(keys, key), value
	}
	if diff := cmp.Diff([]string{"pod", "namespace", "node", "address", "local", "source", "host"}, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(values["source"], "127.0.0.1:") || values["source"] == local {
		t.Errorf("source = %q, want the client's address and port", values["source"])
	}
	delete(values, "source")
	want := map[string]string{"pod": "whereami-abc", "namespace": "sample", "node": "g2-n1", "address": "10.7.1.3", "local": local, "host": local}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestJSON(t *testing.T) {
	_, body, _ := ask(t, "/json")
	var got answer
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Pod != "whereami-abc" || got.Node != "g2-n1" || !strings.HasPrefix(got.Source, "127.0.0.1:") {
		t.Errorf("answer = %+v", got)
	}
}

func TestOtherPaths(t *testing.T) {
	if status, body, _ := ask(t, "/healthz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz = %d %q", status, body)
	}
	if status, _, _ := ask(t, "/elsewhere"); status != http.StatusNotFound {
		t.Errorf("/elsewhere = %d, want 404", status)
	}
}
