//! Links the kernel as a freestanding static ELF file: its own linker script, no C runtime, no position
//! independence.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=build.rs");
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    for arg in [
        "-nostartfiles",
        "-nodefaultlibs",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,--no-undefined",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096",
        "-Wl,--gc-sections",
        // Identical functions are merged. rustc links with LLD, which supports this.
        "-Wl,--icf=all",
    ] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{dir}/link.ld");
}
