package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/tai/volume"
)

// maxReopen bounds how often a file is opened again because it changed while
// its range was found.
const maxReopen = 4

// maxUnsized bounds what is read of a file that says it is empty: some of
// those that the kernel makes up never end.
const maxUnsized = 1 << 20

func (a *fileAPI) headFile(w http.ResponseWriter, r *http.Request) error {
	c, err := a.call(r, VerbGet)
	if err != nil {
		return err
	}
	f, err := c.stat(r.Context(), c.name, c.follow)
	if err != nil {
		return err
	}
	if done, err := answered(w, r, &f); done || err != nil {
		return err
	}
	if err := fileHeader(w, &f); err != nil {
		return err
	}
	if isFile(&f) {
		w.Header().Set("Content-Length", strconv.FormatInt(f.Size, 10))
	}
	return nil
}

// readFile answers with a file, or with the part that the query or the header
// Range names. [http.ServeContent] would need to seek, tell what failed as
// plain text, and begin an answer before it has read a byte.
func (a *fileAPI) readFile(w http.ResponseWriter, r *http.Request) error {
	c, err := a.call(r, VerbGet)
	if err != nil {
		return err
	}
	part := parseRange(r.Header.Values("Range"))
	if c.offset != 0 || c.limit != 0 {
		if part != nil {
			return fmt.Errorf("%w: Range and offset or limit exclude each other", rest.ErrRequest)
		}
		return a.readSlice(w, r, c)
	}
	body, f, err := c.openPart(r.Context(), part)
	if err != nil {
		return err
	}
	defer func() { body.Close() }()
	if done, err := answered(w, r, &f); done || err != nil {
		return err
	}
	if part != nil && !ifRange(r.Header, &f) {
		part = nil
		body.Close()
		if body, f, err = c.openPart(r.Context(), nil); err != nil {
			body = io.NopCloser(nil)
			return err
		}
	}
	first, length := int64(0), f.Size
	if part != nil {
		if first, length = part.of(f.Size); length == 0 {
			return &headerError{fmt.Errorf("%w: it has %d bytes", rest.ErrRange, f.Size), http.Header{"Content-Range": {fmt.Sprintf("bytes */%d", f.Size)}}}
		}
	}
	var from io.Reader = body
	if f.Size == 0 {
		from, length = &unsized{r: body}, unknownLength
	}
	return a.s.stream(w, r, from, length, func() error {
		if err := fileHeader(w, &f); err != nil {
			return err
		}
		if length >= 0 {
			w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
		}
		if part != nil {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+length-1, f.Size))
		}
		return nil
	})
}

// readSlice answers with what the query's offset and limit name.
func (a *fileAPI) readSlice(w http.ResponseWriter, r *http.Request, c *fileCall) error {
	body, f, err := c.open(r.Context(), c.name, c.offset, c.limit)
	if err != nil {
		return err
	}
	defer body.Close()
	length := max(f.Size-c.offset, 0)
	if c.limit > 0 {
		length = min(length, c.limit)
	}
	var from io.Reader = body
	if f.Size == 0 {
		from, length = &unsized{r: body}, unknownLength
	}
	return a.s.stream(w, r, from, length, func() error { return fileHeader(w, &f) })
}

// unsized reads a file that says it is empty.
type unsized struct {
	r io.Reader
	n int64
}

func (u *unsized) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.n += int64(n); u.n > maxUnsized {
		return 0, fmt.Errorf("%w: it says it is empty, and has more than %d bytes", volume.ErrFileKind, maxUnsized)
	}
	return n, err
}

