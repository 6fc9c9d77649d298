package images

// busybox is where Debian's busybox-static puts the program.
const busybox = "/bin/busybox"

// Busybox returns a static busybox with links in /bin for the given commands.
func Busybox(commands ...string) Layer {
	layer := Layer{{Path: busybox, Source: busybox}}
	for _, command := range commands {
		layer = append(layer, File{Path: "/bin/" + command, Link: "busybox"})
	}
	return layer
}

// Accounts returns the files in /etc that the C library and shells read.
func Accounts() Layer {
	return Layer{
		{Path: "/etc/passwd", Content: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
		{Path: "/etc/group", Content: "root:x:0:\nnogroup:x:65534:\n"},
		{Path: "/etc/nsswitch.conf", Content: "passwd: files\ngroup: files\nhosts: files dns\n"},
	}
}
