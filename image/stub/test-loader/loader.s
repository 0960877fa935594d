# A loader for tests: PVH's start info becomes Linux's boot parameters.
.set LOAD, 0x200000
.set FIRST, 0x1f1               # the first byte of the setup header, and the byte after the last
.set LAST, 0x290

.section .note, "a"
    .long 4, 4, 18              # Xen's note with the 32-bit entry
    .asciz "Xen"
    .long start

.section .text, "ax"
.code32
.global start
start:                          # ebx: the start info
    cld
    movl $stack_top, %esp
    movl %ebx, %ebp
    movl 16(%ebp), %eax         # the list of modules
    movl (%eax), %ebx           # ebx: the image
    movl 8(%eax), %edx          # edx: its length

    leal FIRST(%ebx), %esi
    movl $(params + FIRST), %edi
    movl $(LAST - FIRST), %ecx
    rep movsb
    movb $0xff, params + 0x210  # no registered loader
    movl 24(%ebp), %eax
    movl %eax, params + 0x228   # the command line
    movl 32(%ebp), %eax
    movl %eax, params + 0x70    # ACPI's root pointer

    movl 40(%ebp), %esi         # the memory map: entries of 24 bytes become entries of 20
    movb $1, params + 0x1e8     # the first one, which is too small for a kernel, is in the boot parameters
    movl $(params + 0x2d0), %edi
    movl $5, %ecx
    rep movsl
    addl $4, %esi
    movl 48(%ebp), %ecx         # all others are in setup data (SETUP_E820_EXT)
    decl %ecx
    imull $20, %ecx, %eax
    movl $further, params + 0x250
    movl $1, further + 8
    movl %eax, further + 12
    movl $(further + 16), %edi
1:  movl %ecx, %eax
    movl $5, %ecx
    rep movsl
    addl $4, %esi
    movl %eax, %ecx
    loop 1b

    movzbl FIRST(%ebx), %eax    # the protected-mode part follows the sectors of the real-mode part
    incl %eax
    shll $9, %eax
    leal (%ebx, %eax), %esi
    movl %edx, %ecx
    subl %eax, %ecx
    movl $LOAD, %edi
    rep movsb

    movl $(pages + 0x2000), %edi        # the first 4 GiB, one to one
    movl $0x83, %eax
    movl $2048, %ecx
2:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 2b
    movl $(pages + 0x2003), pages + 0x1000
    movl $(pages + 0x3003), pages + 0x1008
    movl $(pages + 0x4003), pages + 0x1010
    movl $(pages + 0x5003), pages + 0x1018
    movl $(pages + 0x1003), pages
    movl $0x20, %eax
    movl %eax, %cr4
    movl $pages, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    lgdt pointer
    movl %cr0, %eax
    orl $0x80000001, %eax
    movl %eax, %cr0
    ljmp $0x10, $3f
.code64
3:  movl $0x18, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $params, %esi
    movl $(LOAD + 0x200), %eax
    jmp *%rax

.balign 8
gdt:
    .quad 0
    .quad 0
    .quad 0x00af9b000000ffff    # 0x10: 64-bit code
    .quad 0x00cf93000000ffff    # 0x18: data
pointer:
    .word . - gdt - 1
    .long gdt

.section .bss, "aw", @nobits
.balign 4096
pages:  .skip 0x6000
params: .skip 0x1000
further: .skip 0x1000
    .skip 0x1000
stack_top:
.text
