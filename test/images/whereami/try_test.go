package main

import (
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestTry(t *testing.T) {
	echoes, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echoes.Close()
	go sendBack(echoes)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	outcomes := map[string]string{
		"tcp://" + listener.Addr().String():    answered,
		"tcp://127.0.0.1:1":                    refused,
		"udp://" + echoes.LocalAddr().String(): answered,
		"udp://127.0.0.1:1":                    refused,
		"udp://" + silent.LocalAddr().String(): "no answer",
	}
	var targets []string
	var want []tried
	for target, outcome := range outcomes {
		targets = append(targets, target)
		want = append(want, tried{To: target, Outcomes: map[string]int{outcome: 2}})
	}
	got := tryAll(targets, 2, 2*time.Second)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(tried{}, "BestMs")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, o := range got {
		if o.BestMs <= 0 {
			t.Errorf("%+v: want a time", o)
		}
	}
	for _, args := range [][]string{
		nil, {"127.0.0.1:1"}, {"icmp://127.0.0.1:1"}, {"tcp://127.0.0.1"},
		{"-times", "0", "tcp://127.0.0.1:1"}, {"-patience", "0", "tcp://127.0.0.1:1"},
	} {
		if err := try(args); err == nil {
			t.Errorf("%q is valid", args)
		}
	}
}
