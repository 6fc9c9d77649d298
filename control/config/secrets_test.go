package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/config"
)

func TestParseBroker(t *testing.T) {
	got, err := config.ParseBroker(map[string][]byte{
		"ca.crt": []byte("PEM"), "namespace": []byte("submariner-k8s-broker"), "token": []byte("t"), "server": []byte("https://hub:6443"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Broker{CA: []byte("PEM"), Namespace: "submariner-k8s-broker", Token: "t", Server: "https://hub:6443"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	_, err = config.ParseBroker(map[string][]byte{"token": []byte("t0ps3cret")})
	if err == nil {
		t.Fatal("accepted without server, namespace and CA")
	}
	for _, want := range []string{"submariner-broker-secret", "ca.crt", "namespace", "server"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "t0ps3cret") {
		t.Errorf("error quotes a secret: %q", err)
	}
}

func TestParsePSK(t *testing.T) {
	if _, err := config.ParsePSK(nil); err == nil || !strings.Contains(err.Error(), "submariner-ipsec-psk") {
		t.Errorf("missing key: %v", err)
	}
	if psk, err := config.ParsePSK(map[string][]byte{"psk": {1, 2}}); err != nil || len(psk) != 2 {
		t.Errorf("got %v, %v", psk, err)
	}
}

func TestParseOverlayTokens(t *testing.T) {
	tests := map[string]struct {
		current, previous string
		want              config.OverlayTokens
		wantErr           string
	}{
		"first token":     {"00ff10", "", config.OverlayTokens{Current: 0x00ff10}, ""},
		"during a change": {"abcdef", "000000", config.OverlayTokens{Current: 0xabcdef, HasPrevious: true}, ""},
		"missing":         {"", "", config.OverlayTokens{}, "current is missing"},
		"short":           {"abc", "", config.OverlayTokens{}, "6 hexadecimal digits"},
		"long":            {"abcdef00", "", config.OverlayTokens{}, "6 hexadecimal digits"},
		"no digits":       {"secret", "", config.OverlayTokens{}, "6 hexadecimal digits"},
		"bad previous":    {"abcdef", "x", config.OverlayTokens{}, "previous"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := config.ParseOverlayTokens(map[string][]byte{"current": []byte(tt.current), "previous": []byte(tt.previous)})
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
