// Drain reads every change of a bucket with gocbcore's DCP agent and prints it.
//
//	drain [--count [--rounds N]] [--collections] [--from FILE] [--live] [--verbose]
//	      couchbase://127.0.0.1:11210/default
//
// The login comes from DRAIN_USER and DRAIN_PASSWORD. Each change is one line of fields with tabs
// between: kind, vbucket, seqno, cas, rev, collection id, key, value, flags, expiry; numbers are
// decimal and unsigned, bytes are hexadecimal.
//
// --count prints one JSON line per round instead: items, bytes, cpu_seconds, wall_seconds and
// memory_mb of this process. --from names a file with lines "vbucket uuid seqno snapshot_start
// snapshot_end": those streams start there. --live streams without an end; "streaming" on standard
// error says that every stream is open, lines "vbucket seqno" on standard input say where to stop.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const (
	connectTime = 20 * time.Second
	drainTime   = 300 * time.Second
	forever     = gocbcore.SeqNo(math.MaxUint64)
)

type options struct {
	url         *url.URL
	count       bool
	collections bool
	live        bool
	starts      map[uint16]position
}

// position is where a stream starts.
type position struct {
	uuid                      gocbcore.VbUUID
	seqno, snapStart, snapEnd gocbcore.SeqNo
}

// printer writes lines of all streams.
type printer struct {
	lock sync.Mutex
	out  *bufio.Writer
}

// stream observes one vbucket. Its counts belong to the agent's reading goroutine until it ends.
type stream struct {
	vbucket uint16
	printer *printer // nil: only count
	items   int
	bytes   int
	reached func(vbucket uint16, seqno uint64) // nil: nobody asks
	ended   chan<- error
}

func (s *stream) take(kind string, seqno, cas, rev uint64, collection uint32, key, value []byte,
	flags, expiry uint32) {
	s.items++
	s.bytes += len(key) + len(value)
	if s.printer != nil {
		s.printer.lock.Lock()
		fmt.Fprintf(s.printer.out, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%d\t%d\n", kind, s.vbucket, seqno,
			cas, rev, collection, hex.EncodeToString(key), hex.EncodeToString(value), flags, expiry)
		s.printer.lock.Unlock()
	}
	s.moved(seqno)
}

func (s *stream) moved(seqno uint64) {
	if s.reached != nil {
		s.reached(s.vbucket, seqno)
	}
}

func (s *stream) Mutation(m gocbcore.DcpMutation) {
	s.take("mutation", m.SeqNo, m.Cas, m.RevNo, m.CollectionID, m.Key, m.Value, m.Flags, m.Expiry)
}

func (s *stream) Deletion(d gocbcore.DcpDeletion) {
	s.take("deletion", d.SeqNo, d.Cas, d.RevNo, d.CollectionID, d.Key, d.Value, 0, 0)
}

func (s *stream) Expiration(e gocbcore.DcpExpiration) {
	s.take("expiration", e.SeqNo, e.Cas, e.RevNo, e.CollectionID, e.Key, nil, 0, 0)
}

func (s *stream) End(_ gocbcore.DcpStreamEnd, err error) {
	if err != nil {
		err = fmt.Errorf("stream of vbucket %d ended: %w", s.vbucket, err)
	}
	s.ended <- err
}

func (s *stream) SnapshotMarker(gocbcore.DcpSnapshotMarker) {}
func (s *stream) OSOSnapshot(gocbcore.DcpOSOSnapshot)       {}

func (s *stream) CreateCollection(c gocbcore.DcpCollectionCreation)     { s.moved(c.SeqNo) }
func (s *stream) DeleteCollection(c gocbcore.DcpCollectionDeletion)     { s.moved(c.SeqNo) }
func (s *stream) FlushCollection(c gocbcore.DcpCollectionFlush)         { s.moved(c.SeqNo) }
func (s *stream) CreateScope(c gocbcore.DcpScopeCreation)               { s.moved(c.SeqNo) }
func (s *stream) DeleteScope(c gocbcore.DcpScopeDeletion)               { s.moved(c.SeqNo) }
func (s *stream) ModifyCollection(c gocbcore.DcpCollectionModification) { s.moved(c.SeqNo) }
func (s *stream) SeqNoAdvanced(a gocbcore.DcpSeqNoAdvanced)             { s.moved(a.SeqNo) }

