package install

import (
	"testing"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

func TestUnderWay(t *testing.T) {
	const at = "2026-01-31T12:00:00Z"
	for name, tt := range map[string]struct {
		annotation string
		reported   *pelagov1alpha1.KeyRotation
		want       bool
	}{
		"never requested":         {"", nil, false},
		"not begun":               {at, nil, true},
		"another was the last":    {at, &pelagov1alpha1.KeyRotation{Request: "2025-12-31T12:00:00Z"}, true},
		"in the middle":           {at, &pelagov1alpha1.KeyRotation{Request: at, TunnelsLeft: 1}, true},
		"done":                    {at, &pelagov1alpha1.KeyRotation{Request: at}, false},
		"what the daemon refuses": {"now", nil, false},
	} {
		if request, got := underWay(tt.annotation, tt.reported); got != tt.want || got && request != at {
			t.Errorf("%s: %t, %q", name, got, request)
		}
	}
}
