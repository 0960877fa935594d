# The way out of a kernel into the next one: from long mode to 32-bit protected mode without paging, as PVH enters a
# kernel. These bytes are copied to a page below 640 KiB that is mapped one to one. rdi: the entry; rsi: the start info;
# r8: the physical address of this kernel's image; r9: the image's length in words of 4 bytes. All are below 4 GiB.
#
# The image is overwritten with zeros, for two reasons. It may contain keys. And QEMU's translator keeps code that it has
# translated until a byte of that code is written; until then, each write to a page with such code is slow. The next
# kernel would be slow as long as it keeps its own data in the memory of this image.

.section .rodata.leave, "a"
.code64
.global leave_start, leave_end
leave_start:
    movl %r8d, %ebp
    movl %r9d, %ebx
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
    movl %edi, %edx
    movl %ebp, %edi             # the image is overwritten, eax is 0
    movl %ebx, %ecx
    cld
    rep stosl
    movl %esi, %ebx
    jmp *%edx
.balign 8
leave_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff    # 32-bit code
    .quad 0x00cf93000000ffff    # data
leave_gdt_end:
leave_end:
.code64
.text
