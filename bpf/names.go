package bpf

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// String returns the word of a verdict, as in the metrics: VERDICT_DROP_BAD_TOKEN is
// "drop-bad-token".
func (v PelagoVerdict) String() string { return names().verdicts.word(uint32(v)) }

// Dropped reports whether the verdict ends the way of a packet.
func (v PelagoVerdict) Dropped() bool { return strings.HasPrefix(v.String(), "drop-") }

// Verdicts are all that are counted, in the order of the counters.
func Verdicts() []PelagoVerdict { return upTo(PelagoVerdictVERDICT_MAX) }

// ParseVerdict returns the verdict of a word; ok is false for a word of another version.
func ParseVerdict(word string) (v PelagoVerdict, ok bool) {
	i := slices.Index(names().verdicts, word)
	return PelagoVerdict(i), i >= 0 && PelagoVerdict(i) < PelagoVerdictVERDICT_MAX
}

// String returns the word of a hook, as in the metrics: HOOK_EDGE_OUT is "edge-out".
func (h PelagoHook) String() string { return names().hooks.word(uint32(h)) }

// Hooks are all that count packets, in the order of the counters.
func Hooks() []PelagoHook { return upTo(PelagoHookHOOK_MAX) }

// String returns the word of a path's quality: RANK_GOOD is "good".
func (r PelagoRank) String() string { return names().ranks.word(uint32(r)) }

func upTo[E ~uint32](n E) []E {
	out := make([]E, n)
	for i := range out {
		out[i] = E(i)
	}
	return out
}

// words are the names of an enum's values, by value.
type words []string

func (w words) word(value uint32) string {
	if int64(value) < int64(len(w)) && w[value] != "" {
		return w[value]
	}
	return fmt.Sprint(value)
}

// names are read from the BTF of the embedded object, so that C, Go and the metrics use the same
// word.
var names = sync.OnceValue(func() (n struct{ hooks, verdicts, ranks words }) {
	types, err := btf.LoadSpecFromReader(bytes.NewReader(_PelagoBytes))
	if err != nil {
		// the build is broken; TestNames
		panic(fmt.Sprintf("read the types of the embedded object: %v", err))
	}
	n.hooks, n.verdicts, n.ranks = enumWords(types, "hook"), enumWords(types, "verdict"), enumWords(types, "rank")
	return n
})

// enumWords names the values of an enum: in lower case with dashes, and without the prefix, which
// is the name of the enum.
func enumWords(types *btf.Spec, name string) words {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		panic(fmt.Sprintf("find enum %s in the embedded object: %v", name, err))
	}
	var out words
	for _, v := range enum.Values {
		for uint64(len(out)) <= v.Value {
			out = append(out, "")
		}
		out[v.Value] = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v.Name, strings.ToUpper(name)+"_")), "_", "-")
	}
	return out
}
