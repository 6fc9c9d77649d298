package walk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// busyFor is how long connections are kept busy while a gateway dies, after which of it dies.
const (
	busyFor    = 8 * time.Second
	diesAfter  = 3 * time.Second
	busyPeople = 100
)

// held is what `whereami hold` prints.
type held struct {
	Opened    int
	Requests  int
	SlowestMs float64
	Broken    []struct{ Pod, After, Error string }
}

// GatewayDies kills a gateway node while a pod uses 100 connections to the other cluster's service,
// and boots it again. No connection may break.
func (w *Walk) GatewayDies(ctx context.Context, client Pod, gateway string) error {
	vip, err := w.Resolve(ctx, client, "g2."+ServiceName+domain, 1, w.ShownServices("g2"))
	if err != nil {
		return err
	}
	type outcome struct {
		text string
		err  error
	}
	done := make(chan outcome, 1)
	begin := time.Now()
	go func() {
		text, err := w.In(ctx, client, "whereami", "hold", "-connections", fmt.Sprint(busyPeople), "-duration", busyFor.String(), vip[0].String()+":80")
		done <- outcome{text, err}
	}()
	select {
	case o := <-done:
		return errors.Join(fmt.Errorf("the connections ended after %s: %s", time.Since(begin).Round(time.Millisecond), o.text), o.err)
	case <-time.After(diesAfter):
	}
	fmt.Fprintf(w.Out, "  power off: %s\n", gateway)
	err = w.Lab.Kill(ctx, gateway)
	o := <-done
	if err = errors.Join(err, o.err, w.Lab.Heal(ctx, gateway)); err != nil {
		return err
	}
	var h held
	if err := json.Unmarshal([]byte(o.text), &h); err != nil {
		return fmt.Errorf("read what became of the connections in %q: %w", o.text, err)
	}
	fmt.Fprintf(w.Out, "  %d connections, %d requests, slowest %.0f ms, broken: %d\n", h.Opened, h.Requests, h.SlowestMs, len(h.Broken))
	if h.Opened != busyPeople || len(h.Broken) > 0 {
		return fmt.Errorf("%d of %d connections were opened, broken are %v", h.Opened, busyPeople, h.Broken)
	}
	return nil
}
