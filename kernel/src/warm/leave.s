# The way out of a kernel into the next one: from long mode to 32-bit protected mode without paging, as PVH enters a
# kernel. These bytes are copied to a page below 640 KiB that is mapped one to one. rdi: the entry; rsi: the start info.

.section .rodata.leave, "a"
.code64
.global leave_start, leave_end
leave_start:
    subq $16, %rsp
    movw $leave_gdt_end - leave_gdt - 1, (%rsp)
    leaq leave_gdt(%rip), %rax
    movq %rax, 2(%rsp)
    lgdt (%rsp)
    # No exception has a handler until the next kernel has its own: a fault before that resets the machine, which boots
    # what it is set up to boot.
    pushq $0
    pushq $0
    lidt (%rsp)
    leaq 1f(%rip), %rax
    pushq $8
    pushq %rax
    lretq
.code32
1:  movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    movl %cr0, %eax
    andl $0x7fffffff, %eax      # paging off, which leaves long mode
    movl %eax, %cr0
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    andl $~0x900, %eax          # LME, NXE
    wrmsr
    xorl %eax, %eax
    movl %eax, %cr4
    movl %esi, %ebx
    jmp *%edi
.balign 8
leave_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff    # 32-bit code
    .quad 0x00cf93000000ffff    # data
leave_gdt_end:
leave_end:
.code64
.text