// openPart opens a file at a part of it; nil is all.
func (c *fileCall) openPart(ctx context.Context, part *byteRange) (io.ReadCloser, rest.File, error) {
	if part == nil || !part.suffix {
		first, limit := int64(0), int64(0)
		if part != nil {
			first, limit = part.first, part.count()
		}
		return c.open(ctx, c.name, first, limit)
	}
	// Where the end is, is known once it is open: it may be another file by then.
	f, err := c.stat(ctx, c.name, true)
	size := f.Size
	for range maxReopen {
		if err != nil {
			break
		}
		var body io.ReadCloser
		if body, f, err = c.open(ctx, c.name, max(size-part.n, 0), 0); err != nil {
			break
		}
		if f.Size == size {
			return body, f, nil
		}
		size = f.Size
		body.Close()
	}
	if err == nil {
		err = fmt.Errorf("%w: again and again, while its end was looked for", volume.ErrVersion)
	}
	return nil, f, err
}

// byteRange is the one range of a header Range: from first to last, or the
// last n bytes.
type byteRange struct {
	first, last int64
	suffix      bool
	n           int64
}

const endless = 1<<63 - 1

// parseRange reads a header Range. One that we cannot serve, with another unit
// or several ranges, does not count: the answer is then the whole file.
func parseRange(headers []string) *byteRange {
	if len(headers) != 1 {
		return nil
	}
	spec, isBytes := strings.CutPrefix(headers[0], "bytes=")
	from, to, found := strings.Cut(strings.TrimSpace(spec), "-")
	if !isBytes || !found {
		return nil
	}
	if from == "" {
		n, ok := digits(to)
		if !ok {
			return nil
		}
		return &byteRange{suffix: true, n: n}
	}
	first, ok := digits(from)
	last := int64(endless)
	if ok && to != "" {
		last, ok = digits(to)
	}
	if !ok || last < first {
		return nil
	}
	return &byteRange{first: first, last: last}
}

// digits reads a number without a sign.
func digits(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// count is how many bytes to read; 0 is to the end.
func (b *byteRange) count() int64 {
	if b.last == endless {
		return 0
	}
	return b.last - b.first + 1
}

// of returns where the range begins in a file, and how long it is.
func (b *byteRange) of(size int64) (first, length int64) {
	if b.suffix {
		first = max(size-b.n, 0)
		return first, size - first
	}
	if b.first >= size {
		return 0, 0
	}
	return b.first, min(b.last, size-1) - b.first + 1
}

// fileHeader sets what an answer says of a file.
func fileHeader(w http.ResponseWriter, f *rest.File) error {
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set(rest.HeaderFile, base64.StdEncoding.EncodeToString(raw))
	h.Set("Content-Type", "application/octet-stream")
	if !isFile(f) {
		return nil
	}
	h.Set("Content-Disposition", disposition(rawName(f)))
	h.Set("Accept-Ranges", "bytes")
	if f.Version != "" {
		h.Set("ETag", etag(f))
	}
	if !f.ModTime.IsZero() {
		h.Set("Last-Modified", f.ModTime.UTC().Format(http.TimeFormat))
	}
	return nil
}

// disposition names a file to be saved, whatever its name has in it: once for
// all clients, in what of ASCII needs no quoting, and once, by RFC 5987, as it is.
func disposition(name string) string {
	plain := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || strings.ContainsRune(`"\%/`, c) {
			return '_'
		}
		return c
	}, name)
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + strings.ReplaceAll(url.QueryEscape(strings.ToValidUTF8(name, "\uFFFD")), "+", "%20")
}

// etag is the ETag of a file's contents.
func etag(f *rest.File) string { return `"` + f.Version + `"` }

// tags are the ETags of a header; any is "*".
type tags struct {
	any  bool
	list []string // as sent, with W/
}

func parseTags(header string) (t tags) {
	if strings.TrimSpace(header) == "*" {
		return tags{any: true}
	}
	for rest := strings.TrimLeft(header, " \t,"); rest != ""; rest = strings.TrimLeft(rest, " \t,") {
		weak := ""
		if after, ok := strings.CutPrefix(rest, "W/"); ok {
			weak, rest = "W/", after
		}
		body, ok := strings.CutPrefix(rest, `"`)
		tag, after, closed := strings.Cut(body, `"`)
		if !ok || !closed {
			return t // nonsense matches nothing
		}
		t.list = append(t.list, weak+`"`+tag+`"`)
		rest = after
	}
	return t
}

