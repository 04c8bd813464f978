// SPDX-License-Identifier: BSD-3-Clause
// The rounds of rounds.cc in a Go program, whose runtime gives memory back by system calls of its own. A block is an
// object of the garbage collector's heap; each one that is given back is collected, and its pages are returned, at once.
package main

// #include <stdint.h>
// #include <stdlib.h>
// int rounds_main(int argc, char** argv);
import "C"

import (
	"os"
	"runtime/debug"
	"unsafe"
)

var blocks = map[uintptr][]byte{}

//export rounds_take
func rounds_take(length C.size_t) C.uintptr_t {
	block := make([]byte, int(length))
	at := uintptr(unsafe.Pointer(&block[0]))
	blocks[at] = block
	return C.uintptr_t(at)
}

//export rounds_give
func rounds_give(block C.uintptr_t) {
	delete(blocks, uintptr(block))
	debug.FreeOSMemory()
}

func main() {
	arguments := make([]*C.char, len(os.Args)+1)
	for i, argument := range os.Args {
		arguments[i] = C.CString(argument)
	}
	pointers := (**C.char)(C.calloc(C.size_t(len(arguments)), C.size_t(unsafe.Sizeof(arguments[0]))))
	copy(unsafe.Slice(pointers, len(arguments)), arguments)
	C.exit(C.rounds_main(C.int(len(os.Args)), pointers))
}
