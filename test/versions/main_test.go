package main

import (
	"path/filepath"
	"testing"

	"github.com/pelago-net/pelago/test/names"
)

// The program runs for half an hour, too seldom to notice that a test was renamed or has moved.
func TestChecksExist(t *testing.T) {
	for _, c := range checks {
		p, err := names.Read(filepath.Join("../..", c.pkg))
		if err != nil {
			t.Errorf("%s: %v", c.title, err)
			continue
		}
		for _, test := range c.tests {
			if err := p.Has(test); err != nil {
				t.Errorf("%s: %v", c.title, err)
			}
		}
	}
}