// strong reports whether the tags are of these very bytes.
func (t tags) strong(f *rest.File) bool {
	if t.any {
		return true
	}
	for _, tag := range t.list {
		if f.Version != "" && tag == etag(f) {
			return true
		}
	}
	return false
}

// weak is strong, but for a mark that says that the bytes may differ.
func (t tags) weak(f *rest.File) bool {
	if t.any {
		return true
	}
	for _, tag := range t.list {
		if f.Version != "" && strings.TrimPrefix(tag, "W/") == etag(f) {
			return true
		}
	}
	return false
}

// precondition is a condition of the request's header that does not hold.
type precondition struct{ err error }

func (p *precondition) Error() string { return p.err.Error() }
func (p *precondition) Unwrap() error { return p.err }

// answered handles the conditions of a read, in the order of RFC 9110, 13.2.2:
// it reports whether there is nothing more to send.
func answered(w http.ResponseWriter, r *http.Request, f *rest.File) (bool, error) {
	h := r.Header
	failed := false
	if v := h.Values("If-Match"); len(v) > 0 {
		failed = !parseTags(strings.Join(v, ",")).strong(f)
	} else if t, ok := headerTime(h, "If-Unmodified-Since"); ok {
		failed = f.ModTime.Truncate(time.Second).After(t)
	}
	if failed {
		return false, &precondition{fmt.Errorf("%w: by If-Match or If-Unmodified-Since", rest.ErrPrecondition)}
	}
	same := false
	if v := h.Values("If-None-Match"); len(v) > 0 {
		same = parseTags(strings.Join(v, ",")).weak(f)
	} else if t, ok := headerTime(h, "If-Modified-Since"); ok {
		same = !f.ModTime.Truncate(time.Second).After(t)
	}
	if !same {
		return false, nil
	}
	if err := fileHeader(w, f); err != nil {
		return false, err
	}
	w.Header().Del("Content-Type")
	w.WriteHeader(http.StatusNotModified)
	return true, nil
}

func headerTime(h http.Header, name string) (time.Time, bool) {
	t, err := http.ParseTime(h.Get(name))
	return t, err == nil
}

// ifRange reports whether a range is of the file that the client has a part of.
func ifRange(h http.Header, f *rest.File) bool {
	v := h.Get("If-Range")
	if v == "" {
		return true
	}
	if strings.HasPrefix(v, `"`) {
		return parseTags(v).strong(f)
	}
	t, err := http.ParseTime(v)
	return err == nil && f.ModTime.Truncate(time.Second).Equal(t)
}

// conditions says over what a write may go, by the request's header.
func (c *fileCall) conditions(ctx context.Context, h http.Header) (o volume.WriteOptions, err error) {
	match, none := h.Values("If-Match"), h.Values("If-None-Match")
	if len(match) == 0 && len(none) == 0 {
		return o, nil
	}
	if t := parseTags(strings.Join(none, ",")); t.any && len(match) == 0 {
		o.IfAbsent = true
		return o, nil
	}
	f, err := c.stat(ctx, c.name, true)
	switch {
	case errors.Is(err, volume.ErrFileNotFound):
		if len(match) > 0 {
			return o, &precondition{fmt.Errorf("write %.64q: %w: there is none", c.name, volume.ErrVersion)}
		}
		o.IfAbsent = true
		return o, nil
	case err != nil:
		return o, err
	case !isFile(&f):
		return o, fmt.Errorf("%w: only a file has an ETag", volume.ErrFileKind)
	case len(match) > 0 && !parseTags(strings.Join(match, ",")).strong(&f),
		len(none) > 0 && parseTags(strings.Join(none, ",")).weak(&f):
		return o, &precondition{fmt.Errorf("write %.64q: %w", c.name, volume.ErrVersion)}
	}
	o.IfVersion = f.Version
	return o, nil
}

// headerError is a failure whose answer has headers of its own.
type headerError struct {
	err  error
	head http.Header
}

func (e *headerError) Error() string { return e.err.Error() }
func (e *headerError) Unwrap() error { return e.err }
