// From the reset vector to 64-bit mode, and the ways back in: system calls and exceptions.
//
// Everything runs in ring 0 on an identity map of the first GiB.  Page 0 is left out, so that a
// null pointer faults.  Interrupts stay off.  XCR0 is the mask of the register sets that this
// "operating system" saves; the CPU gets those of them that it has.

        .section .reset, "ax"
        .code16
        ljmp    $0xf000, $(real_mode - 0xf0000)

        .text
        .globl  real_mode
real_mode:
        cli
        lgdtl   %cs:(gdt_pointer - 0xf0000)
        movl    $0x33, %eax             // protected mode, FPU present, caches on
        movl    %eax, %cr0
        ljmpl   $0x08, $protected_mode

        .code32
protected_mode:
        movl    $0x10, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        movl    $page_table + 3, page_directory  // 3: present, writable
        movl    $page_directory + 3, directory_pointers
        movl    $directory_pointers + 3, page_map
        movl    $1, %ecx                // the first 2 MiB in pages of 4 KiB, without page 0
1:      movl    %ecx, %eax
        shll    $12, %eax
        orl     $3, %eax
        movl    %eax, page_table(, %ecx, 8)
        incl    %ecx
        cmpl    $512, %ecx
        jne     1b
        movl    $1, %ecx                // the others in pages of 2 MiB
1:      movl    %ecx, %eax
        shll    $21, %eax
        orl     $0x83, %eax
        movl    %eax, page_directory(, %ecx, 8)
        incl    %ecx
        cmpl    $512, %ecx
        jne     1b
        movl    $page_map, %eax
        movl    %eax, %cr3
        movl    $0x620, %eax            // PAE, OSFXSR, OSXMMEXCPT
        movl    %eax, %cr4
        movl    $0xc0000080, %ecx       // EFER: long mode, system calls
        movl    $0x101, %eax
        xorl    %edx, %edx
        wrmsr
        movl    $0x80000033, %eax       // paging
        movl    %eax, %cr0
        ljmpl   $0x18, $long_mode

        .code64
long_mode:
        fninit
        movl    $1, %eax
        cpuid
        btl     $26, %ecx               // XSAVE
        jnc     1f
        movq    %cr4, %rax
        btsq    $18, %rax               // OSXSAVE
        movq    %rax, %cr4
        movl    $13, %eax
        xorl    %ecx, %ecx
        cpuid
        andl    $XCR0, %eax
        xorl    %ecx, %ecx
        xorl    %edx, %edx
        xsetbv
1:      movl    $0xc0000081, %ecx       // STAR: the segments of a system call
        xorl    %eax, %eax
        movl    $0x18, %edx
        wrmsr
        movl    $0xc0000082, %ecx       // LSTAR: its entry
        movl    $system_call_entry, %eax
        xorl    %edx, %edx
        wrmsr
        lidt    idt_pointer
        movl    $stack_top, %esp
        call    machine_main

// void enter(entry, stack)
        .globl  enter
enter:
        movq    %rsi, %rsp
        xorl    %edx, %edx
        xorl    %ebp, %ebp
        jmp     *%rdi

system_call_entry:
        movq    %rsp, program_stack
        movl    $stack_top, %esp        // the program may have data below its stack pointer
        pushq   %rcx                    // where it goes on
        pushq   %r11                    // its flags
        pushq   %rdi
        pushq   %rsi
        pushq   %rdx
        pushq   %r10
        pushq   %r8
        pushq   %r9
        movq    %rdx, %rcx
        movq    %rsi, %rdx
        movq    %rdi, %rsi
        movq    %rax, %rdi
        call    system_call             // (number, first, second, third)
        popq    %r9
        popq    %r8
        popq    %r10
        popq    %rdx
        popq    %rsi
        popq    %rdi
        popfq
        popq    %rcx
        movq    program_stack, %rsp
        jmp     *%rcx

// Exception n enters at exception_entries + 16 n.
        .globl  exception_entries
        .balign 16
exception_entries:
        .set    vector, 0
        .rept   32
        .balign 16
        .if     !(vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21)
        pushq   $0                      // in place of the error code that the CPU pushes for these
        .endif
        pushq   $vector
        jmp     exception_entry
        .set    vector, vector + 1
        .endr
exception_entry:
        movq    (%rsp), %rdi
        movq    16(%rsp), %rsi
        movq    %cr2, %rdx
        movl    $stack_top, %esp
        call    exception               // (vector, address of the instruction, address it wanted)

        .section .rodata
        .balign 8
gdt:    .quad   0
        .quad   0x00cf9b000000ffff      // 0x08 code, 32 bits
        .quad   0x00cf93000000ffff      // 0x10 data
        .quad   0x00af9b000000ffff      // 0x18 code, 64 bits
        .quad   0x00cf93000000ffff      // 0x20 data
gdt_pointer:
        .word   39
        .long   gdt
idt_pointer:
        .word   511
        .quad   idt

        .bss
        .balign 4096
page_map:               .skip 4096
directory_pointers:     .skip 4096
page_directory:         .skip 4096
page_table:             .skip 4096
        .globl  idt
idt:                    .skip 512
program_stack:          .skip 8
        .balign 16
                        .skip 16384
stack_top:
        .section .note.GNU-stack, "", @progbits
