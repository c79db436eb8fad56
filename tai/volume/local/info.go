package local

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/filemode"
	"github.com/taibox/taibox/tai/volume"
)

// fileInfo describes a file by what its system call says.
func fileInfo(name string, st *unix.Stat_t, link string) volume.FileInfo {
	info := volume.FileInfo{
		Name: name[strings.LastIndexByte(name, '/')+1:], Path: name, Mode: filemode.Of(st.Mode), ModTime: time.Unix(st.Mtim.Unix()), Link: link,
		Version: version(st),
	}
	if info.Mode.IsRegular() {
		info.Size = st.Size
	}
	return info
}

// version names the state of a file. A file that is replaced has another inode
// or time, as [tree.replace] sees to it; one that is written in place another
// time.
func version(st *unix.Stat_t) string {
	var buf [64]byte
	b := strconv.AppendUint(buf[:0], st.Ino, 36)
	for _, n := range [...]int64{st.Size, st.Mtim.Nano(), st.Ctim.Nano()} {
		b = strconv.AppendInt(append(b, '-'), n, 36)
	}
	return string(b)
}