// goal knows how far every vbucket has come and when that is far enough.
type goal struct {
	lock    sync.Mutex
	reached map[uint16]uint64
	targets map[uint16]uint64
	met     chan struct{}
}

func (g *goal) move(vbucket uint16, seqno uint64) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.reached[vbucket] = seqno
	g.check()
}

func (g *goal) set(targets map[uint16]uint64) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.targets = targets
	g.check()
}

func (g *goal) check() {
	if g.targets == nil {
		return
	}
	for vbucket, seqno := range g.targets {
		if g.reached[vbucket] < seqno {
			return
		}
	}
	g.targets = nil
	close(g.met)
}

func connect(o *options) (*gocbcore.DCPAgent, error) {
	config := gocbcore.DCPAgentConfig{BucketName: strings.Trim(o.url.Path, "/")}
	if err := config.FromConnStr(o.url.String()); err != nil {
		return nil, err
	}
	config.EnableCCCPPoller = true
	config.IoConfig.UseCollections = o.collections
	config.DCPConfig.UseExpiryOpcode = true
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{
		Username: os.Getenv("DRAIN_USER"),
		Password: os.Getenv("DRAIN_PASSWORD"),
	}
	name := fmt.Sprintf("headrace-interop-go-%d-%d", os.Getpid(), time.Now().UnixNano())
	// Servers tell expirations from deletions only where delete times were asked for, too.
	agent, err := gocbcore.CreateDcpAgent(&config, name,
		memd.DcpOpenFlagProducer|memd.DcpOpenFlagIncludeDeleteTimes)
	if err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(connectTime), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	if err == nil {
		err = <-ready
	}
	if err != nil {
		return nil, fmt.Errorf("not ready within %s: %w", connectTime, err)
	}
	return agent, nil
}

func highSeqnos(agent *gocbcore.DCPAgent) ([]gocbcore.VbSeqNoEntry, error) {
	snapshot, err := agent.ConfigSnapshot()
	if err != nil {
		return nil, err
	}
	servers, err := snapshot.NumServers()
	if err != nil {
		return nil, err
	}
	type answer struct {
		entries []gocbcore.VbSeqNoEntry
		err     error
	}
	var all []gocbcore.VbSeqNoEntry
	for server := 1; server <= servers; server++ {
		answers := make(chan answer, 1)
		_, err := agent.GetVbucketSeqnos(server, memd.VbucketStateActive,
			gocbcore.GetVbucketSeqnoOptions{},
			func(entries []gocbcore.VbSeqNoEntry, err error) { answers <- answer{entries, err} })
		if err != nil {
			return nil, err
		}
		got := <-answers
		if got.err != nil {
			return nil, got.err
		}
		all = append(all, got.entries...)
	}
	return all, nil
}

// open opens the streams that have something to tell and returns them.
func open(agent *gocbcore.DCPAgent, o *options, lines *printer, moved func(uint16, uint64),
	ended chan<- error) ([]*stream, error) {
	entries, err := highSeqnos(agent)
	if err != nil {
		return nil, fmt.Errorf("no seqnos: %w", err)
	}
	var streams []*stream
	opened := make(chan error, len(entries))
	for _, entry := range entries {
		start, end := o.starts[entry.VbID], entry.SeqNo
		if o.live {
			end = forever
		}
		if start.seqno >= end {
			continue
		}
		one := &stream{vbucket: entry.VbID, printer: lines, reached: moved, ended: ended}
		_, err := agent.OpenStream(entry.VbID, memd.DcpStreamAddFlagActiveOnly, start.uuid,
			start.seqno, end, start.snapStart, start.snapEnd, one, gocbcore.OpenStreamOptions{},
			func(_ []gocbcore.FailoverEntry, err error) { opened <- err })
		if err != nil {
			return nil, err
		}
		streams = append(streams, one)
	}
	for range streams {
		if err := <-opened; err != nil {
			return nil, fmt.Errorf("a stream was refused: %w", err)
		}
	}
	return streams, nil
}

