# PVH entry (x86/HVM direct boot ABI): 32-bit protected mode, paging off, ebx = physical address of the start info.
# Maps the first 4 GiB one to one and at the direct map, turns on SSE and long mode, and calls `kernel_entry`.

.section .note.pvh, "a", @note
.balign 4
    .long 4                     # length of "Xen\0"
    .long 4                     # length of the entry address (QEMU reads 8 when told 8; 4 suffices everywhere)
    .long 18                    # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_start

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    cli
    cld
    rdtsc                       # the zero of the boot chart
    movl %eax, %esi
    movl %edx, %ebp
    movl $boot_stack_top, %esp

    # Four page directories of 2 MiB pages: the first 4 GiB.
    movl $boot_pd, %edi
    movl $0x83, %eax            # present, writable, 2 MiB
    movl $2048, %ecx
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 1b

    movl $boot_pd + 3, %eax
    movl $boot_pdpt, %edi
    movl $4, %ecx
2:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x1000, %eax
    addl $8, %edi
    loop 2b

    movl $boot_pdpt + 3, %eax
    movl %eax, boot_pml4                # one to one
    movl %eax, boot_pml4 + 256 * 8      # the direct map, DIRECT_MAP in mm

    movl %cr4, %eax
    orl $0x620, %eax            # PAE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x900, %eax            # LME, NXE
    wrmsr
    movl %cr0, %eax
    andl $~0xc, %eax            # not EM, not TS: SSE is usable
    orl $0x80010023, %eax       # PG, WP, NE, MP, PE
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $8, $start64

.code64
start64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    movl $boot_stack_top, %esp
    movl %ebx, %edi             # first argument: start info
    movl %esi, %esi
    shlq $32, %rbp
    orq %rbp, %rsi              # second argument: time stamp counter at entry
    xorl %ebp, %ebp             # the end of every backtrace
    call kernel_entry
3:  hlt
    jmp 3b

.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 64-bit code
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt

.section .bss.boot, "aw", @nobits
.balign 4096
boot_pml4:  .skip 4096
boot_pdpt:  .skip 4096
boot_pd:    .skip 4 * 4096
boot_stack: .skip 32 * 1024
boot_stack_top:
