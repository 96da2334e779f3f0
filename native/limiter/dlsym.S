/* dlsym and dlvsym: ask interpose_answer; where it has none, jump to the loader's own with everything as the caller left it, the
 * return address included. */
    .section .note.GNU-stack, "", %progbits
    .text

#if defined(__x86_64__)

.macro INTERPOSED name, which
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    call interpose_answer
    testq %rax, %rax
    jne 1f
    movl $\which, %edi
    call interpose_loader
    movq %rax, %r11
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%r11
1:  .cfi_adjust_cfa_offset 24
    addq $24, %rsp
    .cfi_adjust_cfa_offset -24
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

#elif defined(__aarch64__)

.macro INTERPOSED name, which
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
    bl interpose_answer
    cbnz x0, 1f
    mov w0, #\which
    bl interpose_loader
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    br x16
1:  ldp x29, x30, [sp], #48
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

#endif

    INTERPOSED dlsym, 0
    INTERPOSED dlvsym, 1
