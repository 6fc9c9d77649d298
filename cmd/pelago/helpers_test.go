package main

import (
	"context"
	"net/netip"
	"os"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/broker"
)

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func info(t *testing.T, file string) broker.Info {
	t.Helper()
	i, err := readInfo(file)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func uid(t *testing.T, c client.Client) string {
	t.Helper()
	u, err := broker.ClusterUID(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func prefixes(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	out, err := parsePrefixes(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
