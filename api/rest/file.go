package rest

import "time"

// File describes a file of a box or a workspace. A name that is not UTF-8 is there twice: to
// be shown, and as it is.
type File struct {
	Name    string    `json:"name"`
	NameB64 []byte    `json:"name_b64,omitempty" doc:"The name's bytes, if they are not UTF-8"`
	Path    string    `json:"path"`
	PathB64 []byte    `json:"path_b64,omitempty" doc:"The path's bytes, if they are not UTF-8"`
	Type    string    `json:"type" doc:"file, dir, link, pipe, socket, block or char"`
	Size    int64     `json:"size"`
	Mode    string    `json:"mode" doc:"Permissions with set-ID and sticky bits, octal: 0644"`
	UID     uint32    `json:"uid" doc:"Inside the box; 0 in a workspace: its owner"`
	GID     uint32    `json:"gid" doc:"Inside the box; 0 in a workspace"`
	ModTime time.Time `json:"mod_time"`
	Link    string    `json:"link,omitempty" doc:"Where a symbolic link leads"`
	LinkB64 []byte    `json:"link_b64,omitempty" doc:"Its bytes, if they are not UTF-8"`
	Version string    `json:"version,omitempty" doc:"Of a regular file: changes with it; the ETag of its contents"`
}

// FileList is one page of what is in a directory, by name.
type FileList struct {
	Items     []File `json:"items"`
	NextToken string `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// MakeDir asks for a directory.
type MakeDir struct {
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	User    string `json:"user,omitempty" doc:"Who makes it: user[:group]; default the box's user"`
	Mode    string `json:"mode,omitempty" doc:"Octal; default 0755"`
	Parents bool   `json:"parents,omitempty" doc:"Make parents too; one that is there is no error"`
}

// RenameFile asks for another name of a file or directory.
type RenameFile struct {
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	To      string `json:"to,omitempty"`
	ToB64   []byte `json:"to_b64,omitempty"`
	User    string `json:"user,omitempty"`
}

// FileEvent is a change of a file: the data of a server-sent event.
type FileEvent struct {
	Kind    string `json:"kind" doc:"created, modified, removed, or gap: events were missed, look again"`
	Path    string `json:"path" doc:"In the box, or relative to the workspace's root"`
	PathB64 []byte `json:"path_b64,omitempty" doc:"The path's bytes, if they are not UTF-8"`
	Dir     bool   `json:"dir"`
}

// HeaderFile is the header in which a file's description comes with its
// contents: a [File] as JSON, in base64.
const HeaderFile = "Taibox-File"
