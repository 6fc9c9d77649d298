package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sync/errgroup"
)

const (
	// senders are the sockets of a flood, and window the queries of each that are not answered yet:
	// enough that a server never waits, and less than its socket's buffer holds.
	senders, window = 4, 32
	// answerTimeout bounds the wait for an answer, which a busy machine may delay.
	answerTimeout = 5 * time.Second
)

// flood queries as fast as the server answers, and returns the number of answers, each of which was
// checked.
func flood(ctx context.Context, server netip.AddrPort, questions []question, d time.Duration) (int, error) {
	var sum atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(d)
	for range senders {
		group.Go(func() error {
			n, err := floodSocket(ctx, server, questions, end)
			sum.Add(int64(n))
			return err
		})
	}
	err := group.Wait()
	return int(sum.Load()), err
}

func floodSocket(ctx context.Context, server netip.AddrPort, questions []question, end time.Time) (answered int, err error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	packets := ipv4.NewPacketConn(conn)
	var in, out [window]ipv4.Message
	for i := range window {
		in[i].Buffers = [][]byte{make([]byte, 1500)}
		out[i].Buffers = [][]byte{make([]byte, 512)}
	}
	id := 0
	send := func(n int) error {
		for i := range n {
			q := questions[id%len(questions)].wire
			buf := append(out[i].Buffers[0][:0], q...)
			binary.BigEndian.PutUint16(buf, uint16(id))
			out[i].Buffers[0] = buf
			// ids and questions keep their pairs over the wrap
			id = (id + 1) % (1 << 16 / len(questions) * len(questions))
		}
		for at := 0; at < n; {
			sent, err := packets.WriteBatch(out[at:n], 0)
			if err != nil {
				return fmt.Errorf("send queries: %w", err)
			}
			at += sent
		}
		return nil
	}
	if err := send(window); err != nil {
		return 0, err
	}
	for waiting := window; waiting > 0; {
		if err := conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
			return answered, err
		}
		n, err := packets.ReadBatch(in[:], 0)
		if err != nil {
			return answered, fmt.Errorf("receive answers, %d of %d queries are without: %w", waiting, answered+waiting, err)
		}
		for _, m := range in[:n] {
			answer := m.Buffers[0][:m.N]
			if len(answer) < 2 {
				return answered, fmt.Errorf("an answer of %d octets", len(answer))
			}
			if err := questions[int(binary.BigEndian.Uint16(answer))%len(questions)].check(answer); err != nil {
				return answered, err
			}
		}
		answered, waiting = answered+n, waiting-n
		if time.Now().Before(end) && ctx.Err() == nil {
			if err := send(n); err != nil {
				return answered, err
			}
			waiting += n
		}
	}
	return answered, ctx.Err()
}

// latency sends one query after the other, one at least, and returns the times to the answers,
// sorted.
func latency(ctx context.Context, server netip.AddrPort, questions []question, d time.Duration) (took []time.Duration, err error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	in, out := make([]byte, 1500), make([]byte, 0, 512)
	for end, id := time.Now().Add(d), 0; id == 0 || time.Now().Before(end); id++ {
		q := questions[id%len(questions)]
		out = append(out[:0], q.wire...)
		binary.BigEndian.PutUint16(out, uint16(id))
		if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
			return nil, err
		}
		begin := time.Now()
		if _, err := conn.Write(out); err != nil {
			return nil, err
		}
		n, err := conn.Read(in)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", q.name, err)
		}
		took = append(took, time.Since(begin))
		if n < 2 || binary.BigEndian.Uint16(in) != uint16(id) {
			return nil, fmt.Errorf("query %s: the answer has another id", q.name)
		}
		if err := q.check(in[:n]); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	slices.Sort(took)
	return took, nil
}

// check reads of an answer what tells right from wrong: its rcode, the number of records, and the
// last address, which ends the message because the query had no EDNS.
func (q question) check(answer []byte) error {
	if len(answer) < len(q.wire) {
		return fmt.Errorf("query %s: an answer of %d octets", q.name, len(answer))
	}
	if rcode := int(answer[3] & 0xf); answer[2]&0x80 == 0 || rcode != q.rcode {
		return fmt.Errorf("query %s: rcode %d, want %d", q.name, rcode, q.rcode)
	}
	if n := int(binary.BigEndian.Uint16(answer[6:])); n != len(q.addresses) {
		return fmt.Errorf("query %s: %d records, want %d", q.name, n, len(q.addresses))
	}
	if len(q.addresses) == 0 {
		return nil
	}
	last, _ := netip.AddrFromSlice(answer[len(answer)-4:])
	if !slices.Contains(q.addresses, last) {
		return fmt.Errorf("query %s: address %s, want one of %v", q.name, last, q.addresses)
	}
	return nil
}
