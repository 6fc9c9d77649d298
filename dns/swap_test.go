package dns

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestSwapsDuringQueries: every answer comes whole from one table, while
// tables are swapped under it. Worth running with -race.
func TestSwapsDuringQueries(t *testing.T) {
	table := func(generation int) Table {
		c := Cluster{ID: "g2"}
		for i := range 4 {
			c.Endpoints = append(c.Endpoints, ready(fmt.Sprintf("120.%d.0.%d", generation, i)))
		}
		return sample(ModeSubmariner, Service{Type: Headless, Ports: http, Clusters: []Cluster{c}})
	}
	h := serving(t, table(0))
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			for range 300 {
				addresses := strings.Split(ask(t, h, "web"+zoneSuffix+" A"), ", ")
				generation := strings.Split(addresses[0], ".")[1]
				for _, a := range addresses {
					if len(addresses) != 4 || strings.Split(a, ".")[1] != generation {
						t.Errorf("an answer of two tables: %s", addresses)
						return
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var setter sync.WaitGroup
	setter.Go(func() {
		for generation := 1; ; generation = generation%200 + 1 {
			select {
			case <-stop:
				return
			default:
			}
			if err := h.Set(table(generation)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	askers.Wait()
	close(stop)
	setter.Wait()
}
