# The entries for Linux's boot protocol and for EFI, and the way out to the kernel.
#
# The layout from `head32` on is fixed: the 32-bit entry at 0, the table of `image/pack` at 0x1a0, the 64-bit entry at
# 0x200, the 64-bit EFI handover entry at 0x300. In the file `head32` is at 0x1000.
#
# The stub has no memory of its own. The loaders of Linux leave memory free behind the file (`init_size`); the stub's
# workspace begins there: page tables (0 to 0x6000), a stack (to 0xe000), then `Workspace` of workspace.rs.

.set WORK_PAGES, 0x2000         # four page directories
.set WORK_PDPT, 0x1000
.set WORK_STACK_TOP, 0xe000

.section .head, "ax"
.code32
.global head32
head32:                         # esi: boot parameters; flat segments; paging is off
    cli
    cld
    leal 0x1e8(%esi), %esp      # a word of the boot parameters that is meant for this
    call 1f
1:  popl %ebp
    subl $(1b - head32), %ebp
    movl %ebp, %edx
    addl (image_len - head32)(%ebp), %edx       # edx: the workspace
    leal WORK_STACK_TOP(%edx), %esp

    # The first 4 GiB, one to one, in pages of 2 MiB.
    leal WORK_PAGES(%edx), %edi
    movl $0x83, %eax            # present, writable, 2 MiB
    movl $2048, %ecx
2:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 2b
    leal WORK_PDPT(%edx), %edi
    leal (WORK_PAGES + 3)(%edx), %eax
    movl $512, %ecx
3:  movl $0, (%edi)
    movl $0, 4(%edi)
    movl $0, -4096(%edi)        # the top level
    movl $0, -4092(%edi)
    cmpl $508, %ecx
    jbe 4f
    movl %eax, (%edi)
    addl $0x1000, %eax
4:  addl $8, %edi
    loop 3b
    leal (WORK_PDPT + 3)(%edx), %eax
    movl %eax, (%edx)

    movl $0x620, %eax           # PAE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl %edx, %cr3
    movl %edx, %ebx
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x100, %eax            # LME
    wrmsr
    leal (gdt - head32)(%ebp), %eax
    pushl %eax
    pushw $(gdt_end - gdt - 1)
    lgdt (%esp)
    addl $6, %esp
    movl %cr0, %eax
    andl $~0xc, %eax            # not EM, not TS: SSE is usable
    orl $0x80000023, %eax       # PG, NE, MP, PE
    movl %eax, %cr0
    pushl $8
    leal (from32 - head32)(%ebp), %eax
    pushl %eax
    lretl

.balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 0x08: 64-bit code
    .quad 0x00cf9b000000ffff    # 0x10: 32-bit code
    .quad 0x00cf93000000ffff    # 0x18: data
gdt_end:

.org 0x1a0                      # filled by image/pack
    .ascii "Ferrolite's stub"
image_len:      .quad 0         # the length of everything from head32 to the workspace
    .quad 0, 0                  # the kernel's file: its distance from head32, and its length
    .quad 0, 0                  # the built-in command line
    .quad 0, 0                  # the built-in module
    .quad 0, 0                  # the version of the boot file, a text

.org 0x200
.code64
head64:                         # rsi: boot parameters; the loader's page tables
    cli
    cld
    leaq head32(%rip), %rbx
    addq image_len(%rip), %rbx
    leaq WORK_STACK_TOP(%rbx), %rsp
    movq %cr4, %rax
    orq $0x600, %rax
    movq %rax, %cr4
    movq %cr0, %rax
    andq $~0xc, %rax
    orq $2, %rax
    movq %rax, %cr0
    movl $64, %edx
    jmp 1f
from32:
    movl $0x18, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $32, %edx
    movl %esi, %esi
    movl %ebx, %ebx
    leaq WORK_STACK_TOP(%rbx), %rsp
1:  movq %rsi, %rdi
    movq %rbx, %rsi
    xorl %ebp, %ebp
    call linux_main             # (boot parameters, workspace, width of the entry)
    ud2

# The EFI application: rcx: its handle, rdx: the system table.
.global efi_start
efi_start:
    xorl %r8d, %r8d             # no boot parameters
    jmp efi_main

# Leaves long mode and jumps to a 32-bit address. It is copied to memory below 4 GiB and called there.
# edi: the address; esi: the value that ebx and esi get there.
.balign 8
.global leave_start
leave_start:
    cli
    leaq leave_gdt(%rip), %rax
    pushq %rax
    subq $8, %rsp
    movw $31, 6(%rsp)
    lgdt 6(%rsp)
    movq %cr3, %rax             # no process-context identifiers: they need long mode
    andq $~0xfff, %rax
    movq %rax, %cr3
    movq %cr4, %rax
    andq $~0x820000, %rax       # PCIDE, CET
    movq %rax, %cr4
    movl %esi, %ebx
    leaq 1f(%rip), %rax
    pushq $0x10
    pushq %rax
    lretq
.code32
1:  movl $0x18, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    movl %cr0, %eax
    andl $0x7fffffff, %eax      # paging off
    movl %eax, %cr0
    movl $0xc0000080, %ecx
    rdmsr
    andl $~0x100, %eax          # LME
    wrmsr
    xorl %eax, %eax
    movl %eax, %cr4
    jmp *%edi
.balign 8
leave_gdt:
    .quad 0
    .quad 0
    .quad 0x00cf9b000000ffff    # 0x10: 32-bit code
    .quad 0x00cf93000000ffff    # 0x18: data
.global leave_end
leave_end:
.code64

.org 0x300                      # rdi: EFI's handle, rsi: the system table, rdx: boot parameters
    movq %rdi, %rcx
    movq %rdx, %r8
    movq %rsi, %rdx
    andq $~15, %rsp
    subq $32, %rsp              # the caller's space of this calling convention
    call efi_main
1:  hlt
    jmp 1b
