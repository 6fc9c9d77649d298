package walk

import "testing"

func TestParseStat(t *testing.T) {
	const odd = "7 (a) (b) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4929336 5 6"
	if comm, started, err := parseStat(odd); comm != "a) (b" || started != 4929336 || err != nil {
		t.Errorf("%q, %d, %v", comm, started, err)
	}
	for _, bad := range []string{"", "7", "7 (a", "7 (a) S 1"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
