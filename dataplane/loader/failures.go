package loader

import (
	"errors"
	"fmt"
)

// failures collects the errors of writes to maps. A map that is full refuses each of perhaps
// 100,000 entries with the same message: it is held once, with their number. The zero value is
// empty.
type failures struct {
	errs  []error
	times map[string]int
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	text := err.Error()
	if f.times == nil {
		f.times = map[string]int{}
	}
	if f.times[text]++; f.times[text] == 1 {
		f.errs = append(f.errs, err)
	}
}

// err joins what was collected; nil: nothing.
func (f *failures) err() error {
	var errs []error
	for _, err := range f.errs {
		if n := f.times[err.Error()]; n > 1 {
			err = fmt.Errorf("%w (%d times)", err, n)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
