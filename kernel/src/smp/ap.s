# Start of an application processor: real mode at a page below 1 MiB, to which these bytes are copied, then straight to
# long mode with the final page tables, then the kernel. `ap_cr3` is patched in the copy.

.section .rodata.ap, "a"
.code16
.global ap_start, ap_end, ap_cr3
ap_start:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    movl ap_cr3 - ap_start, %edx
    movl $0x620, %eax           # PAE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl %edx, %cr3
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x900, %eax            # LME, NXE
    wrmsr
    lgdtl ap_gdt_pointer - ap_start
    movl $0x80010033, %eax      # PG, WP, NE, ET, MP, PE
    movl %eax, %cr0
    ljmpl $8, $ap_start64       # in the kernel's text, which the tables map
.balign 4
ap_gdt_pointer:
    .word 15
    .long ap_gdt                # in the kernel's read-only data; read once paging is on
.balign 4
ap_cr3:
    .long 0
ap_end:

.balign 8
ap_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 64-bit code

.section .text.ap, "ax"
.code64
ap_start64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    # The n-th processor to get here takes the n-th stack.
    movl $1, %edi
    lock xaddl %edi, AP_NEXT(%rip)
    movl %edi, %eax
    leaq AP_STACK_TOPS(%rip), %rdx
    movq (%rdx, %rax, 8), %rsp
    xorl %ebp, %ebp
    call ap_entry
1:  hlt
    jmp 1b
