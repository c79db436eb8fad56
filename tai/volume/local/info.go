package local

import (
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/tai/volume"
)

// fileInfo describes a file by what its system call says.
func fileInfo(name string, st *unix.Stat_t, link string) volume.FileInfo {
	info := volume.FileInfo{
		Name: name[strings.LastIndexByte(name, '/')+1:], Path: name, Mode: fileMode(st.Mode), ModTime: time.Unix(st.Mtim.Unix()), Link: link,
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

func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	}
	if mode&unix.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if mode&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if mode&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}
