#include "textflag.h"

// The kernel calls with the number in DI, siginfo in SI, the context in DX.
TEXT ·termHandler(SB), NOSPLIT|NOFRAME, $0-0
	MOVL 8(SI), AX  // si_code
	ORL  16(SI), AX // si_pid
	JNE  next
	MOVL $1, ·termFromOutside(SB)

next:
	MOVQ ·nextTermHandler(SB), AX
	JMP  AX

DATA ·termHandlerPC(SB)/8, $·termHandler(SB)
GLOBL ·termHandlerPC(SB), NOPTR, $8

// It returns to the kernel by the restorer that the sigaction names, or by the
// link register.
TEXT ·discardHandler(SB), NOSPLIT|NOFRAME, $0-0
	RET

DATA ·discardHandlerPC(SB)/8, $·discardHandler(SB)
GLOBL ·discardHandlerPC(SB), NOPTR, $8
