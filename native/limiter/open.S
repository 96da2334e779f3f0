/* dlopen and dlmopen: the name becomes what open_name makes of it, then a jump to the loader's own, so that it sees who called. */
    .section .note.GNU-stack, "", %progbits
    .text

#if defined(__x86_64__)

/* `place`: where the register of the name is saved. */
.macro OPENING name, which, place
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    subq $40, %rsp
    .cfi_adjust_cfa_offset 40
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq \place(%rsp), %rdi
    call open_name
    movq %rax, \place(%rsp)
    movl $\which, %edi
    call open_function
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    addq $40, %rsp
    .cfi_adjust_cfa_offset -40
    jmp *%r11
    .cfi_endproc
    .size \name, . - \name
.endm

    OPENING dlopen, 0, 0
    OPENING dlmopen, 1, 8

#elif defined(__aarch64__)

.macro OPENING name, which, place
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    ldr x0, [sp, #\place]
    bl open_name
    str x0, [sp, #\place]
    mov w0, #\which
    bl open_function
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    br x16
    .cfi_endproc
    .size \name, . - \name
.endm

    OPENING dlopen, 0, 16
    OPENING dlmopen, 1, 24

#endif
