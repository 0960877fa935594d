# PVH entry (x86/HVM direct boot ABI): 32-bit protected mode, paging off, ebx = physical address of the start info.
# The loader may have put the image at any multiple of 2 MiB below 4 GiB. Finds the distance from the link address, maps
# the image at its link address and the first 4 GiB at the direct map, turns on SSE and long mode, and calls
# `kernel_entry`.

.section .note.pvh, "a", @note
.balign 4
    .long 4                     # length of "Xen\0"
    .long 4                     # length of the entry address (QEMU reads 8 when told 8; 4 suffices everywhere)
    .long 18                    # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_start

.set DIRECT_MAP, 0xffff800000000000     # as in boot/mod.rs

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    cli
    cld
    # A call tells the address. Its stack is the first word of the start info, which is restored.
    movl (%ebx), %edi
    leal 4(%ebx), %esp
    call 1f
1:  popl %ebp
    subl $1b, %ebp              # the distance of the image from its link address
    movl %edi, (%ebx)
    leal boot_stack_top(%ebp), %esp
    rdtsc                       # the zero of the boot chart
    pushl %edx
    pushl %eax

    # Four page directories of 2 MiB pages: the first 4 GiB.
    leal boot_pd(%ebp), %edi
    movl $0x83, %eax            # present, writable, 2 MiB
    movl $2048, %ecx
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 1b

    leal boot_pd + 3(%ebp), %eax
    leal boot_pdpt(%ebp), %edi
    movl $4, %ecx
2:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x1000, %eax
    addl $8, %edi
    loop 2b

    # The first 4 GiB, at the direct map, and one to one until the jump there.
    leal boot_pdpt + 3(%ebp), %eax
    leal boot_pml4(%ebp), %edi
    movl %eax, (%edi)
    movl %eax, 256 * 8(%edi)

    movl %cr4, %eax
    orl $0x620, %eax            # PAE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl %edi, %cr3
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x900, %eax            # LME, NXE
    wrmsr
    movl %cr0, %eax
    andl $~0xc, %eax            # not EM, not TS: SSE is usable
    orl $0x80010023, %eax       # PG, WP, NE, MP, PE
    movl %eax, %cr0
    leal boot_gdt(%ebp), %eax
    pushl %eax
    pushw $boot_gdt_end - boot_gdt - 1
    lgdt (%esp)
    addl $6, %esp
    leal start64(%ebp), %eax
    pushl $8
    pushl %eax
    lret

.code64
start64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    movl %esp, %esp
    popq %rsi                   # second argument: time stamp counter at entry
    movabsq $DIRECT_MAP, %rax
    leaq 1f(%rip), %rcx
    addq %rax, %rcx
    jmp *%rcx
1:                              # in the direct map: the first 2 MiB and what follows can be mapped anew
    leal 0x200000(%rbp), %edx   # third argument: physical address of the image
    leaq boot_image_pd + 8(%rip), %rdi
    leaq 0x83(%rdx), %rax
    movl $__image_large_pages, %ecx
2:  movq %rax, (%rdi)
    addq $0x200000, %rax
    addq $8, %rdi
    loop 2b
    leal boot_image_pd + 3(%rbp), %eax
    movq %rax, boot_image_pdpt(%rip)
    leal boot_image_pdpt + 3(%rbp), %eax
    movq %rax, boot_pml4(%rip)
    movq %cr3, %rax
    movq %rax, %cr3
    movl $3f, %eax
    jmp *%rax
3:                              # at the link address
    movl $boot_stack_top, %esp
    movl %ebx, %edi             # first argument: start info
    xorl %ebp, %ebp             # the end of every backtrace
    call kernel_entry
4:  hlt
    jmp 4b

.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 64-bit code
boot_gdt_end:

.section .bss.boot, "aw", @nobits
.balign 4096
boot_pml4:  .skip 4096
boot_pdpt:  .skip 4096
boot_pd:    .skip 4 * 4096
boot_image_pdpt:    .skip 4096
boot_image_pd:      .skip 4096
boot_stack: .skip 32 * 1024
boot_stack_top:
