/* Entry points that are passed on as they are: one jump through a table.
 *
 * A table entry starts out at code that finds the real function and writes it there: so the real library is loaded by the first
 * call, not by loading this one, and a program pays once per function that it uses. All argument registers survive the search.
 * NAMES is the file of names, FIND the C function that finds number N. */
#if defined(__linux__) && defined(__ELF__)
    .section .note.GNU-stack, "", %progbits
#endif

#define HOOK(symbol, name, version, per_thread) ENTRY_OWN symbol
#define ALIAS(symbol, name, version, per_thread)
#define FORWARD(symbol) ENTRY symbol

    .set number, 0

#if defined(__x86_64__)

/* Functions of our own have a number too, and no stub. */
.macro ENTRY_OWN symbol
    .pushsection .data.rel, "aw"
    .quad 0
    .popsection
    .set number, number + 1
.endm

.macro ENTRY symbol
    .text
    .globl \symbol
    .type \symbol, @function
    .balign 16
\symbol:
    endbr64
    jmp *(stub_table + 8 * number)(%rip)
    .size \symbol, . - \symbol
.Lfind_\symbol:
    endbr64
    pushq $number
    jmp stub_find
    .pushsection .data.rel, "aw"
    .quad .Lfind_\symbol
    .popsection
    .set number, number + 1
.endm

    .section .data.rel, "aw"
    .balign 8
    .globl stub_table
    .hidden stub_table
stub_table:
    .text
#include NAMES

    .text
    .type stub_find, @function
stub_find:                      /* the number is on the stack, above it the return address of the caller */
    .cfi_startproc
    .cfi_def_cfa_offset 16
    pushq %rbp
    .cfi_def_cfa_offset 24
    movq %rsp, %rbp
    andq $-16, %rsp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    movl 8(%rbp), %edi
    call FIND
    movq %rax, %r11
    movl 8(%rbp), %edi
    leaq stub_table(%rip), %r10
    movq %r11, (%r10,%rdi,8)
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    movq %rbp, %rsp
    popq %rbp
    addq $8, %rsp
    jmp *%r11
    .cfi_endproc
    .size stub_find, . - stub_find

#elif defined(__aarch64__)

.macro ENTRY_OWN symbol
    .pushsection .data.rel, "aw"
    .quad 0
    .popsection
    .set number, number + 1
.endm

.macro ENTRY symbol
    .text
    .globl \symbol
    .type \symbol, %function
    .balign 16
\symbol:
    hint #34                    /* bti c */
    adrp x16, stub_table + 8 * number
    add x16, x16, :lo12:stub_table + 8 * number
    ldr x16, [x16]
    br x16
    .size \symbol, . - \symbol
.Lfind_\symbol:
    hint #36                    /* bti j */
    mov w17, #number
    b stub_find
    .pushsection .data.rel, "aw"
    .quad .Lfind_\symbol
    .popsection
    .set number, number + 1
.endm

    .section .data.rel, "aw"
    .balign 8
    .globl stub_table
    .hidden stub_table
stub_table:
    .text
#include NAMES

    .text
    .type stub_find, %function
stub_find:
    .cfi_startproc
    stp x29, x30, [sp, #-240]!
    .cfi_def_cfa_offset 240
    .cfi_offset 29, -240
    .cfi_offset 30, -232
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp x8, x17, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl FIND
    mov x16, x0
    ldp x8, x17, [sp, #80]
    adrp x9, stub_table
    add x9, x9, :lo12:stub_table
    str x16, [x9, w17, uxtw #3]
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #240
    br x16
    .cfi_endproc
    .size stub_find, . - stub_find

#else
#error "no stubs for this processor"
#endif
