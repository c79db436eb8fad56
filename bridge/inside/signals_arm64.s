#include "textflag.h"

// The kernel calls with the number in R0, siginfo in R1, the context in R2.
TEXT ·termHandler(SB), NOSPLIT|NOFRAME, $0-0
	MOVW 8(R1), R3  // si_code
	MOVW 16(R1), R4 // si_pid
	ORR  R4, R3
	CBNZW R3, next
	MOVW $1, R3
	MOVW R3, ·termFromOutside(SB)

next:
	MOVD ·nextTermHandler(SB), R3
	JMP  (R3)

DATA ·termHandlerPC(SB)/8, $·termHandler(SB)
GLOBL ·termHandlerPC(SB), NOPTR, $8

// It returns to the kernel by the restorer that the sigaction names, or by the
// link register.
TEXT ·discardHandler(SB), NOSPLIT|NOFRAME, $0-0
	RET

DATA ·discardHandlerPC(SB)/8, $·discardHandler(SB)
GLOBL ·discardHandlerPC(SB), NOPTR, $8
