package bpf

import (
	"slices"
	"testing"
)

// The words are those of the C side, one for every number, and a verdict is found again by its
// word.
func TestNames(t *testing.T) {
	var hooks []string
	for _, h := range Hooks() {
		hooks = append(hooks, h.String())
	}
	if want := []string{"edge-out", "uplink-in", "uplink-out", "edge-in", "wire-in", "wire-out", "uplink-xdp", "pod-out", "pod-in", "hairpin"}; !slices.Equal(hooks, want) {
		t.Errorf("hooks %q, want %q", hooks, want)
	}
	if n := len(Verdicts()); n != int(PelagoVerdictVERDICT_MAX) {
		t.Errorf("%d verdicts, want %d", n, PelagoVerdictVERDICT_MAX)
	}
	for _, v := range Verdicts() {
		if drop := v >= PelagoVerdictVERDICT_DROP_MALFORMED && v != PelagoVerdictVERDICT_OWN_SERVICE; v.Dropped() != drop {
			t.Errorf("verdict %d is %q, which drops a packet: %t, want %t", v, v, v.Dropped(), drop)
		}
		if again, ok := ParseVerdict(v.String()); !ok || again != v {
			t.Errorf("verdict %d is %q, which is verdict %d (%t)", v, v, again, ok)
		}
	}
	for got, want := range map[string]string{
		PelagoVerdictVERDICT_DROP_BAD_TOKEN.String(): "drop-bad-token", PelagoVerdictVERDICT_OWN_SERVICE.String(): "own-service",
		PelagoHookHOOK_UPLINK_XDP.String(): "uplink-xdp", PelagoRankRANK_STALE.String(): "stale", PelagoVerdict(1000).String(): "1000",
	} {
		if got != want {
			t.Errorf("the word is %q, want %q", got, want)
		}
	}
	for _, word := range []string{"max", "continue", "drop-of-a-newer-version", ""} {
		if v, ok := ParseVerdict(word); ok {
			t.Errorf("%q is verdict %d, want none", word, v)
		}
	}
}
