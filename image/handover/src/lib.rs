//! The formats between a loader and the kernel: Linux's boot parameters, the memory map of EFI, the kernel's
//! ELF file, and the start info of PVH that the kernel takes. This crate only reads and writes bytes, so that
//! everything in it is tested on the host; `image/stub` does the rest.
//!
//! Sources: the Linux kernel's Documentation/arch/x86/boot.rst and zero-page.rst, the UEFI specification 2.10
//! (section 7.2), Xen's public/arch-x86/hvm/start_info.h.
#![no_std]
#![forbid(unsafe_code)]

mod boot_params;
mod bytes;
mod efi_map;
mod elf;
mod loader;
mod map;
mod place;
mod screen;
mod start_info;
mod tables;
mod words;

pub use boot_params::{BootParams, PARAMS_LEN, SetupData};
pub use efi_map::from_efi;
pub use elf::{ElfError, Kernel, Segment};
pub use loader::name_of_loader;
pub use map::{Entry, Map, RAM, RESERVED};
pub use place::{Place, Span};
pub use screen::Screen;
pub use start_info::{Module, StartInfo};
pub use tables::Tables;
pub use words::{value_of_loader, without_words_of_loaders};

/// The length of the stub's memory behind its file, in bytes: `image/pack` asks loaders for it.
pub const WORKSPACE_LEN: u64 = 0x2a000;