// drain reads everything once and returns how many changes and bytes that were.
func drain(o *options, lines *printer) (items, bytes int, err error) {
	agent, err := connect(o)
	if err != nil {
		return 0, 0, err
	}
	defer agent.Close()
	// Room for every stream that could end: an observer never waits.
	ended := make(chan error, math.MaxUint16+1)
	aim := &goal{reached: map[uint16]uint64{}, met: make(chan struct{})}
	var moved func(uint16, uint64)
	if o.live {
		moved = aim.move
	}
	streams, err := open(agent, o, lines, moved, ended)
	if err != nil {
		return 0, 0, err
	}
	late := time.After(drainTime)
	if o.live {
		return 0, 0, live(aim, ended, late)
	}
	for range streams {
		select {
		case err := <-ended:
			if err != nil {
				return 0, 0, err
			}
		case <-late:
			return 0, 0, errors.New("streams did not end in time")
		}
	}
	for _, one := range streams {
		items += one.items
		bytes += one.bytes
	}
	return items, bytes, nil
}

func live(aim *goal, ended <-chan error, late <-chan time.Time) error {
	fmt.Fprintln(os.Stderr, "streaming")
	read := make(chan error, 1)
	go func() {
		targets, err := readTargets(os.Stdin)
		if err == nil {
			aim.set(targets)
		}
		read <- err
	}()
	for {
		select {
		case err := <-read:
			if err != nil {
				return err
			}
		case <-aim.met:
			return nil
		case err := <-ended:
			return fmt.Errorf("a stream without an end ended: %w", err)
		case <-late:
			return errors.New("the seqnos to stop at were not reached in time")
		}
	}
}

func readTargets(from io.Reader) (map[uint16]uint64, error) {
	targets := map[uint16]uint64{}
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		var vbucket uint16
		var seqno uint64
		if _, err := fmt.Sscan(scanner.Text(), &vbucket, &seqno); err != nil {
			return nil, err
		}
		targets[vbucket] = seqno
	}
	return targets, scanner.Err()
}

func readStarts(path string) (map[uint16]position, error) {
	starts := map[uint16]position{}
	if path == "" {
		return starts, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		var vbucket uint16
		var at position
		if _, err := fmt.Sscan(scanner.Text(), &vbucket, &at.uuid, &at.seqno, &at.snapStart,
			&at.snapEnd); err != nil {
			return nil, err
		}
		starts[vbucket] = at
	}
	return starts, scanner.Err()
}

// cpuSeconds is what this process has used of all processors.
func cpuSeconds() (float64, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9, nil
}

// memoryMegabytes is the highest resident size of this process. Getrusage would tell that of the
// process that started it if that was larger: Linux keeps the number over exec.
func memoryMegabytes() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		var kilobytes float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kilobytes); err == nil {
			return kilobytes / 1024, nil
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}

func count(o *options, rounds int) error {
	for range rounds {
		before, err := cpuSeconds()
		if err != nil {
			return err
		}
		began := time.Now()
		items, bytes, err := drain(o, nil)
		if err != nil {
			return err
		}
		wall := time.Since(began).Seconds()
		after, err := cpuSeconds()
		if err != nil {
			return err
		}
		memory, err := memoryMegabytes()
		if err != nil {
			return err
		}
		told, err := json.Marshal(map[string]any{
			"items": items, "bytes": bytes, "cpu_seconds": after - before, "wall_seconds": wall,
			"memory_mb": memory,
		})
		if err != nil {
			return err
		}
		fmt.Println(string(told))
	}
	return nil
}

func run() error {
	var o options
	var err error
	from := flag.String("from", "", "file of positions to start from")
	rounds := flag.Int("rounds", 1, "how often to drain with --count")
	verbose := flag.Bool("verbose", false, "what the client logs, on standard error")
	flag.BoolVar(&o.count, "count", false, "only count")
	flag.BoolVar(&o.collections, "collections", false, "stream all collections")
	flag.BoolVar(&o.live, "live", false, "stream without an end")
	flag.Parse()
	if flag.NArg() != 1 {
		return errors.New("give one connection string: couchbase://host:port/bucket")
	}
	if o.url, err = url.Parse(flag.Arg(0)); err != nil {
		return err
	}
	if o.starts, err = readStarts(*from); err != nil {
		return err
	}
	if *verbose {
		gocbcore.SetLogger(gocbcore.VerboseStdioLogger())
	}
	if o.count {
		return count(&o, *rounds)
	}
	lines := &printer{out: bufio.NewWriterSize(os.Stdout, 1<<20)}
	if _, _, err := drain(&o, lines); err != nil {
		return err
	}
	lines.lock.Lock()
	defer lines.lock.Unlock()
	return lines.out.Flush()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "drain:", err)
		os.Exit(1)
	}
}
