package rest

// Version says which server answers.
type Version struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	PID      int    `json:"pid"`
	DataDir  string `json:"data_dir"`
	Host     string `json:"host" doc:"The address that the server listens on"`
	Listen   string `json:"listen" doc:"The address of the API over TCP, empty where there is none"`
	Instance string `json:"instance" doc:"In the name of everything that the server makes on its machine"`
}

// Health says that the server answers.
type Health struct {
	Status string `json:"status" doc:"Always ok"`
}

// Node is something that runs boxes.
type Node struct {
	TaiID        string            `json:"tai_id"`
	Mode         string            `json:"mode" doc:"local, direct or tunnel"`
	Addr         string            `json:"addr"`
	Status       string            `json:"status" doc:"online or offline"`
	Runtime      string            `json:"runtime" doc:"oci, docker or k8s"`
	Capabilities []string          `json:"capabilities"`
	Labels       map[string]string `json:"labels"`
	System       System            `json:"system"`
}

// System describes the machine of a node.
type System struct {
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	Kernel      string `json:"kernel"`
	Hostname    string `json:"hostname"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes"`
}

// NodeList is one page of nodes.
type NodeList struct {
	Items     []Node `json:"items"`
	NextToken string `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}
