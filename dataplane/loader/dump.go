package loader

import "github.com/pelago-net/pelago/dataplane/dump"

// Maps lists the maps that can be dumped, with the number of their entries.
func (l *Loader) Maps() ([]dump.Map, error) {
	n, err := l.node()
	if err != nil {
		return nil, err
	}
	return n.Maps(), nil
}

// Dump decodes one map, sorted by key.
func (l *Loader) Dump(name string) ([]dump.Row, error) {
	if err := dump.CheckName(name); err != nil {
		return nil, err
	}
	n, err := l.node()
	if err != nil {
		return nil, err
	}
	return n.Rows(name)
}

// node reads what can be dumped.
func (l *Loader) node() (n dump.Node, err error) {
	if n.State, err = l.Read(); err != nil {
		return n, err
	}
	if n.Paths, err = l.Paths(); err != nil {
		return n, err
	}
	n.Services, err = l.Services()
	return n, err
}
