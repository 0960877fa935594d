# The part of a Linux kernel image that runs in real mode: asks the BIOS for the memory map, opens the A20 gate, and
# jumps to the 32-bit entry. It lies at 0x270 of the file; the loader sets all segments to the address of the file's first
# byte, where 32 KiB and a stack are free (Documentation/arch/x86/boot.rst).
.section .setup, "ax"
.code16
setup:
    cli
    cld
    movw %ds, %ax
    movw %ax, %es
    movw %ax, %ss
    movl $0x8ff0, %esp
    sti
    # The boot parameters are made at 0x1000: zeros, and a copy of the header with what the loader has set.
    xorl %eax, %eax
    movw $0x1000, %di
    movw $1024, %cx
    rep stosl
    movw $0x1f1, %si
    movw $0x11f1, %di
    movw $(0x270 - 0x1f1), %cx
    rep movsb
    movb $16, 0x11f0            # the width of the entry, for loader.rs
    # The memory map.
    xorl %ebx, %ebx
    movw $0x12d0, %di
1:  movl $0xe820, %eax
    movl $20, %ecx
    movl $0x534d4150, %edx      # "SMAP"
    int $0x15
    jc 2f
    cmpl $0x534d4150, %eax
    jne 2f
    incb 0x11e8
    addw $20, %di
    cmpb $127, 0x11e8
    jae 2f
    testl %ebx, %ebx
    jnz 1b
    # A20: by the BIOS, and by the fast gate.
2:  movw $0x2401, %ax
    int $0x15
    cli
    inb $0x92, %al
    orb $2, %al
    andb $0xfe, %al
    outb %al, $0x92
    # Protected mode, with a table on the stack.
    xorl %ebx, %ebx
    movw %ds, %bx
    shll $4, %ebx
    leal (0x270 + setup_gdt - setup)(%ebx), %eax
    pushl %eax
    pushw $31
    movw %sp, %bp
    lgdtl (%bp)
    leal 0x1000(%ebx), %esi     # the boot parameters
    movl 0x214, %ecx            # code32_start
    leal (0x270 + 3f - setup)(%ebx), %eax
    pushw $0x10
    pushl %eax
    movw %sp, %bp
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    ljmpl *(%bp)
.balign 8
setup_gdt:
    .quad 0
    .quad 0
    .quad 0x00cf9b000000ffff    # 0x10: 32-bit code
    .quad 0x00cf93000000ffff    # 0x18: data
.code32
3:  movl $0x18, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    xorl %ebp, %ebp
    xorl %edi, %edi
    xorl %ebx, %ebx
    jmp *%ecx
.code64
